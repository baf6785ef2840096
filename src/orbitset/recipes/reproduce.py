"""The experiments that can be reproduced by name, and the options of each."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from orbitset.errors import ConfigError, check_choice
from orbitset.recipes.affine_mnist import affine_mnist_study
from orbitset.recipes.faces import heads_study, multi_pie_study
from orbitset.recipes.real_faces import PIE32, POINTING04
from orbitset.recipes.study import Study


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options that change an experiment; None leaves it as it is."""

    methods: Sequence[str] | None = None
    epochs: float | None = None
    images: int | None = None
    seeds: int | None = None
    test_images: int | None = None
    extras: bool | None = None
    root: Path | None = None
    is_small: bool | None = None
    crops: str | None = None
    on_problem: str | None = None

    @property
    def chosen(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


_FLAGS = {"is_small": "--small", "test_images": "--test-images", "on_problem": "--on-problem"}
EXPERIMENTS: dict[str, Callable[..., Study]] = {
    "affine-mnist": affine_mnist_study,
    "heads": heads_study,
    "multi-pie": multi_pie_study,
    "pie32": PIE32.study,
    "pointing04": POINTING04.study,
}
"""The function that describes each experiment; its parameters are the options that it takes"""


def study_of(name: str, options: StudyOptions) -> Study:
    """The experiment of that name; refuses what it has no use for, rather than ignore it."""
    check_choice("experiment", name, EXPERIMENTS)
    describe = EXPERIMENTS[name]
    understood = inspect.signature(describe).parameters
    for option in options.chosen:
        if option not in understood:
            flag = _FLAGS.get(option, f"--{option}")
            known = ", ".join(sorted(_FLAGS.get(option, f"--{option}") for option in understood))
            raise ConfigError(f"{flag} does not apply to {name}", hint=f"it takes {known}")
    if name == "multi-pie" and options.root is None:
        raise ConfigError(
            "multi-pie is licensed and not fetched; say where it lies with --root",
            hint="the folder that holds session01 to session04",
        )
    if options.images is not None and options.images < 1:
        raise ConfigError(f"images is {options.images}; give at least 1")
    return describe(**options.chosen)
