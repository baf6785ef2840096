"""How an encoder looks at images: as they are, or each place by how it differs from what is around it.

Light changes how bright a picture is, and slowly from place to place. The local mean takes off much of that,
and the local spread its strength. What is rectified is still the image as it was given.

Shapes: N images of C x S x S.
"""

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.errors import check_choice
from orbitset.precision import at_least_float32

Contrast = Literal["given", "local"]


class LocalContrast(nn.Module):
    """Each pixel less the mean of the square around it, in units of the standard deviation there.

    Of two edges, one in a third of the light of the other:

    >>> import torch
    >>> images = torch.zeros(2, 1, 16, 16)
    >>> images[0, :, :, 8:], images[1, :, :, 8:] = 0.9, 0.3
    >>> LocalContrast(size_px=16)(images)[:, 0, 8, 6:10].mul(100).round().tolist()
    [[-62.0, -118.0, 118.0, 62.0], [-46.0, -89.0, 89.0, 46.0]]
    """

    def __init__(self, *, size_px: int, floor: float = 0.05) -> None:
        """Squares reach an eighth of the image's side to each side of a pixel; `floor` is added to the
        standard deviation, so that noise on a wall stays small."""
        super().__init__()
        self.reach_px, self.floor = max(1, size_px // 8), floor

    def forward(self, images_NCSS: Tensor) -> Tensor:
        dtype, images_NCSS = images_NCSS.dtype, at_least_float32(images_NCSS)
        centred = images_NCSS - self._around(images_NCSS)
        spread = (self._around(centred.square()) + 1e-12).sqrt()
        return (centred / (spread + self.floor)).to(dtype)

    def _around(self, images_NCSS: Tensor) -> Tensor:
        """The mean of what lies in each pixel's square, along one side after the other."""
        reach, side = self.reach_px, 2 * self.reach_px + 1
        for window, padding in (((1, side), (0, reach)), ((side, 1), (reach, 0))):
            images_NCSS = F.avg_pool2d(
                images_NCSS, window, stride=1, padding=padding, count_include_pad=False
            )
        return images_NCSS


def build_contrast(kind: Contrast, size_px: int) -> nn.Module:
    check_choice("contrast", kind, get_args(Contrast))
    return LocalContrast(size_px=size_px) if kind == "local" else nn.Identity()
