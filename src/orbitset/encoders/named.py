"""Networks by name: `timm:NAME`, `hf:NAME`, or `package.module:Class` for any class that can be imported."""

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from orbitset.encoders.config import HF, TIMM, Features, check_network_name
from orbitset.encoders.standardised import Standardised
from orbitset.errors import ConfigError
from orbitset.outside import described_error, import_named


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a network states before it is built."""

    size_px: int | None
    """The side of the images that its weights were trained on"""
    is_pretrained: bool
    """Whether it comes with trained weights"""


def look_at(name: str) -> Stated:
    """What the network of a name states; a name for which there is none is refused.

    A class states it by the attributes `size_px` and `is_pretrained`.
    """
    check_network_name(name)
    if name.startswith(HF):
        from orbitset.encoders.repository import read_repository

        return Stated(size_px=read_repository(name).size_px, is_pretrained=True)
    if name.startswith(TIMM):
        timm, base = _timm(name.removeprefix(TIMM)), name.removeprefix(TIMM).partition(".")[0]
        try:
            about = timm.get_pretrained_cfg(name.removeprefix(TIMM))
        except RuntimeError as error:
            has = ", ".join(timm.list_pretrained(f"{base}.*")) or "none"
            raise ConfigError(f"{name} cannot be used: {error}", hint=f"timm has {has}") from None
        size_px = None if about is None else about.input_size[-1]
        return Stated(size_px=size_px, is_pretrained=about is not None and bool(about.has_weights))
    kind = _imported(name)
    size_px, is_pretrained = (getattr(kind, what, None) for what in ("size_px", "is_pretrained"))
    return Stated(
        size_px=size_px if isinstance(size_px, int) else None, is_pretrained=is_pretrained is True
    )


def build_backbone(
    name: str,
    *,
    in_channels: int,
    size_px: int,
    is_pretrained: bool = False,
    features: Features = "auto",
    architecture: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The network of a name, `timm:NAME`, `hf:NAME` or `package.module:Class`.

    `features` are those of networks of transformers; `architecture` is what a model keeps of such a network.
    A class is called with those of `in_channels`, `size_px` and `is_pretrained` that are among its arguments.
    If it has the attributes `mean` and `sd`, its images are normalised with them.
    """
    if name.startswith(HF):
        from orbitset.encoders.hugging_face import pretrained_network, untrained_network

        if is_pretrained:
            return pretrained_network(name, features)
        return untrained_network(name, features, architecture)
    if name.startswith(TIMM):
        return _from_timm(name.removeprefix(TIMM), in_channels, size_px, is_pretrained)
    arguments = {"in_channels": in_channels, "size_px": size_px, "is_pretrained": is_pretrained}
    kind = _imported(name)
    parameters = inspect.signature(kind).parameters
    try:
        network = kind(**{key: value for key, value in arguments.items() if key in parameters})
    except Exception as error:  # the user's own code
        raise ConfigError(f"{name} cannot be made: {described_error(error)}") from error
    mean, sd = (getattr(kind, what, None) for what in ("mean", "sd"))
    return network if mean is None or sd is None else Standardised(network, mean, sd)


def _imported(name: str) -> type[nn.Module]:
    kind = import_named(name, what="encoder")
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(f"{name} is no class of networks (torch.nn.Module)")
    return kind


def _timm(name: str) -> Any:
    """The library, if it has a network of that name."""
    try:
        import timm

        all_names = timm.list_models()
    except (ImportError, RuntimeError, AttributeError, OSError) as error:  # or its torchvision
        raise ConfigError(
            f"timm:{name} needs timm, which cannot be imported: {error}", hint="pip install timm"
        ) from None
    base = name.partition(".")[0]
    if base not in all_names:
        near = difflib.get_close_matches(base, all_names, 3)
        also = f"; near it are {', '.join(near)}" if near else ""
        raise ConfigError(f"timm has no network {base!r}{also}")
    return timm


def _from_timm(name: str, in_channels: int, size_px: int, is_pretrained: bool) -> nn.Module:
    timm = _timm(name)
    options = {"pretrained": is_pretrained, "num_classes": 0, "in_chans": in_channels}
    try:
        try:
            network = timm.create_model(name, **options, img_size=size_px)
        except TypeError:  # most take images of any size
            network = timm.create_model(name, **options)
    except Exception as error:
        raise ConfigError(
            f"timm:{name} cannot be made: {described_error(error)}",
            hint="without a connection, train it from random weights: --set encoder.is_pretrained=false"
            if is_pretrained
            else None,
        ) from error
    expected = network.pretrained_cfg
    mean, sd = expected.get("mean", (0.5,)), expected.get("std", (0.5,))
    if in_channels == 1:
        mean, sd = (sum(mean) / len(mean),), (sum(sd) / len(sd),)
    return Standardised(network, mean, sd)
