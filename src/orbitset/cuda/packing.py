"""Weights of convolutions in bfloat16 and in the order in which the tensor cores want them."""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from orbitset.cuda.nvrtc import Kernel, source

MAX_LAYERS = 16
_THREADS = 256
_PLACE_BITS = 24
"""Of a weight's place in its layer; above them is the layer's number."""


def place(index: Tensor, layer: int) -> Tensor:
    """Where `pack` finds numbers that lie at these places of a layer; -1 stays what it is."""
    return torch.where(index < 0, -1, index | layer << _PLACE_BITS).int()


def pack(weights: Sequence[Tensor], places: Tensor) -> Tensor:
    """The weights at these places, a multiple of 8, of up to MAX_LAYERS layers; -1: a zero."""
    return (_packed_by_kernel if places.is_cuda else _packed_plainly)(weights, places)


def _packed_by_kernel(weights: Sequence[Tensor], places: Tensor) -> Tensor:
    packed = torch.empty(len(places), dtype=torch.bfloat16, device=places.device)
    kernel, eighths = _kernel(), len(places) // 8
    kernel(
        (min(-(-eighths // _THREADS), kernel.resident_blocks), 1),
        (ctypes.c_void_p * MAX_LAYERS)(*(weight.data_ptr() for weight in weights)),
        *(ctypes.c_void_p(places.data_ptr()), ctypes.c_int(eighths)),
        ctypes.c_void_p(packed.data_ptr()),
    )
    return packed


def _packed_plainly(weights: Sequence[Tensor], places: Tensor) -> Tensor:
    layers, index = places >> _PLACE_BITS, places & (1 << _PLACE_BITS) - 1
    packed = torch.zeros(len(places), dtype=torch.bfloat16, device=places.device)
    for layer, weight in enumerate(weights):
        mine = layers == layer
        packed[mine] = weight.flatten()[index[mine].long()].bfloat16()
    return packed


@functools.cache
def _kernel() -> Kernel:
    return Kernel(packing_source(), "pack_weights", threads=_THREADS)


def packing_source() -> str:
    constants = {"THREADS": _THREADS, "MAX_LAYERS": MAX_LAYERS, "PLACE_BITS": _PLACE_BITS}
    return source("packing.cu", constants)


def fragment_indices(inputs: int, outputs: int, *, transposed: bool) -> Tensor:
    """Where each number a convolution wants lies in channels-last weights [out][tap][in]; -1: a zero.

    A tensor core's second operand is spread over a warp: lane 4g + t holds rows 2t, 2t + 1, 2t + 8 and
    2t + 9 of column g. The order is [tap][16 rows][16 columns][lane][4 registers][2 halves]. Transposed,
    taps are turned round and inputs and outputs change places. A single input channel is read as nine
    channels of one tap; a single output channel is padded to 16.
    """
    rows, columns = (outputs, max(16, inputs)) if transposed else (max(16, inputs), outputs)
    taps = 1 if not transposed and inputs == 1 else 9
    shape = (taps, rows // 16, columns // 16, 8, 4, 4, 2)
    tap, step, block, g, t, register, half = torch.meshgrid(
        *(torch.arange(n) for n in shape), indexing="ij"
    )
    row = step * 16 + register % 2 * 8 + 2 * t + half
    column = block * 16 + register // 2 * 8 + g
    if transposed:
        index, is_real = (row * 9 + 8 - tap) * inputs + column, column < inputs
    elif inputs == 1:
        index, is_real = column * 9 + row, row < 9
    else:
        index, is_real = (column * 9 + tap) * inputs + row, row >= 0
    return torch.where(is_real, index, -1).flatten()
