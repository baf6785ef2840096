"""Augmentation of recorded images: every image of a batch is changed by parameters of its own.

Turn, zoom, shift, flip and crop are one map from places of the result to places of the image, so that pixels
are interpolated once. What lies outside the image is mirrored at its border, so that photographs get no black
corners.

Shapes: B images of a batch, C channels, H x W pixels, Q parameters of an image.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.orbits.affine import IDENTITY, AffineRanges, inverse_matrices, sample_affine
from orbitset.orbits.photometric import (
    NEUTRAL,
    PARAMETERS,
    PhotometricRanges,
    apply_photometric,
    centres,
    draw_photometric,
)


@dataclass(frozen=True)
class Augmentation:
    """What may change in an image: its place, if there are affine ranges, and its looks, if there are
    photometric ones.

    >>> augmentation = Augmentation.moderate(8)
    >>> params = augmentation.draw(2, torch.Generator().manual_seed(0))
    >>> augmentation.apply(torch.rand(2, 3, 8, 8), params).shape
    torch.Size([2, 3, 8, 8])
    """

    affine: AffineRanges | None = None
    photometric: PhotometricRanges | None = None

    @classmethod
    def moderate(cls, size_px: int, strength: float = 1.0) -> "Augmentation":
        """Changes in which photographs of one thing differ anyway, times the strength."""
        affine = AffineRanges.moderate(size_px, strength)
        return cls(affine, PhotometricRanges().weakened(strength))

    def __str__(self) -> str:
        words = []
        if (place := self.affine) is not None:
            words += [
                f"turn ±{place.rotation_deg:g}°",
                f"zoom {place.scale_min:g} to {place.scale_max:g}",
                f"shift ±{place.translation_px:g} px",
            ]
        if (looks := self.photometric) is not None:
            words += [
                f"crops of {looks.crop_area_min:g} to {looks.crop_area_max:g} of the area",
                f"brightness ±{looks.brightness:g}",
                f"hue ±{looks.hue_deg:g}°",
                f"blur up to {looks.blur_max_px:g} px",
            ]
        return ", ".join(words)

    def draw(self, num: int, generator: torch.Generator) -> Tensor:
        """Parameters (num, Q), a row for each image, on the CPU."""
        affine, photometric = torch.tensor(IDENTITY), torch.tensor(NEUTRAL)
        rows = [affine.expand(num, -1), photometric.expand(num, -1)]
        if self.affine is not None:
            rows[0] = sample_affine(num, self.affine, generator)
        if self.photometric is not None:
            rows[1] = draw_photometric(num, self.photometric, generator)
        return torch.cat(rows, 1)

    def apply(self, images_BCHW: Tensor, params_BQ: Tensor) -> Tensor:
        """Change float32 images in [0, 1], each by its own row of parameters, on their device."""
        looks, images = self.photometric, images_BCHW
        if self.affine is not None or (
            looks and (looks.crop_area_min < 1 or looks.flip_probability)
        ):
            images = _moved(images, params_BQ)
        if looks is None:
            return images
        in_place = replace(looks, crop_area_min=1.0, crop_area_max=1.0, flip_probability=0.0)
        return apply_photometric(images, params_BQ[:, len(IDENTITY) :], in_place)


def _moved(images_BCHW: Tensor, params_BQ: Tensor) -> Tensor:
    """Images under the affine change, then the flip, then the crop: places go the other way.

    Elementwise, since a matrix product's precision on a GPU depends on what is set around.
    """
    height, width = images_BCHW.shape[2:]
    looks = params_BQ[:, len(IDENTITY) :, None, None]
    flip, crop_width, crop_height, crop_x, crop_y = (
        looks[:, PARAMETERS.index(name)]
        for name in ("flip", "crop_width", "crop_height", "crop_x", "crop_y")
    )
    x_B1W = (crop_x + crop_width * centres(width, images_BCHW)) * (1 - 2 * flip)
    y_BH1 = crop_y + crop_height * centres(height, images_BCHW)[:, None]
    matrix_B23 = inverse_matrices(params_BQ[:, : len(IDENTITY)])
    xx, xy, right, yx, yy, down = matrix_B23.flatten(1)[:, :, None, None].unbind(1)
    source_x = xx * x_B1W + xy * (height / width) * y_BH1 + right * (2 / width)
    source_y = yx * (width / height) * x_B1W + yy * y_BH1 + down * (2 / height)
    grid_BHW2 = torch.stack([source_x, source_y], -1)
    return F.grid_sample(images_BCHW, grid_BHW2, padding_mode="reflection", align_corners=False)
