"""Kernels of our own for NVIDIA GPUs. Everything they do, plain torch code beside them does too."""

import functools

import torch


@functools.cache
def are_available() -> bool:
    """Whether kernels can be compiled and run here: an NVIDIA GPU, Ampere or later, and its compiler."""
    from orbitset.kernels.nvrtc import CompileError, nvrtc

    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    try:
        nvrtc()
    except CompileError:
        return False
    return torch.cuda.get_device_capability() >= (8, 0)
