"""Adam's step over many tensors as one launch, held to torch's by tests."""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from orbitset.kernels.nvrtc import Kernel, source

_THREADS, _EACH = 256, 4
_MAX_TENSORS = 64
"""A launch can be given 4 KiB."""


class _Tensor(ctypes.Structure):
    """Mirrors `struct Tensor` of adam.cu."""

    _fields_ = [
        ("weights", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("mean", ctypes.c_void_p),
        ("square", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("count", ctypes.c_longlong),
        ("first_block", ctypes.c_longlong),
    ]


@functools.cache
def _kernel() -> Kernel:
    return Kernel(adam_source(), "adam", threads=_THREADS)


def adam_source() -> str:
    constants = {"THREADS": _THREADS, "EACH": _EACH, "MAX_TENSORS": _MAX_TENSORS}
    return source("adam.cu", constants) + (
        f'static_assert(sizeof(Tensor) == {ctypes.sizeof(_Tensor)}, "as Python has it");\n'
    )


Row = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Weights, their gradient, the two means that decay and the number of steps, this one counted."""


def can_update(row: Row) -> bool:
    """Whether numbers that belong together lie in the same places."""
    weights, *others, steps = row
    return (
        all(t.dtype == torch.float32 and t.device == weights.device for t in row)
        and _fills_its_memory(weights)
        and all(t.stride() == weights.stride() and t.shape == weights.shape for t in others)
        and steps.numel() == 1
    )


def _fills_its_memory(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def update(rows: Sequence[Row], rate: Tensor, *, betas: tuple[float, float], eps: float) -> None:
    for start in range(0, len(rows), _MAX_TENSORS):
        table = (_Tensor * _MAX_TENSORS)()
        blocks = 0
        part = rows[start : start + _MAX_TENSORS]
        for at, row in enumerate(part):
            count = row[0].numel()
            table[at] = _Tensor(*(tensor.data_ptr() for tensor in row), count, blocks)
            blocks += -(-count // (_THREADS * _EACH))
        with torch.cuda.device(rate.device):
            _kernel()(
                (max(1, blocks), 1),
                table,
                ctypes.c_int(len(part)),
                ctypes.c_void_p(rate.data_ptr()),
                *map(ctypes.c_double, betas),
                ctypes.c_float(eps),
            )
        torch.autograd.graph.increment_version([row[0] for row in part])
