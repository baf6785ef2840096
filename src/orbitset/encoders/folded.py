"""The paper's encoder for use after training: batch norm is part of the convolutions, which then need a pass
over the features less. Codes are the same but for rounding.

Shapes: N images of C x S x S, D code entries.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.encoders.pooling import max_pool
from orbitset.encoders.rectifying import RectifyingEncoder
from orbitset.encoders.spatial_transformer import TransformedEncoder
from orbitset.precision import at_least_float32


class FoldedEncoder:
    """The codes of one network as it is now; `is_current` says whether it still is so.

    >>> model = RectifyingEncoder(size_px=32, channels=(4, 8), code_size=16).eval()
    >>> images = torch.rand(3, 1, 32, 32)
    >>> torch.allclose(FoldedEncoder(model).encode(images), model.encode(images), atol=1e-5)
    True
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._state = _state(network)
        self._transform = network.transform if isinstance(network, TransformedEncoder) else None
        inner = network.encoder if isinstance(network, TransformedEncoder) else network
        self._inner = inner if type(inner) is RectifyingEncoder else None
        self._layers = [] if self._inner is None else _fold(self._inner)

    @property
    def is_current(self) -> bool:
        """Whether no weight was changed, replaced or moved since."""
        return _state(self._network) == self._state

    def encode(self, images_NCSS: Tensor) -> Tensor:
        """Codes (N, D) in float32."""
        if self._inner is None or self._network.training:
            codes: Tensor = self._network.encode(images_NCSS)  # type: ignore[operator]
            return codes
        if self._transform is not None:
            images_NCSS = self._transform(images_NCSS)
        self._inner.check(images_NCSS)
        features = self._inner.contrast(images_NCSS).contiguous(memory_format=torch.channels_last)
        for index, (weight, bias) in enumerate(self._layers):
            features = F.conv2d(features, weight, bias, padding=1).relu_()
            if index % 2 == 1:
                features = max_pool(features, self._inner.encoder.pool)
        codes = at_least_float32(self._inner.encoder.code(features.flatten(1)))
        normed: Tensor = self._inner.code_norm(codes)
        return normed


def _fold(model: RectifyingEncoder) -> list[tuple[Tensor, Tensor]]:
    layers = []
    with torch.no_grad():
        for conv, norm in zip(model.encoder.convs, model.encoder.norms, strict=True):
            assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
            assert norm.running_mean is not None and norm.running_var is not None
            scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
            weight = conv.weight * scale[:, None, None, None]
            bias = norm.bias - norm.running_mean * scale
            layers.append((weight.contiguous(memory_format=torch.channels_last), bias))
    return layers


def _state(network: nn.Module) -> list[tuple[int, int]]:
    tensors = [*network.parameters(), *network.buffers()]
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]
