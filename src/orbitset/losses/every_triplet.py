"""The discriminate term over every triplet of a batch, or every semi-hard one, without listing any.

For an anchor a, the hinge of (p, n) is active where an < ap + margin. Loss and gradient need no more than how
many negatives are active for a positive, the sum of their hinges, and for how many positives a negative is
active. With few positives each looks at the whole row. With many, negatives and positives are put in order,
and each count is a search, each sum a difference of two: N^2 log N steps. Either way N^2 numbers are kept.
Semi-hard are triplets with ap < an <= ap + margin.

Shapes: N codes of D entries, R of them as anchors at a time, K the most positives an anchor can have.
"""

from typing import Any

import torch
from torch import Tensor

from orbitset.dispatch import accelerated
from orbitset.losses.distances import distance_matrix, weighted_gradient
from orbitset.losses.mining import SCAN_LIMIT, check_orbits, positives

_SORTED, _SCANNED = 2**20, 2**16
"""Numbers of the matrix at a time: what bounds the memory, and what stays in a core's cache"""


def every_triplet_terms(
    codes_ND: Tensor, orbit_N: Tensor, *, margin: float, is_semihard: bool = False
) -> tuple[Tensor, Tensor]:
    """The sum over anchors of the mean hinge over all their triplets, and the fraction that is active.

    `is_semihard` leaves out all triplets but those that are semi-hard.

    >>> codes = torch.tensor([[0.0], [1.0], [3.0]])
    >>> [term.item() for term in every_triplet_terms(codes, torch.tensor([0, 0, 1]), margin=4.0)]
    [1.0, 0.5]
    """
    return _terms(codes_ND, orbit_N, margin, is_semihard)


@accelerated("every_triplet_terms")
def _terms(
    codes_ND: Tensor, orbit_N: Tensor, margin: float, is_semihard: bool
) -> tuple[Tensor, Tensor]:
    loss, active = _EveryTriplet.apply(codes_ND, orbit_N, margin, is_semihard)
    return loss, active


class _EveryTriplet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, codes_ND: Tensor, orbit_N: Tensor, margin: float, is_semihard: bool
    ) -> tuple[Tensor, Tensor]:
        distance_NN = distance_matrix(codes_ND.double())
        check_orbits(distance_NN, orbit_N)
        weights_NN, loss, active = _weigh(distance_NN, orbit_N, margin, is_semihard)
        ctx.save_for_backward(codes_ND, weights_NN)
        active = active.to(codes_ND.dtype)
        ctx.mark_non_differentiable(active)
        return loss.to(codes_ND.dtype), active

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        codes_ND, weights_NN = ctx.saved_tensors
        return weighted_gradient(codes_ND, grad * weights_NN.to(codes_ND.dtype)), None, None, None


def _weigh(
    distance_NN: Tensor, orbit_N: Tensor, margin: float, is_semihard: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivative of the loss by each distance, the loss, and the fraction of triplets that is active."""
    members = len(orbit_N)
    if members == 0:
        return distance_NN, distance_NN.sum(), distance_NN.sum()
    if orbit_N.device.type == "cpu":  # where counting does not mean waiting
        members = int(orbit_N.unique(return_counts=True)[1].max())
    is_scanned = members - 1 <= SCAN_LIMIT
    positive_NK, is_pair_NK, _ = positives(orbit_N, members if is_scanned else 1)
    rows = max(1, (_SCANNED if is_scanned else _SORTED) // len(orbit_N))
    blocks = []
    for row_R in torch.arange(len(orbit_N), device=orbit_N.device).split(rows):
        distance_RN, same_RN = distance_NN[row_R], orbit_N[row_R, None] == orbit_N
        if is_scanned:
            pairs = positive_NK[row_R], is_pair_NK[row_R]
            blocks.append(_by_scanning(distance_RN, same_RN, *pairs, margin, is_semihard))
        else:
            blocks.append(_by_sorting(distance_RN, same_RN, row_R, margin, is_semihard))
    weights, losses, active, counts = zip(*blocks, strict=True)
    share = torch.stack(active).sum() / torch.stack(counts).sum().clamp(min=1)
    return torch.cat(weights), torch.stack(losses).sum(), share


def _by_scanning(
    distance_RN: Tensor,
    same_RN: Tensor,
    positive_RK: Tensor,
    is_pair_RK: Tensor,
    margin: float,
    is_semihard: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights, the sum of mean hinges, and how many triplets are active and count; a look at the row for each
    positive."""
    ap_RK = distance_RN.gather(1, positive_RK)
    weights_RN, hinge_R1 = torch.zeros_like(distance_RN), torch.zeros_like(distance_RN[:, :1])
    count_R1 = torch.zeros_like(hinge_R1)
    active = torch.zeros_like(hinge_R1).sum()
    for place in range(positive_RK.shape[1]):
        ap_R1, positive_R1, is_pair_R1 = (
            each[:, place : place + 1] for each in (ap_RK, positive_RK, is_pair_RK)
        )
        over_RN = ap_R1 + margin - distance_RN
        over_RN.masked_fill_(same_RN | ~is_pair_R1, -torch.inf)
        if is_semihard:
            over_RN.masked_fill_(distance_RN <= ap_R1, -torch.inf)
            count_R1 += (over_RN >= 0).sum(1, keepdim=True)
        else:
            count_R1 += (over_RN > -torch.inf).sum(1, keepdim=True)
        hinge_R1 += over_RN.clamp_(min=0).sum(1, keepdim=True)
        is_active_RN = over_RN.sign_()
        inside_R1 = is_active_RN.sum(1, keepdim=True)
        weights_RN -= is_active_RN
        weights_RN.scatter_add_(1, positive_R1, inside_R1)
        active += inside_R1.sum()
    by_count_R1 = 1 / count_R1.clamp(min=1)
    return weights_RN * by_count_R1, (hinge_R1 * by_count_R1).sum(), active, count_R1.sum()


def _by_sorting(
    distance_RN: Tensor, same_RN: Tensor, anchor_R: Tensor, margin: float, is_semihard: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, however many positives there are."""
    num = distance_RN.shape[1]
    is_positive_RN = same_RN.scatter(1, anchor_R[:, None], False)
    limit_RN = distance_RN + margin
    nearest_RN = distance_RN.masked_fill(same_RN, torch.inf).sort(1).values
    farthest_RN = distance_RN.masked_fill(~is_positive_RN, -torch.inf).sort(1).values

    # of a positive: places of the first negative that counts and of the first beyond the limit
    stop_RN = torch.searchsorted(nearest_RN, limit_RN)
    if is_semihard:
        start_RN = torch.searchsorted(nearest_RN, distance_RN, right=True)
        counted_RN = torch.searchsorted(nearest_RN, limit_RN, right=True) - start_RN
        count_R1 = counted_RN.where(is_positive_RN, 0).sum(1, keepdim=True)
    else:
        start_RN = torch.zeros_like(stop_RN)
        count_R1 = is_positive_RN.sum(1, keepdim=True) * (~same_RN).sum(1, keepdim=True)
    inside_RN = (stop_RN - start_RN).where(is_positive_RN, 0)
    sum_RN = torch.cat([torch.zeros_like(limit_RN[:, :1]), nearest_RN.cumsum(1)], 1)
    reached_RN = sum_RN.gather(1, stop_RN) - sum_RN.gather(1, start_RN)
    hinge_RN = (inside_RN * limit_RN - reached_RN).where(is_positive_RN, 0)

    # of a negative: positives whose limit is beyond it, but for those that are themselves
    beyond_RN = num - torch.searchsorted(farthest_RN + margin, distance_RN, right=True)
    if is_semihard:
        beyond_RN = beyond_RN - (num - torch.searchsorted(farthest_RN, distance_RN))
    beyond_RN = beyond_RN.where(~same_RN, 0)

    by_count_R1 = 1 / count_R1.clamp(min=1).to(distance_RN.dtype)
    weights_RN = (inside_RN - beyond_RN) * by_count_R1
    return weights_RN, (hinge_RN * by_count_R1).sum(), inside_RN.sum(), count_R1.sum()
