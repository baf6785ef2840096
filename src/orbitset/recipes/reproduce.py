"""The experiments that can be reproduced by name, and the options of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from orbitset.errors import ConfigError, check_choice
from orbitset.recipes.affine_mnist import affine_mnist_study
from orbitset.recipes.faces import heads_study, multi_pie_study
from orbitset.recipes.real_faces import pie32_study, pointing04_study
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
EXPERIMENTS: dict[str, tuple[Callable[..., Study], frozenset[str]]] = {
    "affine-mnist": (
        affine_mnist_study,
        frozenset({"methods", "epochs", "seeds", "test_images", "extras"}),
    ),
    "heads": (heads_study, frozenset({"methods", "images", "seeds", "is_small"})),
    "multi-pie": (
        multi_pie_study,
        frozenset({"methods", "images", "seeds", "root", "crops", "on_problem"}),
    ),
    "pie32": (pie32_study, frozenset({"methods", "images", "seeds", "root", "on_problem"})),
    "pointing04": (
        pointing04_study,
        frozenset({"methods", "images", "seeds", "root", "on_problem"}),
    ),
}
"""The function that describes each experiment, and the options that it takes"""


def study_of(name: str, options: StudyOptions) -> Study:
    """The experiment of that name; refuses what it has no use for, rather than ignore it."""
    check_choice("experiment", name, EXPERIMENTS)
    describe, understood = EXPERIMENTS[name]
    for option in options.chosen:
        if option not in understood:
            flag = _FLAGS.get(option, f"--{option}")
            known = ", ".join(sorted(_FLAGS.get(name, f"--{name}") for name in understood))
            raise ConfigError(f"{flag} does not apply to {name}", hint=f"it takes {known}")
    if name == "multi-pie" and options.root is None:
        raise ConfigError(
            "multi-pie is licensed and not fetched; say where it lies with --root",
            hint="the folder that holds session01 to session04",
        )
    if options.images is not None and options.images < 1:
        raise ConfigError(f"images is {options.images}; give at least 1")
    return describe(**options.chosen)
