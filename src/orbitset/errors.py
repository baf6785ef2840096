"""What can go wrong outside the caller's code, one class per kind.

OrbitsetError
├── ConfigError     a setting that is not accepted (also a ValueError); exit code 2
├── DataError       missing, damaged or unusable images
├── RunError        a run folder that is damaged, cannot be used so or cannot be written
└── TrainingError   numbers that are not finite: training had to stop
"""

import difflib
from collections.abc import Collection
from typing import Any


class OrbitsetError(Exception):
    """An error in one sentence, optionally with a hint of what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, is_usage: bool = False) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")
        self.message = message
        self.hint = hint
        if is_usage:
            self.exit_code = 2


class ConfigError(OrbitsetError, ValueError):
    exit_code = 2


class DataError(OrbitsetError):
    pass


class RunError(OrbitsetError):
    pass


class TrainingError(OrbitsetError):
    pass


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Refuse a value that is not among the choices, and name the nearest."""
    if value not in choices:
        words = [str(choice) for choice in choices if choice is not None]
        near = difflib.get_close_matches(str(value), words, n=1, cutoff=0.5)
        raise ConfigError(
            f"{name} is {value!r}; choose one of {', '.join(words)}",
            hint=f"did you mean {near[0]}?" if near else None,
        )


def count_of(number: int, noun: str) -> str:
    """
    >>> count_of(1, "image"), count_of(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def started_otherwise(path: object, changes: str = "") -> ConfigError:
    """The error where a run is to go on with other settings.

    >>> str(started_otherwise("runs/mine", "seed: 0 → 1"))[:57]
    'runs/mine was started with other settings (seed: 0 → 1) ('
    """
    return ConfigError(
        f"{path} was started with other settings{changes and f' ({changes})'}",
        hint="resume with the settings it was started with, or choose another folder with --out",
    )
