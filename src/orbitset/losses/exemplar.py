"""The exemplar loss: every orbit is a class of its own, with a classifier learned beside the codes.

Shapes: N codes of D entries, C classes.
"""

import torch.nn.functional as F
from torch import Tensor

from orbitset.dispatch import accelerated


def exemplar_loss(codes: Tensor, orbits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Softmax cross-entropy of a linear classifier with one class per orbit.   [paper, eq. exemplar]

    Of codes (N, D) and orbits (N,), with a weight (O, D) and a bias (O,) for O orbits.

    >>> import torch
    >>> loss = exemplar_loss(torch.zeros(2, 3), torch.tensor([0, 1]), torch.zeros(4, 3), torch.zeros(4))
    >>> round(loss.exp().item(), 4)
    4.0
    """
    return _linear_cross_entropy(codes, orbits, weight, bias)


@accelerated("linear_cross_entropy")
def _linear_cross_entropy(
    codes_ND: Tensor, orbit_N: Tensor, weight_CD: Tensor, bias_C: Tensor
) -> Tensor:
    return F.cross_entropy(F.linear(codes_ND, weight_CD, bias_C), orbit_N)
