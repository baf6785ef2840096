"""Squared errors of images, forward and backward as one kernel each."""

import ctypes
import functools
from typing import Any, Literal

import torch
from torch import Tensor

from orbitset.kernels.nvrtc import Kernel, pointer, source

_THREADS = 256


@functools.cache
def _kernel(name: Literal["squared_errors", "squared_errors_gradient"]) -> Kernel:
    return Kernel(source("squared_error.cu", {"THREADS": _THREADS}), name, threads=_THREADS)


class SquaredErrors(torch.autograd.Function):
    """Sum of squared differences of each image to its target, (N,); targets get no gradient."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, targets: Tensor) -> Tensor:
        images, targets = images.contiguous(), targets.contiguous()
        ctx.save_for_backward(images, targets)
        errors = torch.empty(len(images), device=images.device)
        _launch("squared_errors", images, targets, errors)
        return errors

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, None]:
        images, targets = ctx.saved_tensors
        gradient = torch.empty_like(images)
        _launch("squared_errors_gradient", images, targets, arriving.contiguous(), gradient)
        return gradient, None


def _launch(
    name: Literal["squared_errors", "squared_errors_gradient"], images: Tensor, *others: Tensor
) -> None:
    if len(images) == 0:
        return
    device = images.device
    *read, written = (pointer(t, torch.float32, device) for t in (images, *others))
    with torch.cuda.device(device):
        _kernel(name)((len(images), 1), *read, ctypes.c_int(images[0].numel()), written)
