"""The discriminate term: a member of the same orbit should be closer than any of another orbit.

Shapes: N codes of D entries, T triplets.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from orbitset.dispatch import accelerated
from orbitset.errors import check_choice
from orbitset.losses.distances import are_few, distance_matrix, paired_distances
from orbitset.losses.every_triplet import every_triplet_terms
from orbitset.losses.mining import SCAN_LIMIT, Triplets, Variant, check_variant, mine

Reduction = Literal["mean", "sum"]


def triplet_loss(
    codes: Tensor,
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
    return triplet_terms(codes, triplets, margin=margin, valid=valid, reduction=reduction)[0]


def triplet_terms(
    codes_ND: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor],
    *,
    margin: float,
    valid: Tensor | None = None,
    reduction: Reduction = "mean",
) -> tuple[Tensor, Tensor]:
    """The triplet loss, and beside it the fraction of triplets whose hinge is active."""
    loss, active = _terms(codes_ND, triplets, margin, valid)
    return _reduced(loss, codes_ND, reduction), active


@dataclass(frozen=True)
class Mining:
    """Which orbit each code belongs to, and how triplets are chosen."""

    orbits: Tensor
    variant: Variant = "semihard-else-farthest"
    max_members: int | None = None
    """No orbit has more rows than that; with it less is computed on a GPU"""
    seed: int | None = None
    """Random seed for a variant that draws; torch's own generator without one"""


def mined_terms(
    codes_ND: Tensor, mining: Mining, *, margin: float, reduction: Reduction = "mean"
) -> tuple[Tensor, Tensor]:
    """`triplet_terms` of the triplets that are mined."""
    orbit_N, variant, max_members = mining.orbits, mining.variant, mining.max_members
    is_cpu = orbit_N.device.type == "cpu"
    if is_cpu and len(orbit_N) > 0:
        max_members = max_members or int(orbit_N.unique(return_counts=True)[1].max())
    # of many positives few negatives are semi-hard: listing those is cheaper than sorting all
    is_listed = variant == "semihard" and is_cpu and (max_members or 1) - 1 > SCAN_LIMIT
    if variant in ("all", "semihard") and not is_listed:
        loss, active = every_triplet_terms(
            codes_ND, orbit_N, margin=margin, is_semihard=variant == "semihard"
        )
        return _reduced(loss, codes_ND, reduction), active
    generator = None
    if variant == "semihard-random" and mining.seed is not None:
        generator = torch.Generator().manual_seed(mining.seed)
    with torch.no_grad():
        exact_NN = None
        if is_cpu and variant not in ("batch-hard", "semihard"):
            pairs = 2 * len(orbit_N) * ((max_members or 1) - 1)
            if not are_few(pairs, len(orbit_N)):
                exact_NN = distance_matrix(codes_ND.double())
        triplets, valid = mine(
            distance_matrix(codes_ND) if exact_NN is None else exact_NN.to(codes_ND.dtype),
            orbit_N,
            variant,
            margin=margin,
            max_members=max_members,
            generator=generator,
        )
    loss, active = _terms(codes_ND, triplets, margin, valid, exact_NN)
    return _reduced(loss, codes_ND, reduction), active


def _reduced(loss: Tensor, codes_ND: Tensor, reduction: Reduction) -> Tensor:
    check_choice("reduction", reduction, get_args(Reduction))
    # Comparisons with NaN choose no triplets, which would look like a perfect loss.
    loss = loss + 0 * codes_ND.detach().sum()
    return loss / max(1, len(codes_ND)) if reduction == "mean" else loss


@accelerated("triplet_terms")
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
        codes_ND, torch.cat([anchor_T, anchor_T]), torch.cat([positive_T, negative_T]), distance_NN
    )
    ap_T, an_T = distances[: len(anchor_T)], distances[len(anchor_T) :]
    hinge_T = torch.where(valid, (ap_T - an_T + margin).relu(), 0)
    count_N = torch.zeros(len(codes_ND), dtype=torch.int64, device=anchor_T.device)
    count_N.scatter_add_(0, anchor_T, valid.long())
    loss = (hinge_T / count_N[anchor_T].clamp(min=1)).sum()
    active = (hinge_T.detach() > 0).sum() / valid.sum().clamp(min=1)
    return loss, active


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
        self, codes: Tensor, orbits: Tensor, triplets: tuple[Tensor, Tensor, Tensor] | None = None
    ) -> Tensor:
        if triplets is not None:
            return triplet_loss(codes, triplets, margin=self.margin, reduction=self.reduction)
        mining = Mining(orbits, self.mining, self.max_members)
        return mined_terms(codes, mining, margin=self.margin, reduction=self.reduction)[0]


class TripletMiner(nn.Module):
    """`mine` on codes, called as miner(codes, orbits): its triplets fit pytorch-metric-learning's losses."""

    def __init__(self, variant: Variant = "semihard-else-farthest", *, margin: float = 0.2) -> None:
        super().__init__()
        check_variant(variant)
        self.variant, self.margin = variant, margin

    @torch.no_grad()
    def forward(self, codes: Tensor, orbits: Tensor) -> Triplets:
        mined = mine(distance_matrix(codes), orbits, self.variant, margin=self.margin)
        return mined.compact()
