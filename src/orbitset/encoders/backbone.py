"""Other networks than the paper's as encoders: by import path, or from timm by name.

Such a network gives a vector for each image, or a map of features that is averaged over places. A linear
layer makes the code of it, and a decoder of its own, shaped to the images, what is rectified.

Shapes: N images of C x S x S, D code entries.
"""

import difflib
import importlib
import inspect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.encoders.code_norm import CodeNorm, build_code_norm
from orbitset.encoders.rectifying import check_images
from orbitset.errors import ConfigError

TIMM = "timm:"


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
        code_size: int = 1024,
        code_norm: CodeNorm = "none",
    ) -> None:
        """`channels` are the widths of the decoder, the outermost first."""
        super().__init__()
        self.in_channels, self.size_px, self.code_size = in_channels, size_px, code_size
        self.backbone = backbone
        self.code = nn.Linear(_num_features(backbone, in_channels, size_px), code_size)
        self.code_norm = build_code_norm(code_norm, code_size)
        self.decoder = FreeDecoder(
            in_channels=in_channels, size_px=size_px, channels=channels, code_size=code_size
        )

    def encode(self, images_NCSS: Tensor) -> Tensor:
        """Codes (N, D) in float32."""
        self.check(images_NCSS)
        codes = self.code(_features(self.backbone, images_NCSS))
        normed: Tensor = self.code_norm(codes.float() if _is_half(codes) else codes)
        return normed

    def decode(self, codes_ND: Tensor) -> Tensor:
        """The image (N, C, S, S) each code stands for."""
        images: Tensor = self.decoder(codes_ND)
        return images.float() if _is_half(images) else images

    def rectify(self, images_NCSS: Tensor) -> Tensor:
        """What each image looks like in its canonical pose: decode(encode(images))."""
        return self.decode(self.encode(images_NCSS))

    def forward(self, images_NCSS: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and rectified images in one go."""
        codes = self.encode(images_NCSS)
        return codes, self.decode(codes)

    def check(self, images: Tensor) -> None:
        """Refuse images this encoder was not made for."""
        check_images(images, self.in_channels, self.size_px)


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
            features = F.relu(norm(conv(F.interpolate(features, size=(side, side)))))
        images: Tensor = self.last(features)
        return images


class Standardised(nn.Module):
    """A network behind the mean and s.d. that it expects of its images."""

    mean: Tensor
    sd: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], sd: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("sd", torch.tensor(sd)[:, None, None])

    def forward(self, images_NCSS: Tensor) -> Any:
        return self.network((images_NCSS - self.mean) / self.sd)


def check_backbone(name: str) -> None:
    """Refuse a name for which there is no network, before anything is made."""
    if name.startswith(TIMM):
        _check_timm(name.removeprefix(TIMM))
    else:
        _imported(name)


def build_backbone(
    name: str, *, in_channels: int, size_px: int, is_pretrained: bool = False
) -> nn.Module:
    """The network of a name, `timm:NAME` or `package.module:Class`."""
    if name.startswith(TIMM):
        return _from_timm(name.removeprefix(TIMM), in_channels, size_px, is_pretrained)
    made_for = {"in_channels": in_channels, "size_px": size_px}
    kind = _imported(name)
    taken = inspect.signature(kind).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    given = {key: value for key, value in made_for.items() if takes_any or key in taken}
    try:
        return kind(**given)
    except Exception as error:  # the user's own code
        raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error


def _imported(name: str) -> type[nn.Module]:
    """The class a name stands for. Anything but a network is refused, since names also come with models."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        module_name, _, attribute = name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"the encoder {name} cannot be had: {error}",
            hint="install what it is in, or call orbitset from the folder that it lies in",
        ) from None
    kind = getattr(module, attribute, None)
    if kind is None:
        near = difflib.get_close_matches(attribute, dir(module), 1)
        raise ConfigError(
            f"{module_name} has no {attribute}" + (f"; did you mean {near[0]}?" if near else "")
        )
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(f"{name} is no class of networks (torch.nn.Module)")
    return kind


def _check_timm(name: str) -> None:
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # without its torchvision, or with another's
        raise ConfigError(
            f"timm:{name} needs timm, which cannot be imported: {error}",
            hint="pip install timm",
        ) from None
    base = name.partition(".")[0]
    if base not in timm.list_models():
        near = difflib.get_close_matches(base, timm.list_models(), 3)
        also = f"; near it are {', '.join(near)}" if near else ""
        raise ConfigError(f"timm has no network {base!r}{also}")


def _from_timm(name: str, in_channels: int, size_px: int, is_pretrained: bool) -> nn.Module:
    _check_timm(name)
    import timm

    asked = {"pretrained": is_pretrained, "num_classes": 0, "in_chans": in_channels}
    try:
        try:
            network = timm.create_model(name, **asked, img_size=size_px)
        except TypeError:  # most take images of any size
            network = timm.create_model(name, **asked)
    except Exception as error:
        raise ConfigError(f"timm:{name} cannot be made: {error}") from error
    expected = network.pretrained_cfg
    mean, sd = expected.get("mean", (0.5,)), expected.get("std", (0.5,))
    if in_channels == 1:
        mean, sd = (sum(mean) / len(mean),), (sum(sd) / len(sd),)
    return Standardised(network, mean, sd)


def _features(backbone: nn.Module, images: Tensor) -> Tensor:
    features: Tensor = backbone(images)
    return features.mean((2, 3)) if features.ndim == 4 else features


def _num_features(backbone: nn.Module, in_channels: int, size_px: int) -> int:
    name, was_training = type(backbone).__name__, backbone.training
    shape = (2, in_channels, size_px, size_px)
    weight = next(backbone.parameters(), torch.zeros(0))
    backbone.eval()
    try:
        with torch.no_grad():
            features = backbone(torch.zeros(shape, device=weight.device))
    except Exception as error:  # the user's own code
        size = " x ".join(map(str, shape[1:]))
        raise ConfigError(f"{name} does not take images of {size}: {error}") from error
    finally:
        backbone.train(was_training)
    if not isinstance(features, Tensor) or features.ndim not in (2, 4) or len(features) != 2:
        given = (
            f"{tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        )
        raise ConfigError(
            f"{name} gives {given} for two images; an encoder gives a vector for each, (2, features)"
        )
    return features.shape[1]


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float16)
