"""A decoder with weights of its own: of other networks than the paper's, and of the paper's where asked.

Shapes: N images of C x S x S, D code entries.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.encoders.pooling import repeated


class FreeDecoder(nn.Module):
    """Codes to images of any size, with weights of its own: a linear layer, then convolutions, each on twice
    the size of the one before."""

    def __init__(
        self, *, in_channels: int, size_px: int, channels: Sequence[int], code_size: int
    ) -> None:
        super().__init__()
        sides = [size_px]
        for _ in channels:
            sides.append((sides[-1] + 1) // 2)
        self.sides = tuple(reversed(sides[:-1]))
        self.top_shape = (channels[-1], sides[-1], sides[-1])
        self.top = nn.Linear(code_size, channels[-1] * sides[-1] ** 2, bias=False)
        self.top_norm = nn.BatchNorm2d(channels[-1])
        widths = (*reversed(channels), channels[0])
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.last = nn.Conv2d(channels[0], in_channels, 3, padding=1)

    def forward(self, codes_ND: Tensor) -> Tensor:
        features = F.relu(self.top_norm(self.top(codes_ND).unflatten(1, self.top_shape)))
        for side, conv, norm in zip(self.sides, self.convs, self.norms, strict=True):
            features = F.relu(norm(conv(repeated(features, side, side))))
        images: Tensor = self.last(features)
        return images
