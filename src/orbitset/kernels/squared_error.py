"""Squared errors of images, forward and backward as one kernel each."""

import ctypes
import functools
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from orbitset.kernels.nvrtc import Kernel

_THREADS = 256


@functools.cache
def _kernel(name: Literal["squared_errors", "squared_errors_gradient"]) -> Kernel:
    folder = Path(__file__).parent
    source = (folder / "common.cu").read_text() + f"constexpr int THREADS = {_THREADS};\n"
    return Kernel(source + (folder / "squared_error.cu").read_text(), name, threads=_THREADS)


class SquaredErrors(torch.autograd.Function):
    """Sum of squared differences of each image to its target, (N,); targets get no gradient."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, targets: Tensor) -> Tensor:
        images, targets = images.contiguous(), targets.contiguous()
        ctx.save_for_backward(images, targets)
        errors = torch.empty(len(images), device=images.device)
        if len(images):
            pointers = (ctypes.c_void_p(t.data_ptr()) for t in (images, targets))
            size = ctypes.c_int(images[0].numel())
            _kernel("squared_errors")(
                (len(images), 1), *pointers, size, ctypes.c_void_p(errors.data_ptr())
            )
        return errors

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, None]:
        images, targets = ctx.saved_tensors
        gradient, arriving = torch.empty_like(images), arriving.contiguous()
        if len(images):
            pointers = (ctypes.c_void_p(t.data_ptr()) for t in (images, targets, arriving))
            size = ctypes.c_int(images[0].numel())
            _kernel("squared_errors_gradient")(
                (len(images), 1), *pointers, size, ctypes.c_void_p(gradient.data_ptr())
            )
        return gradient, None
