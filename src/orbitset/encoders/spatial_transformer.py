"""A spatial transformer in front of an encoder: it looks at an image, chooses an affine map and applies it.

The paper's size: two blocks of (2x2 max pooling, 5x5 convolution with 20 filters, ReLU), then two linear
layers to the six numbers of the map. It starts as the identity.

Shapes: N images of C x S x S.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.errors import ConfigError

_FILTERS, _FILTER_PX, _POOL = 20, 5, 2
_SMALLEST_PX = 28
"""Below, the second convolution has nothing left to look at."""


class SpatialTransformer(nn.Module):
    """Images to images of the same size, each seen through an affine map of its own.

    >>> images = torch.rand(3, 1, 32, 32)
    >>> torch.allclose(SpatialTransformer(in_channels=1, size_px=32)(images), images, atol=1e-5)
    True
    """

    def __init__(self, *, in_channels: int, size_px: int) -> None:
        super().__init__()
        if size_px < _SMALLEST_PX:
            raise ConfigError(
                f"images of {size_px} px are too small for a spatial transformer; "
                f"give at least {_SMALLEST_PX}"
            )
        self.first = nn.Conv2d(in_channels, _FILTERS, _FILTER_PX)
        self.second = nn.Conv2d(_FILTERS, _FILTERS, _FILTER_PX)
        left_px = (size_px // _POOL - _FILTER_PX + 1) // _POOL - _FILTER_PX + 1
        self.hidden = nn.Linear(_FILTERS * left_px**2, _FILTERS)
        self.map = nn.Linear(_FILTERS, 6)
        nn.init.zeros_(self.map.weight)
        with torch.no_grad():
            self.map.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]))

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            maps = self.maps(images)
            shape = list(images.shape)
            grid = F.affine_grid(maps, shape, align_corners=False)
            return F.grid_sample(images, grid, align_corners=False)

    def maps(self, images: Tensor) -> Tensor:
        """From places in the output to places in the image, (N, 2, 3), the image reaching from -1 to 1."""
        features = F.relu(self.first(F.max_pool2d(images, _POOL)))
        features = F.relu(self.second(F.max_pool2d(features, _POOL)))
        maps: Tensor = self.map(F.relu(self.hidden(features.flatten(1))))
        return maps.view(-1, 2, 3)


class TransformedEncoder(nn.Module):
    """Any encoder behind a spatial transformer; the encoder sees what the transformer shows.

    >>> from orbitset.encoders import RectifyingEncoder
    >>> inner = RectifyingEncoder(size_px=32, channels=(4, 8), code_size=16)
    >>> model = TransformedEncoder(SpatialTransformer(in_channels=1, size_px=32), inner)
    >>> images = torch.rand(3, 1, 32, 32)
    >>> model.encode(images).shape, model.transform(images).shape
    (torch.Size([3, 16]), torch.Size([3, 1, 32, 32]))
    """

    def __init__(self, transformer: SpatialTransformer, encoder: nn.Module) -> None:
        super().__init__()
        self.transformer, self.encoder = transformer, encoder

    def transform(self, images: Tensor) -> Tensor:
        """What the encoder gets to see."""
        transformed: Tensor = self.transformer(images)
        return transformed

    def encode(self, images: Tensor) -> Tensor:
        codes: Tensor = self._part("encode")(self.transform(images))
        return codes

    def decode(self, codes: Tensor) -> Tensor:
        images: Tensor = self._part("decode")(codes)
        return images

    def rectify(self, images: Tensor) -> Tensor:
        """The encoder's rectified image of what the transformer shows."""
        rectified: Tensor = self._part("rectify")(self.transform(images))
        return rectified

    def forward(self, images: Tensor) -> Any:
        return self.encoder(self.transform(images))

    def _part(self, name: str) -> Any:
        return getattr(self.encoder, name)
