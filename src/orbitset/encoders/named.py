"""Networks by name: `timm:NAME`, or `package.module:Class` for any class that can be imported."""

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orbitset.encoders.rectifying import TIMM
from orbitset.errors import ConfigError


def check_backbone(name: str) -> None:
    """Refuse a name for which there is no network, before anything is made."""
    if name.startswith(TIMM):
        _check_timm(name.removeprefix(TIMM))
    else:
        _imported(name)


def build_backbone(
    name: str,
    *,
    in_channels: int,
    size_px: int,
    is_pretrained: bool = False,
    not_from: Path | None = None,
) -> nn.Module:
    """The network of a name, `timm:NAME` or `package.module:Class`. `not_from` is a folder whose code is not
    run, that of a model."""
    if name.startswith(TIMM):
        return _from_timm(name.removeprefix(TIMM), in_channels, size_px, is_pretrained)
    made_for = {"in_channels": in_channels, "size_px": size_px}
    kind = _imported(name, not_from)
    taken = inspect.signature(kind).parameters
    try:
        return kind(**{key: value for key, value in made_for.items() if key in taken})
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


def _imported(name: str, not_from: Path | None = None) -> type[nn.Module]:
    """The class a name stands for, also from the folder the program was called in."""
    module_name, _, attribute = name.partition(":")
    try:
        with _folder_of_the_call():
            _refuse_code_in(not_from, module_name)
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's own code
        if isinstance(error, ConfigError):
            raise
        is_missing = isinstance(error, ModuleNotFoundError) and module_name.startswith(
            error.name or ""
        )
        what = str(error) if is_missing else f"{type(error).__name__} in {module_name}: {error}"
        raise ConfigError(
            f"the encoder {name} cannot be had: {what}",
            hint="install what it is in, or call orbitset from the folder that it lies in"
            if is_missing
            else None,
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


@contextmanager
def _folder_of_the_call() -> Iterator[None]:
    """Modules are also looked for in the folder the program was called in, after those that are installed."""
    sys.path.append("")
    try:
        yield
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index("")]


def _refuse_code_in(folder: Path | None, module_name: str) -> None:
    found = None if folder is None else importlib.util.find_spec(module_name)
    if folder is None or found is None or found.origin is None:
        return
    if Path(found.origin).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{module_name} lies in the folder of the model; code that comes with a model is not run"
        )


def _check_timm(name: str) -> None:
    try:
        import timm

        all_names = timm.list_models()
    except (ImportError, RuntimeError, AttributeError) as error:  # or without its torchvision
        raise ConfigError(
            f"timm:{name} needs timm, which cannot be imported: {error}",
            hint="pip install 'orbitset[timm]'",
        ) from None
    base = name.partition(".")[0]
    if base not in all_names:
        near = difflib.get_close_matches(base, all_names, 3)
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
