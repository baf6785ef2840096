"""The squared error of images, forward and backward as one kernel each."""

import ctypes
import functools
from typing import Any, Literal

import torch
from torch import Tensor

from orbitset.cuda.nvrtc import Kernel, pointer, serve, source

_THREADS = 256


@functools.cache
def _kernel(name: Literal["squared_errors", "squared_errors_gradient"]) -> Kernel:
    return Kernel(source("squared_error.cu", {"THREADS": _THREADS}), name, threads=_THREADS)


class SquaredError(torch.autograd.Function):
    """Sum of squared differences of images to their targets, times a weight; targets get no gradient."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, targets: Tensor, weight: float) -> Tensor:
        images, targets = images.contiguous(), targets.contiguous()
        ctx.save_for_backward(images, targets)
        ctx.weight = weight
        errors = torch.empty(len(images), device=images.device)
        _launch("squared_errors", images, targets, None, weight, errors)
        return errors.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, None, None]:
        images, targets = ctx.saved_tensors
        gradient = torch.empty_like(images)
        _launch("squared_errors_gradient", images, targets, arriving, ctx.weight, gradient)
        return gradient, None, None


def _launch(
    name: Literal["squared_errors", "squared_errors_gradient"],
    images: Tensor,
    targets: Tensor,
    arriving: Tensor | None,
    weight: float,
    written: Tensor,
) -> None:
    device = images.device
    with torch.cuda.device(device):
        _kernel(name)(
            (len(images), 1),
            *(pointer(t, torch.float32, device) for t in (images, targets, arriving)),
            ctypes.c_float(weight),
            ctypes.c_int(images[0].numel()),
            pointer(written, torch.float32, device),
        )


def serves_squared_error(images: Tensor, targets: Tensor, weight: float, reduction: str) -> bool:
    is_plain = images.dtype == targets.dtype == torch.float32 and not targets.requires_grad
    return is_plain and len(images) > 0 and serve(images, targets)


def squared_error(images: Tensor, targets: Tensor, weight: float, reduction: str) -> Tensor:
    by_images = 1 / len(images) if reduction == "mean" else 1
    error: Tensor = SquaredError.apply(images, targets, weight * by_images)
    return error
