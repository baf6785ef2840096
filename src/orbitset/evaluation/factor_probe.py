"""How much codes know of a factor that is not to matter: how well a linear probe finds it.

Shapes: N codes of D entries.
"""

import numpy as np
import torch
from torch import Tensor

from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.one_shot import linear_probe_accuracy
from orbitset.seeds import stream

_MOST_ENTRIES = 512


def probe_factor(codes_ND: Tensor, value_N: Tensor, thing_N: Tensor) -> float:
    """Accuracy of a logistic regression that learns a factor from half of the things, in codes of the other
    half: the mean of both ways. There have to be two things or more.

    Of codes with more than 512 entries it is shown the principal components.

    >>> codes = torch.tensor([[0.0, 1], [1, 1], [0, 2], [1, 2]])
    >>> probe_factor(codes, torch.tensor([0, 1, 0, 1]), torch.tensor([5, 5, 6, 6]))
    1.0
    """
    value_N, thing_N = value_N.to(codes_ND.device), thing_N.to(codes_ND.device)
    if codes_ND.shape[1] > _MOST_ENTRIES:
        codes_ND = _principal(codes_ND.double())
    things = thing_N.unique()
    order = torch.randperm(len(things), generator=stream("probed things")).to(things.device)
    is_first = torch.isin(thing_N, things[order[: len(things) // 2]])
    accuracies = []
    for is_gallery in (is_first, ~is_first):
        if len(value_N[is_gallery].unique()) < 2:  # which no regression learns from
            accuracies.append(
                float((value_N[~is_gallery] == value_N[is_gallery][0]).double().mean())
            )
            continue
        gallery, queries = (
            Labelled(codes_ND[rows], value_N[rows]) for rows in (is_gallery, ~is_gallery)
        )
        accuracies.append(linear_probe_accuracy(gallery, queries).mean)
    return float(np.mean(accuracies))


def _principal(codes_ND: Tensor) -> Tensor:
    """By the matrix of products of codes, which is small where codes are raw pixels."""
    centred_ND = codes_ND - codes_ND.mean(0)
    values, vectors = torch.linalg.eigh(centred_ND @ centred_ND.T)
    first = max(len(values) - _MOST_ENTRIES, int((values <= 1e-9 * values[-1]).sum()))
    components: Tensor = vectors[:, first:] * values[first:].sqrt()
    return components
