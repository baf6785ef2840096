"""The paper's epsilon-invariance: two codes are equivalent if their distance D is at most epsilon.

*Invariance* is the share of pairs within an orbit with D <= epsilon, *selectivity* the share of pairs from
two orbits with D > epsilon. An embedding fulfils the paper's definition where both are 1. D is squared.

Shapes: N codes of D entries, E values of epsilon.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.pairs import Pairs

_BLOCK_BYTES = 2**27


@dataclass(frozen=True)
class InvarianceCurve:
    """The shares for each epsilon, (E,) float64; NaN where there is no such pair."""

    epsilons: Tensor
    invariance: Tensor
    selectivity: Tensor
    num_within: int
    num_across: int


def invariance_curve(codes: Tensor, orbits: Tensor, epsilons: Tensor) -> InvarianceCurve:
    """Count over all unordered pairs of codes, in float64 and bounded memory.

    >>> codes, orbits = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 0, 1])
    >>> curve = invariance_curve(codes, orbits, torch.tensor([0.5, 1.0, 4.0]))
    >>> curve.invariance.tolist(), curve.selectivity.tolist()
    ([0.0, 1.0, 1.0], [1.0, 1.0, 0.5])
    """
    pairs = Pairs(Labelled(codes, orbits), {}, None, "euclidean", _BLOCK_BYTES)
    sorted_E, order_E = epsilons.double().to(codes.device).sort()
    counts = torch.zeros(2, len(sorted_E) + 1, dtype=torch.int64, device=codes.device)
    for block in pairs.blocks:
        place = torch.searchsorted(sorted_E, pairs.distances(block))
        for count, is_of_kind in zip(counts, pairs.kinds(block), strict=True):
            count += torch.bincount(place[is_of_kind], minlength=len(sorted_E) + 1)
    within, across = counts.sum(1).tolist()
    reached = counts.cumsum(1)[:, :-1].double()
    back_E = order_E.argsort()
    return InvarianceCurve(
        epsilons=epsilons.double().cpu(),
        invariance=(reached[0] / within)[back_E].cpu(),
        selectivity=(1 - reached[1] / across)[back_E].cpu(),
        num_within=within,
        num_across=across,
    )
