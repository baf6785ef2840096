"""Which settings are tried for which method, and what a point of that space means as settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from orbitset.orbits.computed import OrbitConfig
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.methods import Method, is_outside
from orbitset.recipes.outside_loss import method_named

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Range:
    """Any number between two, on a logarithmic scale."""

    name: str
    low: float
    high: float

    def including(self, value: Any) -> "Range":
        return replace(self, low=min(self.low, value), high=max(self.high, value))

    def suggest(self, trial: "optuna.Trial") -> float:
        return trial.suggest_float(self.name, self.low, self.high, log=True)


@dataclass(frozen=True)
class Choice:
    """One of a few."""

    name: str
    choices: tuple[Any, ...]

    def including(self, value: Any) -> "Choice":
        return replace(self, choices=tuple(dict.fromkeys((*self.choices, value))))

    def suggest(self, trial: "optuna.Trial") -> Any:
        return trial.suggest_categorical(self.name, self.choices)


Space = tuple[Range | Choice, ...]

_MEMBERS = "orbits.members_per_batch"
_NORMS = ("batch", "sphere")
_NORM = Choice("encoder.code_norm", ("none", *_NORMS))
_RATE = Range("train.learning_rate", 3e-5, 3e-2)
_TRANSFORMER = Range("train.transformer_rate", 0.003, 1.0)
_CLASSIFIER = Range("train.classifier_rate", 0.01, 1.0)
_ANY = Choice(_MEMBERS, (1, 2, 4, 8))
_PAIRS = Choice(_MEMBERS, (2, 4, 8))
_FRACTION = "loss.margin_fraction"
_MARGIN = Range(_FRACTION, 0.01, 2.0)
_MINING = Choice("loss.mining", ("semihard-else-farthest", "all"))
_WEIGHT = Range("loss.discriminate_weight", 3e-4, 30.0)

_DECADE = 10.0
"""Numbers of a loss from outside are searched from a tenth of their default to ten times it."""


def dimensions(method: Method) -> Space:
    """What is searched for a method, named as --set names it.

    With the members of an orbit the orbits of a batch change, so that it keeps its number of images; the
    rectify term keeps its weight, 1. A spatial transformer has a learning rate of its own.
    """
    own = {field.name: field for field in fields(method.settings)}
    space: list[Range | Choice] = [_NORM, _RATE, _PAIRS if method.compares_members else _ANY]
    if is_outside(method.name):
        defaults = {name: field.default for name, field in own.items()}
        space += [
            Range(f"loss.{name}", default / _DECADE, default * _DECADE)
            for name, default in defaults.items()
            if isinstance(default, float) and default > 0
        ]
    elif method.has_margin:
        space += [_MINING, _MARGIN]
        if {"discriminate_weight", "rectify_weight"} <= own.keys():
            space.append(_WEIGHT)
    if method.learns_classifier:
        space.append(_CLASSIFIER)
    if method.has_transformer:
        space.append(_TRANSFORMER)
    return tuple(space)


def margin_without_norm(fraction: float) -> float:
    """Codes without a norm have no usual distance: for them 0.01 to 1 stands for 0.1 to 100, in equal ratios.

    >>> margin_without_norm(0.01), margin_without_norm(1)
    (0.1, 100.0)
    """
    return float(0.1 * (100 * fraction) ** 1.5)


def _own_fraction(base: Experiment) -> float:
    margin, usual = base.margin, base.usual_distance
    assert margin is not None
    if usual is None:
        return float((10 * margin) ** (2 / 3) / 100)
    return margin / usual


def space_of(base: Experiment, num_orbits: int, fixed: Sequence[str] = ()) -> Space:
    """What is tried from a base: nothing that is fixed, no batch that cannot be made, and in any case what
    the base itself has."""
    own = own_values(base)
    space: list[Range | Choice] = []
    for dimension in dimensions(method_named(base.method)):
        if isinstance(dimension, Choice) and dimension.name == _MEMBERS:
            dimension = replace(dimension, choices=_possible(dimension, base, num_orbits))
        if isinstance(dimension, Choice) and dimension.name == _NORM.name and _FRACTION in fixed:
            dimension = replace(dimension, choices=_NORMS)  # which it is a fraction for
        if not _changed_by(dimension.name) & set(fixed):
            space.append(dimension.including(own[dimension.name]))
    return tuple(space)


def own_values(base: Experiment) -> dict[str, Any]:
    """Where in the space a configuration lies."""
    loss = {f"loss.{field.name}": getattr(base.loss, field.name) for field in fields(base.loss)}
    values = {
        "encoder.code_norm": base.encoder.code_norm,
        "train.learning_rate": base.train.learning_rate,
        "train.transformer_rate": base.train.transformer_rate,
        "train.classifier_rate": base.train.classifier_rate,
        _MEMBERS: base.orbits.members_per_batch,
        **loss,
    }
    return values if base.margin is None else {**values, _FRACTION: _own_fraction(base)}


def settings_of(values: Mapping[str, Any], base: Experiment) -> list[str]:
    """A point of the space as --set takes it, numbers to three digits: what is printed is what is trained."""
    norm = values.get("encoder.code_norm", base.encoder.code_norm)
    settings = []
    for name, value in values.items():
        if name == _FRACTION and norm == "none":
            name, value = "loss.margin", margin_without_norm(value)
        text = f"{float(f'{value:.3g}'):g}" if isinstance(value, float) else value
        settings.append(f"{name}={text}")
        if name == _MEMBERS:
            settings.append(f"orbits.orbits_per_batch={_batch_images(base) // value}")
    return settings


def _changed_by(name: str) -> set[str]:
    changed = {
        _FRACTION: {_FRACTION, "loss.margin"},
        _MEMBERS: {_MEMBERS, "orbits.orbits_per_batch"},
    }
    return changed.get(name, {name})


def _batch_images(base: Experiment) -> int:
    return base.orbits.orbits_per_batch * base.orbits.members_per_batch


def _possible(members: Choice, base: Experiment, num_orbits: int) -> tuple[int, ...]:
    """Of the choices, those that leave a batch at least two orbits, and no more than there are."""
    assert isinstance(base.orbits, OrbitConfig)
    images, most = _batch_images(base), base.orbits.members
    return tuple(k for k in members.choices if k <= most and 2 <= images // k <= num_orbits)
