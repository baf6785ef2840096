"""What was typed, before anything is known of the images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orbitset.config import parse_settings
from orbitset.encoders.config import PAPERS
from orbitset.encoders.named import look_at
from orbitset.errors import ConfigError
from orbitset.models.folder import read_description
from orbitset.outside import is_name, trust
from orbitset.recipes.experiment import check_settings
from orbitset.recipes.methods import base_name
from orbitset.recipes.own_images import OrbitOptions

_OPTIONS = {"method": str, "protocol": str, "train.epochs": float, "seed": int}
"""Settings that are options of the command line, too"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asks for; None where the user says nothing."""

    source: str | None = None
    """A recipe or data"""
    method: str | None = None
    protocol: str | None = None
    measures: tuple[str, ...] = ()
    epochs: float | None = None
    minutes: float | None = None
    """The time limit of the training"""
    seed: int | None = None
    init: Path | None = None
    """A model to begin with, whose network and size of images are taken"""
    encoder: str | None = None
    """A network other than the paper's"""
    observed: OrbitOptions = OrbitOptions()
    settings: tuple[str, ...] = ()

    def named(self) -> tuple["Request", dict[str, str]]:
        """The same with the settings that are options too in their place (`--set method=AE` is `--method
        AE`), and the other settings by name."""
        settings = parse_settings(self.settings)
        values: dict[str, Any] = {}
        for name, kind in _OPTIONS.items():
            if name in settings:
                text = settings.pop(name)
                try:
                    values[name.removeprefix("train.")] = kind(text)
                except ValueError:
                    raise ConfigError(f"{name} is {text!r}; give a number") from None
        return replace(self, **values, settings=()), settings

    def check(self, settings: Mapping[str, str], methods: Sequence[str]) -> None:
        """Refuse what no images could make right, before any of them is looked at."""
        numbers = {"train.epochs": self.epochs, "seed": self.seed}
        texts = {name: str(number) for name, number in numbers.items() if number is not None}
        check_settings({**settings, **texts}, methods=methods, protocol=self.protocol)
        if self.init is not None:
            read_description(self.init)
        network = settings.get("encoder.backbone", self.encoder)
        if network not in (None, PAPERS) and self.init is None:
            look_at(network)

    def trust_names(self, settings: Mapping[str, str]) -> None:
        """Code that the command line names may run, even where a file names it too."""
        own = [self.source, self.method, self.protocol, self.encoder]
        names = [*own, *self.measures, *settings.values()]
        for name in (part.strip() for text in filter(None, names) for part in text.split(",")):
            if is_name(base_name(name)):
                trust(name)
