"""Mining and the triplet loss as a handful of kernels, held to `orbitset.losses` by tests."""

import ctypes
import functools
from typing import Any, Literal

import torch
from torch import Tensor

from orbitset.cuda.nvrtc import Kernel, pointer, serve, source
from orbitset.losses.distances import distance_matrix
from orbitset.losses.mining import Mined, Triplets, check_orbits
from orbitset.precision import products_in

_THREADS = 128
_VARIANTS = {"semihard-else-farthest": 0, "semihard-nearest": 1, "hardest": 2}
_MOST_PLACES = 8192
"""Positives of an anchor are kept in shared memory."""
_MOST_ROWS = 2048
"""Of each positive 16 bytes are kept there."""
_FEW = 2**15
"""Up to so many triplets, distances are computed one by one."""
_FEW_EDGES = 16
"""Up to so many triplets for each code, what they do to it is added up one by one."""
_ROWS, _HELD = 8, 8
"""How many rows of distances a block takes, and how many entries of a code a thread holds."""


@functools.cache
def _kernel(
    name: Literal[
        "distances_from_products",
        "mine",
        "hinges",
        "sum_hinges",
        "scatter_weights",
        "pull",
        "weigh_every",
        "laplacian",
    ],
    shared_bytes: int = 0,
) -> Kernel:
    return Kernel(triplets_source(), name, threads=_THREADS, shared_bytes=shared_bytes)


def triplets_source() -> str:
    return source("triplets.cu", {"THREADS": _THREADS, "ROWS": _ROWS, "HELD": _HELD})


def serves_distances(products_NN: Tensor) -> bool:
    is_underived = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    is_plain = is_underived and products_NN.dtype == torch.float32 and len(products_NN) > 0
    return is_plain and serve(products_NN)


def distances_from_products(products_NN: Tensor) -> Tensor:
    """Squared distances of codes from their products with each other."""
    num, device = len(products_NN), products_NN.device
    distances = torch.empty_like(products_NN)
    with torch.cuda.device(device):
        _kernel("distances_from_products")(
            (-(-num // _ROWS), -(-num // _THREADS)),
            pointer(products_NN, torch.float32, device),
            ctypes.c_int(num),
            pointer(distances, torch.float32, device),
        )
    return distances


def serves_mining(
    distance_NN: Tensor,
    orbit_N: Tensor,
    variant: str,
    margin: float,
    max_members: int | None,
    generator: torch.Generator | None,
) -> bool:
    is_known = distance_NN.dtype == torch.float32 and variant in _VARIANTS
    places = _places(orbit_N, max_members)
    return is_known and 0 < places <= _MOST_PLACES and serve(distance_NN, orbit_N)


def mine(
    distance_NN: Tensor,
    orbit_N: Tensor,
    variant: str,
    margin: float,
    max_members: int | None,
    generator: torch.Generator | None,
) -> Mined:
    places = _places(orbit_N, max_members)
    *triplets, valid = mine_one_negative(
        distance_NN, orbit_N, variant, margin=margin, places=places
    )
    return Mined(Triplets(*triplets), valid)


def _places(orbit_N: Tensor, max_members: int | None) -> int:
    """The most positives that an anchor can have."""
    return min(len(orbit_N), max_members or len(orbit_N)) - 1


def mine_one_negative(
    distance_NN: Tensor, orbit_N: Tensor, variant: str, *, margin: float, places: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Anchors, positives, negatives and validity, each (N * places,)."""
    num, device = len(orbit_N), orbit_N.device
    distance_NN, orbit_N = distance_NN.contiguous(), orbit_N.long().contiguous()
    found = [torch.empty(num * places, dtype=torch.int64, device=device) for _ in range(3)]
    valid = torch.empty(num * places, dtype=torch.bool, device=device)
    shared_bytes = 4 * max(32, 1 << (places - 1).bit_length())  # few kernels for all numbers
    with torch.cuda.device(device):
        _kernel("mine", shared_bytes)(
            (num, 1),
            pointer(distance_NN, torch.float32, device),
            pointer(orbit_N, torch.int64, device),
            ctypes.c_int(num),
            ctypes.c_int(places),
            ctypes.c_int(_VARIANTS[variant]),
            ctypes.c_float(margin),
            *(pointer(index, torch.int64, device) for index in found),
            pointer(valid, torch.bool, device),
        )
    return found[0], found[1], found[2], valid


class TripletTerms(torch.autograd.Function):
    """Sum over anchors of the mean hinge over their triplets, and the fraction that is active."""

    @staticmethod
    def forward(
        ctx: Any,
        codes_ND: Tensor,
        anchor_T: Tensor,
        positive_T: Tensor,
        negative_T: Tensor,
        valid_T: Tensor | None,
        distance_NN: Tensor | None,
        margin: float,
    ) -> tuple[Tensor, Tensor]:
        device = codes_ND.device
        codes = codes_ND.contiguous()
        triplets = [t.long().contiguous() for t in (anchor_T, positive_T, negative_T)]
        indices = [pointer(t, torch.int64, device) for t in triplets]
        valid = None if valid_T is None else valid_T.contiguous()
        valid_pointer = pointer(valid, torch.bool, device)
        num, size, count = *codes.shape, len(anchor_T)
        hinge_T = torch.empty(count, device=device)
        count_N = torch.zeros(num, dtype=torch.int32, device=device)
        blocks = max(1, min(64, count // _THREADS))
        sums = torch.empty(3, blocks, device=device)
        with torch.cuda.device(device):
            kernel = _kernel("hinges")
            kernel(
                (max(1, min(-(-count * 32 // _THREADS), kernel.resident_blocks)), 1),
                pointer(codes, torch.float32, device),
                pointer(distance_NN, torch.float64, device),
                *indices,
                valid_pointer,
                *(ctypes.c_int(n) for n in (count, num, size)),
                ctypes.c_float(margin),
                pointer(hinge_T, torch.float32, device),
                pointer(count_N, torch.int32, device),
            )
            _kernel("sum_hinges")(
                (blocks, 1),
                pointer(hinge_T, torch.float32, device),
                indices[0],
                valid_pointer,
                pointer(count_N, torch.int32, device),
                ctypes.c_int(count),
                pointer(sums, torch.float32, device),
            )
        loss, active, valid_count = sums.sum(1).unbind()
        ctx.save_for_backward(codes, hinge_T, count_N, *triplets)
        active = active / valid_count.clamp(min=1)
        ctx.mark_non_differentiable(active)
        return loss, active

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        codes, hinge_T, count_N, *triplets = ctx.saved_tensors
        num, device = len(codes), codes.device
        weights = torch.zeros(num, num, dtype=torch.int64, device=device)
        with torch.cuda.device(device):
            _kernel("scatter_weights")(
                (max(1, -(-len(hinge_T) // _THREADS)), 1),
                pointer(hinge_T, torch.float32, device),
                *(pointer(t, torch.int64, device) for t in triplets),
                pointer(count_N, torch.int32, device),
                ctypes.c_int(len(hinge_T)),
                ctypes.c_int(num),
                pointer(weights, torch.int64, device),
            )
        if len(hinge_T) <= _FEW_EDGES * num:
            return _pulled(codes, weights, grad), *(None,) * 6
        return gradient_by_counts(codes, weights, grad, is_one_way=False), *(None,) * 6


def _pulled(codes_ND: Tensor, weights_NN: Tensor, grad: Tensor) -> Tensor:
    (num, size), device = codes_ND.shape, codes_ND.device
    gradient = torch.empty_like(codes_ND)
    factor = 2 * grad.float()
    if gradient.numel():
        with torch.cuda.device(device):
            _kernel("pull")(
                (num, -(-size // (_THREADS * _HELD))),
                pointer(codes_ND, torch.float32, device),
                pointer(weights_NN, torch.int64, device),
                pointer(factor, torch.float32, device),
                *(ctypes.c_int(n) for n in (num, size)),
                pointer(gradient, torch.float32, device),
            )
    return gradient


def gradient_by_counts(
    codes_ND: Tensor, weights_NN: Tensor, grad: Tensor, *, is_one_way: bool = True
) -> Tensor:
    """Of the sum of weights times distances; weights are whole numbers, as the kernels count them, and lie in
    one place of each pair or in both."""
    num, device = len(codes_ND), codes_ND.device
    laplacian = torch.empty(num, num, device=device)
    factor = 2 * grad.float()
    with torch.cuda.device(device):
        _kernel("laplacian")(
            (num, 1),
            pointer(weights_NN, torch.int64, device),
            pointer(factor, torch.float32, device),
            *(ctypes.c_int(n) for n in (num, is_one_way)),
            pointer(laplacian, torch.float32, device),
        )
    with products_in("ieee", device):
        # rows of the Laplacian sum to zero but for rounding, which an offset would blow up
        return laplacian @ (codes_ND - codes_ND[:16].mean(0))


def serves_every_triplet(
    codes_ND: Tensor, orbit_N: Tensor, margin: float, is_semihard: bool
) -> bool:
    is_plain = not is_semihard and codes_ND.dtype == torch.float32
    return is_plain and 0 < len(codes_ND) <= _MOST_ROWS and serve(codes_ND, orbit_N)


def every_triplet_terms(
    codes_ND: Tensor, orbit_N: Tensor, margin: float, is_semihard: bool
) -> tuple[Tensor, Tensor]:
    loss, active = _EveryTriplet.apply(codes_ND, orbit_N, margin)
    return loss, active


class _EveryTriplet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, codes_ND: Tensor, orbit_N: Tensor, margin: float
    ) -> tuple[Tensor, Tensor]:
        distance_NN = distance_matrix(codes_ND.double())
        check_orbits(distance_NN, orbit_N)
        weights_NN, loss, active = weigh_every(distance_NN, orbit_N, margin=margin)
        ctx.save_for_backward(codes_ND, weights_NN)
        active = active.float()
        ctx.mark_non_differentiable(active)
        return loss.float(), active

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        codes_ND, weights_NN = ctx.saved_tensors
        return gradient_by_counts(codes_ND, weights_NN, grad), None, None


def weigh_every(
    distance_NN: Tensor, orbit_N: Tensor, *, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Over every triplet: weights of the distances, mean hinges of anchors added up, and the active share."""
    num, device = len(orbit_N), orbit_N.device
    distance_NN, orbit_N = distance_NN.contiguous(), orbit_N.long().contiguous()
    weights = torch.empty(num, num, dtype=torch.int64, device=device)
    sums = torch.empty(3, num, dtype=torch.float64, device=device)
    shared_bytes = 16 * max(32, 1 << (num - 1).bit_length())
    with torch.cuda.device(device):
        _kernel("weigh_every", shared_bytes)(
            (num, 1),
            pointer(distance_NN, torch.float64, device),
            pointer(orbit_N, torch.int64, device),
            ctypes.c_int(num),
            ctypes.c_double(margin),
            pointer(weights, torch.int64, device),
            pointer(sums, torch.float64, device),
        )
    loss, active, count = sums.sum(1).unbind()
    return weights, loss, active / count.clamp(min=1)


def serves_triplets(
    codes_ND: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor],
    margin: float,
    valid_T: Tensor | None,
    distance_NN: Tensor | None = None,
) -> bool:
    is_plain = distance_NN is None and codes_ND.dtype == torch.float32
    return is_plain and serve(codes_ND, *triplets)


def triplet_terms(
    codes_ND: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor],
    margin: float,
    valid_T: Tensor | None,
    distance_NN: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`distance_NN`, in float64, saves computing each distance; it is made here where triplets are many."""
    num = len(codes_ND)
    if distance_NN is None and len(triplets[0]) > max(_FEW, num * num // 32):
        distance_NN = distance_matrix(codes_ND.detach().double())
    loss, active = TripletTerms.apply(codes_ND, *triplets, valid_T, distance_NN, margin)
    return loss, active
