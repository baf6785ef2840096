"""The affine warp as one kernel."""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from orbitset.kernels.nvrtc import Kernel

_THREADS = 256


@functools.cache
def _kernel() -> Kernel:
    folder = Path(__file__).parent
    source = (folder / "common.cu").read_text() + f"constexpr int THREADS = {_THREADS};\n"
    return Kernel(source + (folder / "warp.cu").read_text(), "warp", threads=_THREADS)


def warp(images_NCHW: Tensor, rows_B: Tensor | None, params_B5: Tensor, canvas_px: int) -> Tensor:
    """As `orbitset.orbits.affine.warp`, for uint8 images on a GPU."""
    images = images_NCHW.contiguous()
    channels, height, width = images.shape[1:]
    is_one_for_all = params_B5.stride(0) == 0
    params = params_B5.float() if is_one_for_all else params_B5.float().contiguous()
    out = torch.empty(len(params), channels, canvas_px, canvas_px, device=images.device)
    if len(out) == 0:
        return out
    blocks = -(-canvas_px * canvas_px // (4 * _THREADS))
    rows = None if rows_B is None else rows_B.contiguous()
    _kernel()(
        (blocks, len(out)),
        ctypes.c_void_p(images.data_ptr()),
        ctypes.c_void_p(None if rows is None else rows.data_ptr()),
        ctypes.c_void_p(params.data_ptr()),
        ctypes.c_int(0 if is_one_for_all else 5),
        ctypes.c_void_p(out.data_ptr()),
        *(ctypes.c_int(n) for n in (channels, height, width, canvas_px)),
    )
    return out
