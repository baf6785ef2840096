"""Kernels of our own for NVIDIA GPUs. Everything they do, plain torch code beside them does too."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_is_enabled = True


@contextmanager
def disabled() -> Iterator[None]:
    """Within it plain torch code is used throughout."""
    global _is_enabled
    before, _is_enabled = _is_enabled, False
    try:
        yield
    finally:
        _is_enabled = before


def serve(*tensors: Tensor) -> bool:
    """Whether kernels may be used on these: all on one GPU for which they can be compiled."""
    devices = {tensor.device for tensor in tensors}
    if not _is_enabled or len(devices) != 1:
        return False
    device = devices.pop()
    return device.type == "cuda" and are_available(device)


@functools.cache
def are_available(device: torch.device) -> bool:
    """Whether kernels can be compiled and run there: an NVIDIA GPU, Ampere or later, and its compiler."""
    from orbitset.kernels.nvrtc import CompileError, compile_cubin

    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability(device)
    try:
        compile_cubin('extern "C" __global__ void nothing() {}', f"sm_{major}{minor}")
    except CompileError:
        return False
    return major >= 8
