"""The discriminate term: a member of the same orbit should be closer than any of another orbit.

Shapes: N codes of D entries, T triplets.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from orbitset import kernels
from orbitset.errors import check_choice
from orbitset.losses.distances import are_few, distance_matrix, paired_distances
from orbitset.losses.every_triplet import every_triplet_terms
from orbitset.losses.mining import (
    FIXED_SHAPE,
    SCAN_LIMIT,
    Triplets,
    Variant,
    check_variant,
    mine,
)

Reduction = Literal["mean", "sum"]
REPLAYABLE = FIXED_SHAPE | {"all", "semihard"}
"""Variants whose loss works on the device alone, with shapes that do not depend on what is found"""


def triplet_loss(
    codes_ND: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor],
    *,
    margin: float,
    valid: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """For each anchor the mean hinge over its triplets, zeros included; then the mean or sum over anchors.

    For each (a, p, q): max(0, margin + |c_a - c_p|^2 - |c_a - c_q|^2).   [paper, eq. orbit_loss, L_t]
    Every code counts as an anchor, one without triplets with 0; a batch without any gives 0 that still
    carries a gradient. A code that is not finite makes the loss NaN, whatever was mined.

    >>> codes = torch.tensor([[0.0], [1.0], [1.5]])
    >>> triplet = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
    >>> triplet_loss(codes, triplet, margin=2.0, reduction="sum").item()
    0.75
    """
    return triplet_terms(codes_ND, triplets, margin=margin, valid=valid, reduction=reduction)[0]


def triplet_terms(
    codes_ND: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor],
    *,
    margin: float,
    valid: Tensor | None = None,
    reduction: Reduction = "mean",
) -> tuple[Tensor, Tensor]:
    """The triplet loss, and beside it the fraction of triplets whose hinge is active."""
    if codes_ND.dtype == torch.float32 and kernels.serve(codes_ND, *triplets):
        loss, active = _terms_by_kernels(codes_ND, triplets, margin, valid)
    else:
        loss, active = _terms(codes_ND, triplets, margin, valid)
    return _reduced(loss, codes_ND, reduction), active


def mined_terms(
    codes_ND: Tensor,
    orbit_N: Tensor,
    mining: Variant,
    *,
    margin: float,
    reduction: Reduction = "mean",
    max_members: int | None = None,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`triplet_terms` of the triplets that are mined; the seed is for what a variant draws at random, without
    one from torch's own generator."""
    is_cpu = orbit_N.device.type == "cpu"
    if is_cpu and len(orbit_N) > 0:
        max_members = max_members or int(orbit_N.unique(return_counts=True)[1].max())
    # of many positives few negatives are semi-hard: listing those is cheaper than sorting all
    is_listed = mining == "semihard" and is_cpu and (max_members or 1) - 1 > SCAN_LIMIT
    if mining in ("all", "semihard") and not is_listed:
        loss, active = every_triplet_terms(
            codes_ND, orbit_N, margin=margin, is_semihard=mining == "semihard"
        )
        return _reduced(loss, codes_ND, reduction), active
    generator = None
    if mining == "semihard-random" and seed is not None:
        generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        exact_NN = None
        if is_cpu and mining not in ("batch-hard", "semihard"):
            pairs = 2 * len(orbit_N) * ((max_members or 1) - 1)
            if not are_few(pairs, len(orbit_N)):
                exact_NN = distance_matrix(codes_ND.double())
        triplets, valid = mine(
            distance_matrix(codes_ND) if exact_NN is None else exact_NN.to(codes_ND.dtype),
            orbit_N,
            mining,
            margin=margin,
            max_members=max_members,
            generator=generator,
        )
    if exact_NN is None:
        return triplet_terms(codes_ND, triplets, margin=margin, valid=valid, reduction=reduction)
    loss, active = _terms(codes_ND, triplets, margin, valid, exact_NN)
    return _reduced(loss, codes_ND, reduction), active


def _reduced(loss: Tensor, codes_ND: Tensor, reduction: Reduction) -> Tensor:
    check_choice("reduction", reduction, get_args(Reduction))
    # Comparisons with NaN choose no triplets, which would look like a perfect loss.
    loss = loss + 0 * codes_ND.detach().sum()
    return loss / max(1, len(codes_ND)) if reduction == "mean" else loss


def _terms(
    codes_ND: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor],
    margin: float,
    valid: Tensor | None,
    distance_NN: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum over anchors, and the active fraction: the reference."""
    anchor_T, positive_T, negative_T = triplets
    if valid is None:
        valid = torch.ones_like(anchor_T, dtype=torch.bool)
    distances = paired_distances(
        codes_ND,
        torch.cat([anchor_T, anchor_T]),
        torch.cat([positive_T, negative_T]),
        distance_NN,
    )
    ap_T, an_T = distances[: len(anchor_T)], distances[len(anchor_T) :]
    hinge_T = torch.where(valid, (ap_T - an_T + margin).relu(), 0)
    count_N = torch.zeros(len(codes_ND), dtype=torch.int64, device=anchor_T.device)
    count_N.scatter_add_(0, anchor_T, valid.long())
    loss = (hinge_T / count_N[anchor_T].clamp(min=1)).sum()
    active = (hinge_T.detach() > 0).sum() / valid.sum().clamp(min=1)
    return loss, active


def _terms_by_kernels(
    codes_ND: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor],
    margin: float,
    valid: Tensor | None,
) -> tuple[Tensor, Tensor]:
    from orbitset.kernels import triplets as fast

    distance_NN = None
    if not fast.are_few(triplets, len(codes_ND)):
        distance_NN = distance_matrix(codes_ND.detach().double())
    return fast.triplet_terms(codes_ND, triplets, valid, distance_NN, margin=margin)


class TripletLoss(nn.Module):
    """`triplet_loss` with its mining, called as loss(codes, orbits) or loss(codes, orbits, triplets).

    The triplets may come from any miner that gives (anchor, positive, negative) rows. On a GPU, say with
    `max_members` how many rows an orbit can have: with one negative for a pair less is computed then.

    >>> codes = torch.randn(6, 4, requires_grad=True)
    >>> TripletLoss(margin=0.5)(codes, torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        mining: Variant = "semihard-else-farthest",
        reduction: Reduction = "mean",
        max_members: int | None = None,
    ) -> None:
        super().__init__()
        check_variant(mining)
        self.margin, self.mining, self.reduction = margin, mining, reduction
        self.max_members = max_members

    def forward(
        self,
        codes_ND: Tensor,
        orbit_N: Tensor,
        triplets: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        if triplets is not None:
            return triplet_loss(codes_ND, triplets, margin=self.margin, reduction=self.reduction)
        return mined_terms(
            codes_ND,
            orbit_N,
            self.mining,
            margin=self.margin,
            reduction=self.reduction,
            max_members=self.max_members,
        )[0]


class TripletMiner(nn.Module):
    """`mine` on codes, called as miner(codes, orbits): its triplets fit pytorch-metric-learning's losses."""

    def __init__(self, variant: Variant = "semihard-else-farthest", *, margin: float = 0.2) -> None:
        super().__init__()
        check_variant(variant)
        self.variant, self.margin = variant, margin

    @torch.no_grad()
    def forward(self, codes_ND: Tensor, orbit_N: Tensor) -> Triplets:
        mined = mine(distance_matrix(codes_ND), orbit_N, self.variant, margin=self.margin)
        return mined.compact()
