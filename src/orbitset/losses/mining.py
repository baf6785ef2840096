"""Choosing triplets (anchor, positive, negative) from a distance matrix.

The paper follows FaceNet's semi-hard selection, which public code reads in several ways; each reading
here has a name. Below, ap and an are the distances of an anchor to its positive and to a negative, and
a negative is *semi-hard* for a pair when 0 < an - ap <= margin. Ties go to the lowest index.

One negative for each (anchor, positive), in O(N^2) memory, fixed shapes and no host synchronisation:
  semihard-else-farthest   the nearest negative with an > ap, else the farthest negative (the default)
  semihard-nearest         the nearest semi-hard negative, else no triplet
  semihard-random          any one semi-hard negative, all equally likely, else no triplet
  hardest                  the nearest negative
One triplet for each anchor:
  batch-hard               the farthest positive and the nearest negative
Sized by what they find:
  semihard                 every semi-hard triplet
  all                      every triplet

Shapes: N codes, K the most positives an anchor can have, T triplets.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from orbitset.dispatch import accelerated
from orbitset.errors import check_choice

Variant = Literal[
    "semihard-else-farthest",
    "semihard-nearest",
    "semihard-random",
    "hardest",
    "batch-hard",
    "semihard",
    "all",
]
_CACHE_BYTES = 2**20
SCAN_LIMIT = 24
"""Up to this many positives per anchor, a pass over the matrix for each is cheaper than sorting it."""


class Triplets(NamedTuple):
    """Row numbers in a batch, three int64 tensors of one length: the form other libraries use too."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


class Mined(NamedTuple):
    """Triplets of fixed number, and which of them count; the others point at row 0."""

    triplets: Triplets
    valid: Tensor

    def compact(self) -> Triplets:
        """The triplets that count; their number must be known, so this waits for a GPU."""
        if self.valid.all():
            return self.triplets
        return Triplets(*(index[self.valid] for index in self.triplets))


def mine(
    distances: Tensor,
    orbits: Tensor,
    variant: Variant = "semihard-else-farthest",
    *,
    margin: float = 0.2,
    max_members: int | None = None,
    generator: torch.Generator | None = None,
) -> Mined:
    """Choose triplets in the named way.

    `max_members` promises that no orbit has more rows than that, which makes the result small; without
    it the result has N*(N-1) places on a GPU, where counting would mean waiting. An orbit that breaks
    the promise is used with its first rows as positives. Singletons and batches of one orbit give no
    valid triplet. The generator, on the CPU, is for semihard-random alone.

    >>> distance = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 2.0], [4.0, 2.0, 0.0]])
    >>> [index.tolist() for index in mine(distance, torch.tensor([7, 7, 8])).compact()]
    [[0, 1], [1, 0], [2, 2]]
    """
    _check(distances, orbits, variant, max_members)
    if len(orbits) == 0:
        return Mined(Triplets(*(orbits.long() for _ in range(3))), orbits.bool())
    orbits = orbits.contiguous()
    if variant == "batch-hard":
        return _batch_hard(distances, orbits[:, None] == orbits)
    return _mine(distances, orbits, variant, margin, max_members, generator)


@accelerated("mine")
def _mine(
    distance_NN: Tensor,
    orbit_N: Tensor,
    variant: Variant,
    margin: float,
    max_members: int | None,
    generator: torch.Generator | None,
) -> Mined:
    """All variants but batch-hard."""
    is_cpu = orbit_N.device.type == "cpu"
    if max_members is None and is_cpu:
        max_members = int(orbit_N.unique(return_counts=True)[1].max())
    positive_NK, is_pair_NK, size_N = positives(orbit_N, max_members)
    if variant == "all":
        return _all(orbit_N[:, None] != orbit_N, positive_NK, is_pair_NK)
    ap_NK = distance_NN.gather(1, positive_NK)
    if variant == "semihard" and is_cpu and ap_NK.shape[1] <= SCAN_LIMIT:
        return _scan_semihard(distance_NN, orbit_N, positive_NK, is_pair_NK, ap_NK, margin)
    if variant == "semihard":
        same_NN = orbit_N[:, None] == orbit_N
        return _every_semihard(distance_NN, same_NN, positive_NK, is_pair_NK, ap_NK, margin)
    blocks = [
        _one_negative(
            distance_NN[rows],
            orbit_N[rows, None] == orbit_N,
            ap_NK[rows],
            variant,
            margin=margin,
            generator=generator,
        )
        for rows in _row_blocks(distance_NN, variant)
    ]
    negative_NK, is_found_NK = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    anchor_NK = torch.arange(len(orbit_N), device=orbit_N.device)[:, None].expand_as(positive_NK)
    valid_NK = is_pair_NK & is_found_NK & (size_N < len(orbit_N))[:, None]
    triplets = (
        index.where(valid_NK, 0).flatten() for index in (anchor_NK, positive_NK, negative_NK)
    )
    return Mined(Triplets(*triplets), valid_NK.flatten())


def _row_blocks(distance_NN: Tensor, variant: str, num_places: int = 1) -> list[slice]:
    """On a CPU as many rows as stay in its cache, elsewhere (and for random draws) all of them."""
    num = step = len(distance_NN)
    if distance_NN.device.type == "cpu" and variant != "semihard-random":
        step = max(1, _CACHE_BYTES // (num * max(1, num_places) * distance_NN.element_size()))
    return [slice(start, start + step) for start in range(0, num, step)]


def _scan_semihard(
    distance_NN: Tensor,
    orbit_N: Tensor,
    positive_NK: Tensor,
    is_pair_NK: Tensor,
    ap_NK: Tensor,
    margin: float,
) -> Mined:
    ap_NK = ap_NK.masked_fill(~is_pair_NK, torch.inf)
    parts = []
    for rows in _row_blocks(distance_NN, "semihard", ap_NK.shape[1]):
        negatives = distance_NN[rows].masked_fill(orbit_N[rows, None] == orbit_N, torch.inf)
        gap = negatives[:, None] - ap_NK[rows, :, None]  # inf - inf is NaN, which is not semi-hard
        anchor, place, negative = ((gap > 0) & (gap <= margin)).nonzero(as_tuple=True)
        anchor = anchor + rows.start  # copies, so that the table of all three is let go
        parts.append((anchor, positive_NK[anchor, place], negative.clone()))
    triplets = Triplets(*(torch.cat(part) for part in zip(*parts, strict=True)))
    return Mined(triplets, torch.ones_like(triplets.anchor, dtype=torch.bool))


def check_variant(variant: str) -> None:
    """Refuse a name that is no variant, and name the nearest one."""
    check_choice("mining", variant, get_args(Variant))


def _check(distance_NN: Tensor, orbit_N: Tensor, variant: str, max_members: int | None) -> None:
    check_variant(variant)
    check_orbits(distance_NN, orbit_N)
    if max_members is not None and max_members < 1:
        raise ValueError(f"max_members is {max_members}; give at least 1, or None for no promise")


def check_orbits(distance_NN: Tensor, orbit_N: Tensor) -> None:
    if orbit_N.ndim != 1 or distance_NN.shape != (len(orbit_N), len(orbit_N)):
        raise ValueError(
            f"distances have shape {tuple(distance_NN.shape)} and orbits {tuple(orbit_N.shape)}; "
            "pass an N x N matrix and N orbit ids"
        )
    if orbit_N.is_floating_point() or orbit_N.is_complex() or orbit_N.dtype == torch.bool:
        raise TypeError(f"orbits have dtype {orbit_N.dtype}; orbit ids are integers")


def positives(orbit_N: Tensor, max_members: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the other rows of its orbit in ascending order, (N, K), and which places are filled."""
    num = len(orbit_N)
    num_places = min(num, max_members or num) - 1
    order_N = orbit_N.argsort(stable=True)
    sorted_N = orbit_N[order_N]
    start_N = torch.searchsorted(sorted_N, orbit_N)
    size_N = torch.searchsorted(sorted_N, orbit_N, right=True) - start_N
    rank_N = torch.empty_like(order_N)
    rank_N[order_N] = torch.arange(num, device=orbit_N.device)
    rank_N -= start_N
    place_K = torch.arange(num_places, device=orbit_N.device)
    skip_NK = (place_K >= rank_N[:, None]).long()
    is_filled_NK = place_K < (size_N - 1)[:, None]
    source_NK = (start_N[:, None] + place_K + skip_NK).clamp(max=num - 1)
    return order_N[source_NK].where(is_filled_NK, 0), is_filled_NK, size_N


def _one_negative(
    distance_NN: Tensor,
    same_NN: Tensor,
    ap_NK: Tensor,
    variant: Variant,
    *,
    margin: float,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """The row of a negative (N, K) for each pair, and whether the pair has any."""
    negatives_NN = distance_NN.masked_fill(same_NN, torch.inf)
    if variant == "hardest":
        nearest_N1 = negatives_NN.argmin(1, keepdim=True)
        return nearest_N1.expand(ap_NK.shape), torch.ones_like(ap_NK, dtype=torch.bool)
    if variant == "semihard-random":
        return _random_semihard(negatives_NN, ap_NK, margin, generator)
    an_NK, negative_NK = _nearest_farther(negatives_NN, ap_NK)
    if variant == "semihard-nearest":
        return negative_NK, an_NK - ap_NK <= margin
    if an_NK.device.type == "cpu" and not an_NK.isinf().any():
        return negative_NK, torch.ones_like(ap_NK, dtype=torch.bool)
    farthest_N1 = distance_NN.masked_fill(same_NN, -torch.inf).argmax(1, keepdim=True)
    negative_NK = torch.where(an_NK.isinf(), farthest_N1, negative_NK)
    return negative_NK, torch.ones_like(ap_NK, dtype=torch.bool)


def _nearest_farther(negatives_NN: Tensor, ap_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Distance and row of the nearest negative beyond each positive; infinity where there is none."""
    if ap_NK.shape[1] == 0:
        return ap_NK, ap_NK.long()
    if ap_NK.shape[1] > SCAN_LIMIT:
        sorted_NN, row_NN = _in_order(negatives_NN)
        place_NK = torch.searchsorted(sorted_NN, ap_NK, right=True)
        is_none_NK = place_NK == sorted_NN.shape[1]
        place_NK = place_NK.clamp_(max=sorted_NN.shape[1] - 1)
        an_NK = sorted_NN.gather(1, place_NK).masked_fill(is_none_NK, torch.inf)
        return an_NK, row_NN.gather(1, place_NK)
    nearest = [
        negatives_NN.masked_fill((negatives_NN > ap_N1).logical_not_(), torch.inf).min(1)
        for ap_N1 in ap_NK.split(1, dim=1)
    ]
    return torch.stack([n.values for n in nearest], 1), torch.stack([n.indices for n in nearest], 1)


def _in_order(negatives_NN: Tensor) -> tuple[Tensor, Tensor]:
    """Each row from the nearest on, and which columns these are; ties by column.

    On a CPU the bits of a float32, made to ascend with it as an integer, stand above the column in one whole
    number, so that nothing is tied and numpy's vectorised sort serves: several times as fast as a stable one.
    """
    if negatives_NN.device.type != "cpu" or negatives_NN.dtype != torch.float32:
        return negatives_NN.sort(dim=1, stable=True)
    plain_NN = negatives_NN.add(0.0)  # -0.0 is 0.0
    plain_NN.masked_fill_(plain_NN.isnan(), torch.nan)  # of one sign
    key_NN = _ascending(plain_NN.view(torch.int32)).long() << 32
    key_NN |= torch.arange(key_NN.shape[1])
    key_NN.numpy().sort(axis=1)
    return _ascending((key_NN >> 32).int()).view(torch.float32), key_NN & (2**32 - 1)


def _ascending(bits: Tensor) -> Tensor:
    """Of a negative float32 all bits but the sign are turned over; twice is no change."""
    return bits ^ ((bits >> 31) & (2**31 - 1))


def _random_semihard(
    negatives_NN: Tensor, ap_NK: Tensor, margin: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    row_NN, first_NK, stop_NK = _semihard_ranges(negatives_NN, ap_NK, margin)
    draw_NK = torch.rand(ap_NK.shape, generator=generator)
    if ap_NK.is_cuda:
        draw_NK = draw_NK.pin_memory()
    draw_NK = draw_NK.to(ap_NK.device, non_blocking=True)
    place_NK = first_NK + (draw_NK * (stop_NK - first_NK)).long()
    return row_NN.gather(1, place_NK.clamp_(max=row_NN.shape[1] - 1)), stop_NK > first_NK


def _semihard_ranges(
    negatives_NN: Tensor, ap_NK: Tensor, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's negatives by distance, and for each pair the range of places that are semi-hard."""
    sorted_NN, row_NN = _in_order(negatives_NN)
    first_NK = torch.searchsorted(sorted_NN, ap_NK, right=True)
    # Bisect on an - ap <= margin itself: an <= ap + margin rounds differently.
    low_NK, high_NK = first_NK, torch.full_like(first_NK, sorted_NN.shape[1])
    for _ in range(sorted_NN.shape[1].bit_length()):
        middle_NK = (low_NK + high_NK) // 2
        an_NK = sorted_NN.gather(1, middle_NK.clamp(max=sorted_NN.shape[1] - 1))
        is_inside_NK = (an_NK - ap_NK <= margin) & (middle_NK < high_NK)
        low_NK = torch.where(is_inside_NK, middle_NK + 1, low_NK)
        high_NK = torch.where(is_inside_NK, high_NK, middle_NK)
    return row_NN, first_NK, low_NK


def _batch_hard(distance_NN: Tensor, same_NN: Tensor) -> Mined:
    anchor_N = torch.arange(len(distance_NN), device=distance_NN.device)
    is_pair_NN = same_NN.clone().fill_diagonal_(False)
    positive_N = distance_NN.masked_fill(~is_pair_NN, -torch.inf).argmax(1)
    negative_N = distance_NN.masked_fill(same_NN, torch.inf).argmin(1)
    valid_N = is_pair_NN.any(1) & ~same_NN.all(1)
    triplets = (index.where(valid_N, 0) for index in (anchor_N, positive_N, negative_N))
    return Mined(Triplets(*triplets), valid_N)


def _all(is_negative_NN: Tensor, positive_NK: Tensor, is_pair_NK: Tensor) -> Mined:
    anchor_P, place_P = is_pair_NK.nonzero(as_tuple=True)
    negative = is_negative_NN.nonzero(as_tuple=True)[1]
    count_N = is_negative_NN.sum(1)
    start_N = count_N.cumsum(0) - count_N
    return _expand(
        anchor_P, positive_NK[anchor_P, place_P], negative, start_N[anchor_P], count_N[anchor_P]
    )


def _every_semihard(
    distance_NN: Tensor,
    same_NN: Tensor,
    positive_NK: Tensor,
    is_pair_NK: Tensor,
    ap_NK: Tensor,
    margin: float,
) -> Mined:
    negatives_NN = distance_NN.masked_fill(same_NN, torch.inf)
    row_NN, first_NK, stop_NK = _semihard_ranges(negatives_NN, ap_NK, margin)
    anchor_P, place_P = is_pair_NK.nonzero(as_tuple=True)
    first_P, stop_P = first_NK[anchor_P, place_P], stop_NK[anchor_P, place_P]
    mined = _expand(
        anchor_P,
        positive_NK[anchor_P, place_P],
        row_NN.flatten(),
        anchor_P * row_NN.shape[1] + first_P,
        stop_P - first_P,
    )
    anchor, positive, negative = mined.triplets
    num = len(distance_NN)
    order = ((anchor * num + positive) * num + negative).argsort()
    return Mined(Triplets(anchor[order], positive[order], negative[order]), mined.valid)


def _expand(
    anchor_P: Tensor, positive_P: Tensor, negatives: Tensor, start_P: Tensor, count_P: Tensor
) -> Mined:
    """Join each of P pairs with its own stretch of a flat list of negatives."""
    end_P = count_P.cumsum(0)
    total = int(end_P[-1]) if len(end_P) else 0
    pair_T = torch.repeat_interleave(count_P, output_size=total)
    place_T = torch.arange(total, device=anchor_P.device) - (end_P - count_P)[pair_T]
    triplets = Triplets(anchor_P[pair_T], positive_P[pair_T], negatives[start_P[pair_T] + place_T])
    return Mined(triplets, torch.ones(total, dtype=torch.bool, device=anchor_P.device))
