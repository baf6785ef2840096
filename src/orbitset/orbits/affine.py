"""Affine transformations: drawn as parameters, applied as one batched warp.

The paper's affine MNIST rotates by ±90 degrees, shears by ±0.3, scales by 0.7-1.3 and translates by
±15 pixels per axis: translate(rotate(shear(scale(x)))) about the centre, bilinear, black outside.

Shapes: N images, C channels, H x W source pixels, S canvas pixels per side, 5 parameters.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.dispatch import accelerated
from orbitset.errors import ConfigError

IDENTITY = (0.0, 0.0, 1.0, 0.0, 0.0)
"""Parameters of the identity: rotation in radians, shear, scale, shift right, shift down."""


@dataclass(frozen=True, kw_only=True)
class AffineRanges:
    """The ranges of affine transformations, relative to the canonical image; the paper's by default."""

    rotation_deg: float = 90.0
    shear: float = 0.3
    scale_min: float = 0.7
    scale_max: float = 1.3
    translation_px: float = 15.0

    @classmethod
    def moderate(cls, size_px: int, strength: float = 1.0) -> "AffineRanges":
        """Small turns, zooms and shifts, in which photographs of one thing differ anyway, times the strength.

        >>> AffineRanges.moderate(128).translation_px, AffineRanges.moderate(128, 0.5).rotation_deg
        (6.4, 5.0)
        """
        return cls(
            rotation_deg=10.0 * strength,
            shear=0.05 * strength,
            scale_min=1 - 0.05 * strength,
            scale_max=1 + 0.15 * strength,
            translation_px=round(0.05 * strength * size_px, 2),
        )

    def __post_init__(self) -> None:
        for name in ("rotation_deg", "shear", "translation_px"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number of at least 0")
        if not 0 < self.scale_min <= self.scale_max < math.inf:
            raise ConfigError(
                f"scale_min {self.scale_min} and scale_max {self.scale_max} are not a range; "
                "give 0 < scale_min <= scale_max"
            )


def sample_affine(num: int, ranges: AffineRanges, generator: torch.Generator) -> Tensor:
    """Draw `num` rows of parameters, uniform in the ranges and independent of each other.

    >>> sample_affine(2, AffineRanges(), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 5])
    """
    rotation = math.radians(ranges.rotation_deg)
    shift = ranges.translation_px
    low = torch.tensor([-rotation, -ranges.shear, ranges.scale_min, -shift, -shift])
    high = torch.tensor([rotation, ranges.shear, ranges.scale_max, shift, shift])
    return low + (high - low) * torch.rand(num, 5, generator=generator)


def inverse_matrices(params_N5: Tensor) -> Tensor:
    """For each row the map from canvas offsets to source offsets, in pixels from the centres, (N, 2, 3).

    A member is out = R(rotation) H(shear) scale in + shift, with y pointing down and
    H = [[1, shear], [0, 1]]; the warp needs the way back, in = H(-shear) R(-rotation) (out - shift) / scale.
    """
    rotation, shear, scale, right, down = params_N5.unbind(-1)
    cos, sin = torch.cos(rotation) / scale, torch.sin(rotation) / scale
    xx, xy = cos + shear * sin, sin - shear * cos
    yx, yy = -sin, cos
    return torch.stack(
        [
            torch.stack([xx, xy, -(xx * right + xy * down)], -1),
            torch.stack([yx, yy, -(yx * right + yy * down)], -1),
        ],
        -2,
    )


def warp(images: Tensor, params: Tensor, canvas_px: int, *, rows: Tensor | None = None) -> Tensor:
    """Transform each image by its own parameters onto a square canvas; uint8 becomes float32 in [0, 1].

    Row b of the parameters is for image `rows[b]`, or for image b.

    >>> image = torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)
    >>> warp(image, torch.tensor([IDENTITY]), 4)[0, 0].round().int().tolist()
    [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    return _warped(images, rows, params, canvas_px)


@accelerated("warp")
def _warped(
    images_NCHW: Tensor, rows_B: Tensor | None, params_B5: Tensor, canvas_px: int
) -> Tensor:
    images = images_NCHW if rows_B is None else images_NCHW[rows_B]
    return warp_reference(images, params_B5, canvas_px)


def warp_reference(images_NCHW: Tensor, params_N5: Tensor, canvas_px: int) -> Tensor:
    """The same as `warp`, in plain torch."""
    height, width = images_NCHW.shape[-2:]
    images = images_NCHW.float() / 255 if images_NCHW.dtype == torch.uint8 else images_NCHW
    offsets = (
        torch.arange(canvas_px, dtype=images.dtype, device=images.device) - (canvas_px - 1) / 2
    )
    y_SS, x_SS = torch.meshgrid(offsets, offsets, indexing="ij")
    canvas_SS3 = torch.stack([x_SS, y_SS, torch.ones_like(x_SS)], -1)
    matrices_N23 = inverse_matrices(params_N5.to(images.dtype))
    source_NSS2 = torch.einsum("sti,nji->nstj", canvas_SS3, matrices_N23)
    grid = torch.stack([source_NSS2[..., 0] * (2 / width), source_NSS2[..., 1] * (2 / height)], -1)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
