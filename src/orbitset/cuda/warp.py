"""The affine warp as one kernel."""

import ctypes
import functools

import torch
from torch import Tensor

from orbitset.cuda.nvrtc import Kernel, pointer, serve, source

_THREADS = 256


@functools.cache
def _kernel() -> Kernel:
    return Kernel(source("warp.cu", {"THREADS": _THREADS}), "warp", threads=_THREADS)


def serves_warp(
    images_NCHW: Tensor, rows_B: Tensor | None, params_B5: Tensor, canvas_px: int
) -> bool:
    is_plain = images_NCHW.dtype == torch.uint8 and not params_B5.requires_grad
    return is_plain and serve(images_NCHW, params_B5)


def warp(images_NCHW: Tensor, rows_B: Tensor | None, params_B5: Tensor, canvas_px: int) -> Tensor:
    """As `orbitset.orbits.affine.warp`, for uint8 images on a GPU."""
    device = images_NCHW.device
    images = images_NCHW.contiguous()
    channels, height, width = images.shape[1:]
    if rows_B is None and len(params_B5) != len(images):
        raise ValueError(f"{len(params_B5)} parameters for {len(images)} images; give one each")
    is_one_for_all = params_B5.stride(0) == 0 and len(params_B5) > 0
    params = params_B5.float()
    params = params[:1].contiguous() if is_one_for_all else params.contiguous()
    rows = None if rows_B is None else rows_B.long().contiguous()
    out = torch.empty(len(params_B5), channels, canvas_px, canvas_px, device=device)
    if len(out) == 0:
        return out
    blocks = -(-canvas_px * canvas_px // (4 * _THREADS))
    with torch.cuda.device(device):
        _kernel()(
            (len(out), blocks),
            pointer(images, torch.uint8, device),
            pointer(rows, torch.int64, device),
            pointer(params, torch.float32, device),
            ctypes.c_int(0 if is_one_for_all else 5),
            pointer(out, torch.float32, device),
            *(ctypes.c_int(n) for n in (channels, height, width, canvas_px)),
        )
    return out
