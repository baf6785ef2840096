"""Networks by name: `timm:NAME`, or `package.module:Class` for any class that can be imported."""

import difflib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from orbitset.encoders.rectifying import TIMM
from orbitset.errors import ConfigError
from orbitset.outside import import_named


def check_backbone(name: str) -> None:
    """Refuse a name for which there is no network, before anything is built."""
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
    shape = {"in_channels": in_channels, "size_px": size_px}
    kind = _imported(name)
    parameters = inspect.signature(kind).parameters
    try:
        return kind(**{key: value for key, value in shape.items() if key in parameters})
    except Exception as error:  # the user's own code
        raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error


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


def _imported(name: str) -> type[nn.Module]:
    kind = import_named(name, what="encoder")
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(f"{name} is no class of networks (torch.nn.Module)")
    return kind


def _check_timm(name: str) -> None:
    try:
        import timm

        all_names = timm.list_models()
    except (ImportError, RuntimeError, AttributeError) as error:  # or without its torchvision
        raise ConfigError(
            f"timm:{name} needs timm, which cannot be imported: {error}",
            hint="pip install timm",
        ) from None
    base = name.partition(".")[0]
    if base not in all_names:
        near = difflib.get_close_matches(base, all_names, 3)
        also = f"; near it are {', '.join(near)}" if near else ""
        raise ConfigError(f"timm has no network {base!r}{also}")


def _from_timm(name: str, in_channels: int, size_px: int, is_pretrained: bool) -> nn.Module:
    _check_timm(name)
    import timm

    options = {"pretrained": is_pretrained, "num_classes": 0, "in_chans": in_channels}
    try:
        try:
            network = timm.create_model(name, **options, img_size=size_px)
        except TypeError:  # most take images of any size
            network = timm.create_model(name, **options)
    except Exception as error:
        raise ConfigError(f"timm:{name} cannot be made: {error}") from error
    expected = network.pretrained_cfg
    mean, sd = expected.get("mean", (0.5,)), expected.get("std", (0.5,))
    if in_channels == 1:
        mean, sd = (sum(mean) / len(mean),), (sum(sd) / len(sd),)
    return Standardised(network, mean, sd)
