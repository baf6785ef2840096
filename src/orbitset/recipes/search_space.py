"""Which settings are tried for which method, and what a point of that space means as settings."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from orbitset.encoders.config import PAPERS
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.methods import is_outside
from orbitset.recipes.outside_loss import method_named

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


_MEMBERS = "orbits.members_per_batch"
_NORM = "encoder.code_norm"
_FRACTION = "loss.margin_fraction"
_IMAGES = "images per batch"
_AUGMENT = "augmentation"
"""Two dimensions for observed orbits, each of which several settings make up"""
UNCHANGED = ["orbits.affine=null", "orbits.photometric=null"]
"""The settings of images that are not augmented"""
_DECADE = 10.0
"""Numbers of a loss from outside are searched from a tenth of their default to ten times it."""
_OF_COSINES = {"loss.temperature": (0.02, 0.5), "loss.rectify_weight": (0.3, 300.0)}
"""What is searched for a loss with a temperature"""


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


def space_of(
    base: Experiment, num_orbits: int, most_members: int, fixed: Sequence[str] = ()
) -> "dict[str, BaseDistribution]":
    """What is tried from a base, named as --set names it: nothing that is fixed, no batch that cannot be
    made, and in any case what the base itself has. `most_members` are those of the largest orbit.

    With the members of an orbit the orbits of a batch change, so that it keeps its number of images, which is
    a dimension of its own for observed orbits, as is whether they are augmented. OJ's rectify term keeps its
    weight, 1. A spatial transformer and a pretrained network have learning rates of their own.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    method, own = method_named(base.method), own_values(base)
    space: dict[str, BaseDistribution] = {}

    def choose(name: str, *choices: Any) -> None:
        space[name] = CategoricalDistribution(tuple(dict.fromkeys((*choices, own[name]))))

    def draw(name: str, low: float, high: float) -> None:
        low, high = min(low, own[name]), max(high, own[name])
        space[name] = FloatDistribution(low, high, log=True)

    if not base.is_observed:
        # a margin that is a fixed fraction needs a norm, of which it is one
        choose(_NORM, *(() if _FRACTION in fixed else ("none",)), "batch", "sphere")
    draw("train.learning_rate", 3e-5, 3e-2)
    images = own[_IMAGES]
    counts = (2, 4, 8) if method.compares_members else (1, 2, 4, 8)
    members = [k for k in counts if k <= most_members and 2 <= images // k <= num_orbits]
    choose(_MEMBERS, *members)
    if base.is_observed:
        most = max([*members, own[_MEMBERS]])
        choose(_IMAGES, *(n for n in (images // 2, 2 * images) if 2 <= n // most <= num_orbits))
        choose(_AUGMENT, False, True)
    for name in ("train.backbone_rate", "train.head_rate"):
        if base.is_observed and base.encoder.backbone != PAPERS and own[name] > 0:
            draw(name, 0.01, 1.0)
    if is_outside(method.name):
        for field in fields(method.settings):
            if isinstance(field.default, float) and field.default > 0:
                draw(f"loss.{field.name}", field.default / _DECADE, field.default * _DECADE)
    elif method.has_margin:
        choose("loss.mining", "semihard-else-farthest", "all")
        draw(_FRACTION, 0.01, 2.0)
        if {"loss.discriminate_weight", "loss.rectify_weight"} <= own.keys():
            draw("loss.discriminate_weight", *_balance(base))
    elif "loss.temperature" in own:
        for name, (low, high) in _OF_COSINES.items():
            if name in own:
                draw(name, low, high)
    if method.learns_classifier:
        draw("train.classifier_rate", 0.01, 1.0)
    if method.has_transformer:
        draw("train.transformer_rate", 0.003, 1.0)
    groups = {name.rpartition(".")[0] for name in fixed}
    return {
        name: values for name, values in space.items() if not _changed_by(name) & {*fixed, *groups}
    }


def own_values(base: Experiment) -> dict[str, Any]:
    """Where in the space a configuration lies."""
    loss = {f"loss.{field.name}": getattr(base.loss, field.name) for field in fields(base.loss)}
    values = {
        "encoder.code_norm": base.encoder.code_norm,
        "train.learning_rate": base.train.learning_rate,
        "train.transformer_rate": base.train.transformer_rate,
        "train.classifier_rate": base.train.classifier_rate,
        "train.backbone_rate": base.train.backbone_rate,
        "train.head_rate": base.train.head_rate,
        _MEMBERS: base.orbits.members_per_batch,
        _IMAGES: base.orbits.orbits_per_batch * base.orbits.members_per_batch,
        _AUGMENT: base.is_observed and base.observed.augmentation is not None,
        **loss,
    }
    return values if base.margin is None else {**values, _FRACTION: _own_fraction(base)}


def settings_of(values: Mapping[str, Any], base: Experiment, num_orbits: int) -> list[str]:
    """A point of the space as --set takes it, numbers to three digits: what is printed is what is trained.

    The orbits of the base are augmented; the point may turn that off.
    """
    norm = values.get("encoder.code_norm", base.encoder.code_norm)
    own = own_values(base)
    members, images = (values.get(name, own[name]) for name in (_MEMBERS, _IMAGES))
    in_a_batch = f"orbits.orbits_per_batch={max(1, min(num_orbits, images // members))}"
    settings = []
    for name, value in values.items():
        if name == _AUGMENT:
            settings += [] if value else UNCHANGED
            continue
        if name == _IMAGES:
            settings += [] if _MEMBERS in values else [in_a_batch]
            continue
        if name == _FRACTION and norm == "none":
            name, value = "loss.margin", margin_without_norm(value)
        text = f"{float(f'{value:.3g}'):g}" if isinstance(value, float) else value
        settings.append(f"{name}={text}")
        if name == _MEMBERS:
            settings.append(in_a_batch)
    return settings


def options_of(values: Mapping[str, Any], settings: Sequence[str]) -> list[str]:
    """The same as options of `orbitset train`."""
    options = []
    if _AUGMENT in values:
        options.append("--augment" if values[_AUGMENT] else "--no-augment")
    named = (setting for setting in settings if setting not in UNCHANGED)
    return [*options, *(part for setting in named for part in ("--set", setting))]


def with_all_changes(base: Experiment, size_px: int) -> Experiment:
    """The same with what can be turned off by a setting turned on."""
    if not base.is_observed or base.observed.augmentation is not None:
        return base
    return replace(base, orbits=base.observed.augmented(size_px))


def _changed_by(name: str) -> set[str]:
    changed = {
        _FRACTION: {_FRACTION, "loss.margin"},
        _MEMBERS: {_MEMBERS, "orbits.orbits_per_batch"},
        _IMAGES: {"orbits.orbits_per_batch"},
        _AUGMENT: {"orbits.affine", "orbits.photometric"},
    }
    return changed.get(name, {name})


def _balance(base: Experiment) -> tuple[float, float]:
    """What is searched for the weight of the discriminate term."""
    if not base.is_observed:
        return 3e-4, 30.0
    own: float = base.loss.discriminate_weight
    return own / 100, own * 100
