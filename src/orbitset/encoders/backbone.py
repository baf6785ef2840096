"""Other networks than the paper's as encoders.

Such a network gives a vector for each image, or a map of features that is averaged over places. A linear
layer makes the code of it, and a decoder of its own, shaped to the images, what is rectified.

Shapes: N images of C x S x S, F features, D code entries.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from orbitset.encoders.code_norm import CodeNorm, build_code_norm
from orbitset.encoders.components import first_features
from orbitset.encoders.config import Head, Statistics
from orbitset.encoders.contrast import Contrast, build_contrast
from orbitset.encoders.free_decoder import FreeDecoder
from orbitset.encoders.rectifying import check_images
from orbitset.encoders.standardised import Standardised
from orbitset.errors import ConfigError
from orbitset.precision import at_least_float32


class BackboneEncoder(nn.Module):
    """Encode, decode and rectify with any network that gives features.

    >>> net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU())
    >>> model = BackboneEncoder(net, size_px=32, channels=(4, 8), code_size=16)
    >>> images = torch.rand(3, 1, 32, 32)
    >>> model.encode(images).shape, model.rectify(images).shape
    (torch.Size([3, 16]), torch.Size([3, 1, 32, 32]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        in_channels: int = 1,
        size_px: int = 64,
        channels: Sequence[int] = (16, 32, 64, 128),
        code_size: int | None = 1024,
        code_norm: CodeNorm = "none",
        contrast: Contrast = "given",
        head: Head = "random",
        norm_statistics: Statistics = "trained",
    ) -> None:
        """`channels` are the widths of the decoder, the outermost first. Without a `code_size` codes have as
        many numbers as the network gives features."""
        super().__init__()
        self.contrast = build_contrast(contrast, size_px)
        self.backbone, self.norm_statistics = backbone, norm_statistics
        num_features = _num_features(backbone, self.contrast, in_channels, size_px)
        code_size = code_size or num_features
        self.in_channels, self.size_px, self.code_size = in_channels, size_px, code_size
        self.code = nn.Linear(num_features, code_size)
        if head == "features":
            self.begin_with(*first_features(num_features, code_size))
        self.code_norm = build_code_norm(code_norm, code_size)
        self.decoder = FreeDecoder(
            in_channels=in_channels, size_px=size_px, channels=channels, code_size=code_size
        )

    @torch.no_grad()
    def begin_with(self, weight: Tensor, bias: Tensor) -> None:
        """Set the layer that makes codes of features."""
        self.code.weight.copy_(weight)
        self.code.bias.copy_(bias)

    def train(self, mode: bool = True) -> "BackboneEncoder":
        super().train(mode)
        if self.norm_statistics == "frozen":
            for module in self.backbone.modules():
                if getattr(module, "running_mean", None) is not None:
                    module.eval()
        return self

    @property
    def architecture(self) -> dict[str, Any]:
        """What a network of transformers is built from, beside its weights; empty for others."""
        return dict(getattr(self.backbone, "architecture", {}))

    def features(self, images: Tensor) -> Tensor:
        """What the network without the layer behind it gives, (N, F)."""
        self.check(images)
        images = self.contrast(images)
        if images.is_cuda:
            # convolutions of many small channels are several times faster so
            images = images.contiguous(memory_format=torch.channels_last)
        return _features(self.backbone, images)

    def encode(self, images: Tensor) -> Tensor:
        """Codes (N, D) in float32."""
        codes = self.code(self.features(images))
        normed: Tensor = self.code_norm(at_least_float32(codes))
        return normed

    def decode(self, codes: Tensor) -> Tensor:
        """The image (N, C, S, S) that each code stands for."""
        return at_least_float32(self.decoder(codes))

    def rectify(self, images: Tensor) -> Tensor:
        """Each image in its canonical pose: decode(encode(images))."""
        return self.decode(self.encode(images))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and rectified images in one go."""
        codes = self.encode(images)
        return codes, self.decode(codes)

    def check(self, images: Tensor) -> None:
        """Refuse images of another shape, or that are not floats."""
        check_images(images, self.in_channels, self.size_px)


def check_restorable(network: nn.Module, build: Callable[[], nn.Module], images: Tensor) -> None:
    """Refuse a network that its saved weights do not restore.

    Weights are all that most networks hold. For one with other tensors, `build` makes another network, which
    must give the same codes with the same weights.
    """
    state = network.state_dict()
    name = type(getattr(network, "backbone", network)).__name__
    odd = [key for key, value in state.items() if not isinstance(value, Tensor)]
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    places = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
    if odd or len(set(places)) < len(places):
        what = f"has {odd[0]}, which is no tensor" if odd else "uses one tensor under two names"
        raise ConfigError(f"{name} cannot be kept: among its weights it {what}")
    if not _holds_other_tensors(network):
        return
    again = build()
    again.load_state_dict(state)
    was_training = network.training
    with torch.no_grad():
        codes, restored = (net.eval().encode(images) for net in (network, again))  # type: ignore[operator]
    network.train(was_training)
    if not torch.allclose(codes, restored, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise ConfigError(
            f"{name} cannot be kept: with the same weights it gives other codes; make all that it draws or "
            "counts a parameter or a buffer"
        )


def _holds_other_tensors(network: nn.Module) -> bool:
    """Whether it holds tensors, or arrays of numpy, that are not among its weights."""
    if {name for name, _ in network.named_buffers()} - network.state_dict().keys():
        return True
    usual = vars(nn.Module()).keys()
    return any(
        _has_tensor(value)
        for module in network.modules()
        for name, value in vars(module).items()
        if name not in usual
    )


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return any(map(_has_tensor, value))
    return isinstance(value, Tensor | np.ndarray)


def _features(backbone: nn.Module, images: Tensor) -> Tensor:
    features: Tensor = backbone(images)
    features = features.mean((2, 3)) if features.ndim == 4 else features
    return features.float() if features.dtype in (torch.float16, torch.float64) else features


def _num_features(backbone: nn.Module, contrast: nn.Module, in_channels: int, size_px: int) -> int:
    """How many features the backbone gives, after checks of all that could go wrong later."""
    named = backbone.network if isinstance(backbone, Standardised) else backbone
    name = getattr(named, "name", type(named).__name__)  # networks of transformers have one
    was_training = backbone.training
    if any(map(is_lazy, backbone.parameters())):
        raise ConfigError(f"{name} has layers without a size; give them one instead of lazy ones")
    state = copy.deepcopy(backbone.state_dict())
    device = next((weight.device for weight in backbone.parameters()), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    images = contrast(torch.rand(2, in_channels, size_px, size_px, generator=generator)).to(device)
    sizes = []
    try:
        for is_training, num in ((True, 2), (False, 2), (False, 1)):
            batch = images[:num].clone()
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                features = backbone.train(is_training)(batch)
                again = features if is_training else backbone(batch)
            sizes.append(_checked(features, num, name))
            if not torch.allclose(
                features, again, rtol=1e-2, atol=1e-3 * float(features.abs().max())
            ):
                raise ConfigError(
                    f"{name} gives other features for the same images, in evaluation mode too; let it draw "
                    "random numbers in training alone"
                )
            if not torch.equal(batch, images[:num]):
                raise ConfigError(f"{name} changes its input images; let it work on a copy")
    except ConfigError:
        raise
    except Exception as error:  # the user's own code
        size = " x ".join(map(str, batch.shape))
        raise ConfigError(f"{name} does not take images of {size}: {error}") from error
    finally:
        backbone.load_state_dict(state)
        backbone.train(was_training)
    if len(set(sizes)) > 1:
        raise ConfigError(f"{name} gives {sizes[0]} features in training and then {sizes[-1]}")
    return sizes[0]


def _checked(features: Any, num: int, name: str) -> int:
    if not isinstance(features, Tensor) or features.ndim not in (2, 4) or len(features) != num:
        output = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(
            f"{name} gives {output} for {num} images; an encoder gives one vector per image, "
            f"({num}, features)"
        )
    if not features.is_floating_point() or not features.numel():
        kind = str(features.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{name} gives {features.shape[1]} features of {kind}; give at least one, and floats"
        )
    if not features.isfinite().all():
        raise ConfigError(f"{name} gives {features.shape[1]} features that are not all finite")
    return features.shape[1]
