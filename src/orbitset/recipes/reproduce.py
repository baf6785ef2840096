"""The experiments that can be reproduced by name."""

import inspect
from collections.abc import Callable
from typing import Any

from orbitset.errors import ConfigError, check_choice
from orbitset.recipes.affine_mnist import affine_mnist_study
from orbitset.recipes.faces import heads_study, multi_pie_study
from orbitset.recipes.real_faces import PIE32, POINTING04
from orbitset.recipes.study import Study

EXPERIMENTS: dict[str, Callable[..., Study]] = {
    "affine-mnist": affine_mnist_study,
    "heads": heads_study,
    "multi-pie": multi_pie_study,
    "pie32": PIE32.study,
    "pointing04": POINTING04.study,
}
"""The function that describes each experiment; its parameters are the options that it takes"""


def study_of(name: str, **options: Any) -> Study:
    """The experiment of that name, as its options change it; refuses what it has no use for, rather than
    ignore it."""
    check_choice("experiment", name, EXPERIMENTS)
    describe = EXPERIMENTS[name]
    known = inspect.signature(describe).parameters
    for option in options:
        if option not in known:
            hint = f"it takes {', '.join(sorted(map(_flag, known)))}"
            raise ConfigError(f"{_flag(option)} does not apply to {name}", hint=hint)
    if name == "multi-pie" and "root" not in options:
        raise ConfigError(
            "multi-pie is licensed and not fetched; say where it lies with --root",
            hint="the folder that holds session01 to session04",
        )
    if options.get("images", 1) < 1:
        raise ConfigError(f"images is {options['images']}; give at least 1")
    return describe(**options)


def _flag(option: str) -> str:
    return f"--{option.removeprefix('is_').replace('_', '-')}"
