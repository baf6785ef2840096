"""The paper's encoder: blocks of two (3x3 convolution, batch norm, ReLU), each followed by max pooling.

Channels double after every pooling, 16 to 128 for MNIST and 64 to 512 for faces; four blocks, then a
fully connected layer. Batch norm carries the convolutions' biases.

Shapes: N images of C x S x S, D code entries.
"""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.encoders.pooling import max_pool, max_pool_with_switches


class VGGEncoder(nn.Module):
    """Images to codes; also gives the pooling switches to a decoder that asks for them."""

    def __init__(
        self,
        *,
        in_channels: int,
        size_px: int,
        channels: tuple[int, ...],
        code_size: int,
        pool: int,
    ) -> None:
        super().__init__()
        self.pool = pool
        widths = [in_channels] + [width for width in channels for _ in range(2)]
        self.widths = tuple(widths)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.top_shape = (channels[-1], size_px >> len(channels), size_px >> len(channels))
        self.code = nn.Linear(channels[-1] * self.top_shape[1] ** 2, code_size)

    def forward(
        self, images: Tensor, *, keep_switches: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        features, switches = images, []
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            features = F.relu(norm(conv(features)))
            if index % 2 == 1 and keep_switches:
                features, switch = max_pool_with_switches(features, self.pool)
                switches.append(switch)
            elif index % 2 == 1:
                features = max_pool(features, self.pool)
        return self.code(features.flatten(1)), switches

    def tied_weight(self, index: int) -> Tensor:
        """The filters of one convolution, for the decoder to use transposed."""
        weight = self.convs[index].weight
        assert isinstance(weight, Tensor)
        return weight
