"""The discriminate term over every triplet of a batch, without listing any.

For an anchor a, the hinge of (p, n) is active where an < ap + margin. So with the negatives in order, how
many are active for a positive is one search, and the sum of their hinges a difference of two sums; likewise
for how many positives a negative is active. Loss and gradient need no more: N^2 log N steps, N^2 numbers.

Shapes: N codes of D entries, R of them as anchors at a time.
"""

from typing import Any

import torch
from torch import Tensor

from orbitset import kernels
from orbitset.losses.distances import distance_matrix, weighted_gradient

_BLOCK = 2**20
"""Numbers of a matrix that are sorted at a time"""


def every_triplet_terms(
    codes_ND: Tensor, orbit_N: Tensor, *, margin: float
) -> tuple[Tensor, Tensor]:
    """The sum over anchors of the mean hinge over all their triplets, and the fraction that is active.

    >>> codes = torch.tensor([[0.0], [1.0], [3.0]])
    >>> [term.item() for term in every_triplet_terms(codes, torch.tensor([0, 0, 1]), margin=4.0)]
    [1.0, 0.5]
    """
    loss, active = _EveryTriplet.apply(codes_ND, orbit_N, margin)
    return loss, active


class _EveryTriplet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, codes_ND: Tensor, orbit_N: Tensor, margin: float
    ) -> tuple[Tensor, Tensor]:
        distance_NN = distance_matrix(codes_ND.double())
        ctx.by_kernels = codes_ND.dtype == torch.float32 and kernels.serve(distance_NN, orbit_N)
        if ctx.by_kernels:
            from orbitset.kernels import triplets as fast

            ctx.by_kernels = fast.can_weigh_every(len(codes_ND))
        if ctx.by_kernels:
            weights_NN, loss, active = fast.weigh_every(distance_NN, orbit_N, margin=margin)
        else:
            weights_NN, loss, active = _weigh(distance_NN, orbit_N, margin)
        ctx.save_for_backward(codes_ND, weights_NN)
        active = active.to(codes_ND.dtype)
        ctx.mark_non_differentiable(active)
        return loss.to(codes_ND.dtype), active

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        codes_ND, weights_NN = ctx.saved_tensors
        if ctx.by_kernels:
            from orbitset.kernels import triplets as fast

            return fast.weighted_gradient(codes_ND, weights_NN, grad), None, None
        return weighted_gradient(codes_ND, grad * weights_NN.to(codes_ND.dtype)), None, None


def _weigh(distance_NN: Tensor, orbit_N: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """The derivative of the loss by each distance, the loss, and the fraction of triplets that is active."""
    rows = max(1, _BLOCK // max(1, len(orbit_N)))
    anchors = torch.arange(len(orbit_N), device=orbit_N.device)
    blocks = [
        _weigh_rows(distance_RN, orbit_N[anchor_R, None] == orbit_N, anchor_R, margin)
        for distance_RN, anchor_R in zip(distance_NN.split(rows), anchors.split(rows), strict=True)
    ]
    weights, losses, active, counts = zip(*blocks, strict=True)
    share = torch.stack(active).sum() / torch.stack(counts).sum().clamp(min=1)
    return torch.cat(weights), torch.stack(losses).sum(), share


def _weigh_rows(
    distance_RN: Tensor, same_RN: Tensor, anchor_R: Tensor, margin: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    is_positive_RN = same_RN.scatter(1, anchor_R[:, None], False)
    count_R1 = is_positive_RN.sum(1, keepdim=True) * same_RN.logical_not().sum(1, keepdim=True)

    limit_RN = distance_RN + margin
    nearest_RN = distance_RN.masked_fill(same_RN, torch.inf).sort(1).values
    inside_RN = torch.searchsorted(nearest_RN, limit_RN).where(is_positive_RN, 0)
    sum_RN = torch.cat([torch.zeros_like(limit_RN[:, :1]), nearest_RN.cumsum(1)], 1)
    hinge_RN = (inside_RN * limit_RN - sum_RN.gather(1, inside_RN)).where(is_positive_RN, 0)

    tightest_RN = limit_RN.masked_fill(~is_positive_RN, -torch.inf).sort(1).values
    reached_RN = torch.searchsorted(tightest_RN, distance_RN, right=True)
    beyond_RN = (distance_RN.shape[1] - reached_RN).where(~same_RN, 0)

    by_count_R1 = 1 / count_R1.clamp(min=1).to(distance_RN.dtype)
    weights_RN = (inside_RN - beyond_RN) * by_count_R1
    return weights_RN, (hinge_RN * by_count_R1).sum(), inside_RN.sum(), count_R1.sum()
