"""Batch norm of bfloat16 codes and its gradient, each as one kernel.

Shapes: N codes of D entries.
"""

import ctypes
import functools
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn

from orbitset.cuda.nvrtc import Kernel, pointer, source

_THREADS, _ENTRIES = 1024, 16
"""Of a block, and how many entries of the codes it takes."""


def can_normalise(norm: nn.Module, num: int) -> TypeGuard[nn.BatchNorm1d]:
    """On a GPU, in training. A single code has no variance: that is torch's to refuse."""
    return (
        type(norm) is nn.BatchNorm1d
        and norm.training
        and norm.affine
        and norm.weight.is_cuda
        and norm.momentum is not None
        and norm.track_running_stats
        and norm.num_features % _ENTRIES == 0
        and num > 1
        and all(map(_is_aligned, (norm.weight, norm.bias, norm.running_mean, norm.running_var)))
    )


def _is_aligned(tensor: Tensor | None) -> bool:
    """Numbers are read two at a time."""
    return tensor is not None and tensor.data_ptr() % 8 == 0


@functools.cache
def _kernel(name: Literal["normalise", "normalise_gradient"]) -> Kernel:
    return Kernel(code_norm_source(), name, threads=_THREADS)


def code_norm_source() -> str:
    return source("code_norm.cu", {"THREADS": _THREADS, "ENTRIES": _ENTRIES})


def normalise(
    linear_ND: Tensor, norm: nn.BatchNorm1d, rounded_ND: Tensor | None
) -> tuple[Tensor, "Normalised"]:
    """Codes from what lies before the batch norm, whose running statistics are updated, and the way back.

    The codes in bfloat16 go into `rounded_ND`, if it is given.
    """
    (num, size), device = linear_ND.shape, linear_ND.device
    codes_ND = torch.empty(num, size, device=device)
    saved = torch.empty(2, size, device=device)
    assert norm.momentum is not None
    with torch.cuda.device(device):
        _kernel("normalise")(
            (size // _ENTRIES, 1),
            pointer(linear_ND, torch.bfloat16, device),
            *(pointer(p.detach(), torch.float32, device) for p in (norm.weight, norm.bias)),
            *(ctypes.c_int(n) for n in (num, size)),
            *(ctypes.c_float(x) for x in (norm.eps, norm.momentum)),
            pointer(norm.running_mean, torch.float32, device),
            pointer(norm.running_var, torch.float32, device),
            pointer(norm.num_batches_tracked, torch.int64, device),
            pointer(saved, torch.float32, device),
            pointer(codes_ND, torch.float32, device),
            pointer(rounded_ND, torch.bfloat16, device),
        )
    return codes_ND, Normalised(linear_ND, norm, saved)


class Normalised:
    """One batch on its way back. It does not hold the codes, which hold it as their gradient's function."""

    def __init__(self, linear_ND: Tensor, norm: nn.BatchNorm1d, saved: Tensor) -> None:
        self.linear_ND, self.norm, self._saved = linear_ND, norm, saved

    def backward(
        self, grad_ND: Tensor, more_ND: Tensor | None, rounded_ND: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of weight and bias of the norm, and of a bias before it.

        `more_ND`, in bfloat16, is added to the codes' gradient; that of what lies before the batch norm goes
        into `rounded_ND`.
        """
        (num, size), device = self.linear_ND.shape, self.linear_ND.device
        grad = grad_ND.contiguous()
        grad = grad if _is_aligned(grad) else grad.clone()
        sums = torch.empty(3, size, device=device)
        with torch.cuda.device(device):
            _kernel("normalise_gradient")(
                (size // _ENTRIES, 1),
                pointer(self.linear_ND, torch.bfloat16, device),
                pointer(self._saved, torch.float32, device),
                pointer(self.norm.weight.detach(), torch.float32, device),
                pointer(grad, torch.float32, device),
                pointer(more_ND, torch.bfloat16, device),
                *(ctypes.c_int(n) for n in (num, size)),
                pointer(rounded_ND, torch.bfloat16, device),
                *(pointer(part, torch.float32, device) for part in sums),
            )
        weight, bias, before = sums.unbind()
        return weight, bias, before
