"""Max pooling of stride 2 and its ways back, written so that every one of them is deterministic.

A window is 2x2, or 4x4 overlapping its neighbours by one pixel on each side; either halves the image.
A *switch* says which cell of its window held the maximum, as row * size + column.

Shapes: N images, C channels, H x W pixels before pooling, h x w = H/2 x W/2 after.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Unpooling = Literal["copy", "corner", "switches"]


def max_pool(images_NCHW: Tensor, size: int) -> Tensor:
    """The maximum of each window.

    >>> max_pool(torch.arange(16.0).view(1, 1, 4, 4), 2)[0, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    return F.max_pool2d(images_NCHW, size, stride=2, padding=(size - 2) // 2)


def max_pool_with_switches(images_NCHW: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The maximum of each window and its switch; of equal cells the first."""
    pad = (size - 2) // 2
    padded = F.pad(images_NCHW, (pad,) * 4, value=-torch.inf)
    height, width = (n // 2 for n in images_NCHW.shape[-2:])
    cells = [_cell(padded, offset, size, height, width) for offset in range(size * size)]
    largest, switch = cells[0], torch.zeros_like(cells[0], dtype=torch.uint8)
    for offset, cell in enumerate(cells[1:], start=1):
        is_larger = (cell > largest) | cell.isnan()  # a NaN must not be lost
        largest = torch.where(is_larger, cell, largest)
        switch = torch.where(is_larger, torch.full_like(switch, offset), switch)
    return largest, switch


def repeated(images_NChw: Tensor, height: int, width: int) -> Tensor:
    """Each value as often as it takes to fill images of that size."""
    if images_NChw.device.type != "cuda":
        return F.interpolate(images_NChw, size=(height, width), mode="nearest")
    with torch.autocast("cuda", enabled=False):  # which would do it in float32
        return F.interpolate(images_NChw, size=(height, width), mode="nearest")


def unpool_copy(pooled_NChw: Tensor, size: int) -> Tensor:
    """Each value in all cells of its window; where windows overlap, their mean.

    >>> unpool_copy(torch.tensor([[[[1.0, 2.0]]]]), 2)[0, 0].tolist()
    [[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]
    """
    if size == 2:
        height, width = pooled_NChw.shape[-2:]
        return repeated(pooled_NChw, 2 * height, 2 * width)
    return _spread(_spread(pooled_NChw, -1), -2)


def unpool_corner(pooled_NChw: Tensor, size: int) -> Tensor:
    """Each value in one cell, the upper left of the middle four, with zeros elsewhere."""
    del size  # the middle four cells of a 4x4 window are the 2x2 window itself
    spaced = torch.stack([pooled_NChw, torch.zeros_like(pooled_NChw)], -1).flatten(-2)
    return torch.stack([spaced, torch.zeros_like(spaced)], -2).flatten(-3, -2)


def unpool_switches(pooled_NChw: Tensor, switch_NChw: Tensor, size: int) -> Tensor:
    """Each value in the cell its maximum came from, zeros elsewhere; where several meet, their sum."""
    *batch, height, width = pooled_NChw.shape
    pad = (size - 2) // 2
    padded = pooled_NChw.new_zeros(*batch, 2 * height + 2 * pad, 2 * width + 2 * pad)
    for offset in range(size * size):
        _cell(padded, offset, size, height, width).add_(
            torch.where(switch_NChw == offset, pooled_NChw, 0)
        )
    return padded[..., pad : pad + 2 * height, pad : pad + 2 * width]


def _cell(padded: Tensor, offset: int, size: int, height: int, width: int) -> Tensor:
    row, column = divmod(offset, size)
    return padded[..., row : row + 2 * height : 2, column : column + 2 * width : 2]


def _spread(pooled: Tensor, dim: int) -> Tensor:
    """Twice as long: a cell lies under two neighbouring windows of four, at the rim under one."""
    size = pooled.shape[dim]
    first, last = pooled.narrow(dim, 0, 1), pooled.narrow(dim, size - 1, 1)
    before = torch.cat([first, pooled.narrow(dim, 0, size - 1)], dim)
    after = torch.cat([pooled.narrow(dim, 1, size - 1), last], dim)
    pairs = torch.stack([(before + pooled) / 2, (pooled + after) / 2], dim)
    return pairs.flatten(dim - 1, dim)
