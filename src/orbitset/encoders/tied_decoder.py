"""The paper's decoder: the encoder reversed, with its weights transposed and biases of its own.

A tied deconvolution of stride 1 is the transposed convolution with the encoder's filters. Every layer
but the last has batch norm (which carries the free bias) and ReLU; the last is linear.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.encoders.pooling import Unpooling, unpool_copy, unpool_corner, unpool_switches
from orbitset.encoders.vgg import VGGEncoder


class TiedDecoder(nn.Module):
    """Codes to images. Holds no weights but norms and a bias: the encoder's are passed with the codes."""

    def __init__(self, encoder: VGGEncoder, unpooling: Unpooling) -> None:
        super().__init__()
        self.unpooling = unpooling
        self.top_norm = nn.BatchNorm2d(encoder.top_shape[0])
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in encoder.widths[1:-1])
        self.bias = nn.Parameter(torch.zeros(encoder.widths[0]))

    def forward(self, codes_ND: Tensor, encoder: VGGEncoder, switches: list[Tensor]) -> Tensor:
        top = F.linear(codes_ND, encoder.code.weight.T).unflatten(1, encoder.top_shape)
        features = F.relu(self.top_norm(top.contiguous(memory_format=torch.channels_last)))
        for index in reversed(range(len(encoder.convs))):
            if index % 2 == 1:
                features = self._unpool(features, encoder.pool, switches, index // 2)
            weight = encoder.tied_weight(index)
            if index == 0:
                return F.conv_transpose2d(features, weight, self.bias, padding=1)
            features = F.conv_transpose2d(features, weight, padding=1)
            features = F.relu(self.norms[index - 1](features))
        raise AssertionError("an encoder has at least one convolution")

    def _unpool(self, features: Tensor, pool: int, switches: list[Tensor], block: int) -> Tensor:
        match self.unpooling:
            case "copy":
                return unpool_copy(features, pool)
            case "corner":
                return unpool_corner(features, pool)
            case "switches":
                return unpool_switches(features, switches[block], pool)
