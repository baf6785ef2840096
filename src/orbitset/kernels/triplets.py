"""Mining and the triplet loss as a handful of kernels, held to `orbitset.losses` by tests."""

import ctypes
import functools
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from orbitset.kernels.nvrtc import Kernel
from orbitset.precision import products_in

_THREADS = 128
_VARIANTS = {"semihard-else-farthest": 0, "semihard-nearest": 1, "hardest": 2}
_MOST_PLACES = 8192
"""Positives of an anchor are kept in shared memory."""
_FEW = 2**15
"""Up to so many triplets, distances are computed one by one."""


def can_mine(distance_NN: Tensor, variant: str, places: int) -> bool:
    return (
        distance_NN.dtype == torch.float32 and variant in _VARIANTS and 0 < places <= _MOST_PLACES
    )


@functools.cache
def _kernel(
    name: Literal["mine", "hinges", "sum_hinges", "scatter_weights", "laplacian"],
) -> Kernel:
    folder = Path(__file__).parent
    source = (folder / "common.cu").read_text() + f"constexpr int THREADS = {_THREADS};\n"
    source += (folder / "triplets.cu").read_text()
    shared = 4 * _MOST_PLACES if name == "mine" else 0
    return Kernel(source, name, threads=_THREADS, shared_bytes=shared)


def mine_one_negative(
    distance_NN: Tensor, orbit_N: Tensor, variant: str, *, margin: float, places: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Anchors, positives, negatives and validity, each (N * places,)."""
    num = len(orbit_N)
    distance_NN, orbit_N = distance_NN.contiguous(), orbit_N.long().contiguous()
    found = [torch.empty(num * places, dtype=torch.int64, device=orbit_N.device) for _ in range(3)]
    valid = torch.empty(num * places, dtype=torch.bool, device=orbit_N.device)
    _kernel("mine")(
        (num, 1),
        _pointer(distance_NN),
        _pointer(orbit_N),
        ctypes.c_int(num),
        ctypes.c_int(places),
        ctypes.c_int(_VARIANTS[variant]),
        ctypes.c_float(margin),
        *map(_pointer, found),
        _pointer(valid),
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
        codes = codes_ND.contiguous()
        triplets = [t.contiguous() for t in (anchor_T, positive_T, negative_T)]
        valid = None if valid_T is None else valid_T.contiguous()
        num, size, count = *codes.shape, len(anchor_T)
        hinge_T = torch.empty(count, device=codes.device)
        count_N = torch.zeros(num, dtype=torch.int32, device=codes.device)
        kernel = _kernel("hinges")
        kernel(
            (max(1, min(-(-count * 32 // _THREADS), kernel.resident_blocks)), 1),
            _pointer(codes),
            _pointer(distance_NN),
            *map(_pointer, triplets),
            _pointer(valid),
            *(ctypes.c_int(n) for n in (count, num, size)),
            ctypes.c_float(margin),
            _pointer(hinge_T),
            _pointer(count_N),
        )
        blocks = max(1, min(64, count // 1024))
        sums = torch.empty(3, blocks, device=codes.device)
        _kernel("sum_hinges")(
            (blocks, 1),
            _pointer(hinge_T),
            _pointer(triplets[0]),
            _pointer(valid),
            _pointer(count_N),
            ctypes.c_int(count),
            _pointer(sums),
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
        num = len(codes)
        weights = torch.zeros(num, num, dtype=torch.int64, device=codes.device)
        _kernel("scatter_weights")(
            (max(1, -(-len(hinge_T) // _THREADS)), 1),
            _pointer(hinge_T),
            *map(_pointer, triplets),
            _pointer(count_N),
            ctypes.c_int(len(hinge_T)),
            ctypes.c_int(num),
            _pointer(weights),
        )
        laplacian = torch.empty(num, num, device=codes.device)
        factor = 2 * grad.float()
        _kernel("laplacian")(
            (num, 1), _pointer(weights), _pointer(factor), ctypes.c_int(num), _pointer(laplacian)
        )
        with products_in("ieee", codes.device):
            pulled = laplacian @ codes
        return pulled, *(None,) * 6


def triplet_terms(
    codes_ND: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor],
    valid_T: Tensor | None,
    distance_NN: Tensor | None,
    *,
    margin: float,
) -> tuple[Tensor, Tensor]:
    """`distance_NN`, in float64, saves computing each distance where triplets are many."""
    loss, active = TripletTerms.apply(codes_ND, *triplets, valid_T, distance_NN, margin)
    return loss, active


def are_few(triplets: tuple[Tensor, Tensor, Tensor], num: int) -> bool:
    """Whether distances are best computed one by one."""
    return len(triplets[0]) <= max(_FEW, num * num // 32)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
