"""The settings of each method's loss, `loss.…` in a configuration, and the objective that they describe."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from typing import Any, get_args, get_type_hints

from torch import nn

from orbitset.config import replacing
from orbitset.errors import ConfigError, check_choice
from orbitset.losses import Autoencoder, Exemplar, OrbitJoint, SupervisedTriplet
from orbitset.losses.joint import Scale
from orbitset.losses.methods import Classified
from orbitset.losses.mining import Variant, check_variant
from orbitset.losses.triplet import Reduction

MARGIN_FRACTION, MARGIN_WITHOUT_NORM = 0.125, 0.2
"""The margin where none is set: a fraction of the usual squared distance of two codes, or a number for codes
without a norm, which have no usual distance"""


@dataclass(frozen=True, kw_only=True)
class LossContext:
    """What an objective may need to know about the network and the images."""

    code_size: int
    num_orbits: int
    num_classes: int = 0
    usual_distance: float | None = None
    """The mean squared distance of two random codes; None if the codes have no norm"""


def _check(settings: Any) -> None:
    """Check the ranges of the settings that a dataclass has."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    for name, kind in (("reduction", Reduction), ("scale", Scale)):
        if name in values:
            check_choice(f"loss.{name}", values[name], get_args(kind))
    for name in ("discriminate_weight", "rectify_weight"):
        if not values.get(name, 1.0) > 0:
            raise ConfigError(
                f"loss.{name} is {values[name]}; give a number above 0 "
                "(OT has no rectify term, OE no discriminate term)"
            )
    if "margin" not in values:
        return
    check_variant(values["mining"])
    margin, fraction = values["margin"], values["margin_fraction"]
    if None not in (margin, fraction):
        raise ConfigError("loss.margin and loss.margin_fraction contradict each other; set one")
    if margin is not None and not margin > 0:
        raise ConfigError(f"loss.margin is {margin}; give a number above 0")
    if fraction is not None and not 0 < fraction <= 2:
        raise ConfigError(
            f"loss.margin_fraction is {fraction}; give a number above 0 and at most 2, "
            "beyond which no two codes lie"
        )


@dataclass(frozen=True, kw_only=True)
class OrbitJointSettings:
    """Orbit joint: discriminate and rectify. Other methods have a part of these settings."""

    margin: float | None = replacing("margin_fraction", None)
    """Required gap between squared distances; null: by margin_fraction"""
    margin_fraction: float | None = replacing("margin", None)
    """The margin as a fraction of the usual squared distance of two codes; 0.125 if neither is set"""
    discriminate_weight: float = 1.0
    """lambda1 of the paper"""
    rectify_weight: float = 1.0
    """lambda2 of the paper"""
    scale: Scale = "as-printed"
    """What the terms are divided by: as printed, discriminate by the number of pixels and rectify by the code
    size, or each by its own dimension"""
    reduction: Reduction = "mean"
    mining: Variant = "semihard-else-farthest"

    def __post_init__(self) -> None:
        _check(self)

    def build(self, context: LossContext) -> nn.Module:
        return OrbitJoint(**_numbers(self, context))


def _part(name: str, settings: tuple[str, ...], build: Callable[..., nn.Module]) -> type:
    """A dataclass with some of the settings of orbit joint, and another objective."""
    types = get_type_hints(OrbitJointSettings)
    joint = {field.name: field for field in fields(OrbitJointSettings)}
    own = [
        (setting, types[setting], field(default=old.default, metadata=old.metadata))
        for setting, old in joint.items()
        if setting in settings
    ]
    methods = {
        "__module__": __name__,
        "__post_init__": _check,
        "build": lambda self, context: build(**_numbers(self, context)),
    }
    return make_dataclass(name, own, frozen=True, kw_only=True, namespace=methods)


_TRIPLETS = ("margin", "margin_fraction", "reduction", "mining")
OrbitTripletSettings = _part(
    "OrbitTripletSettings",
    (*_TRIPLETS, "discriminate_weight", "scale"),
    partial(OrbitJoint, rectify_weight=0),
)
RectifySettings = _part(
    "RectifySettings",
    ("rectify_weight", "scale", "reduction"),
    partial(OrbitJoint, discriminate_weight=0),
)
TripletSettings = _part("TripletSettings", _TRIPLETS, SupervisedTriplet)
ReconstructionSettings = _part("ReconstructionSettings", ("reduction",), Autoencoder)


@dataclass(frozen=True)
class ExemplarSettings:
    """Exemplar has no settings of its own."""

    def build(self, context: LossContext) -> nn.Module:
        return Exemplar(code_size=context.code_size, num_orbits=context.num_orbits)


def _numbers(settings: Any, context: LossContext) -> dict[str, Any]:
    """The settings as the objective takes them, with one margin."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if "margin" in values:
        del values["margin_fraction"]
        values["margin"] = margin_of(settings, context.usual_distance)
    return values


def build_loss(settings: Any, context: LossContext, classify_weight: float = 0.0) -> nn.Module:
    """The objective that settings describe; with a weight, class labels are learned beside it."""
    objective: nn.Module = settings.build(context)
    if not classify_weight:
        return objective
    if context.num_classes < 2:
        raise ConfigError(
            "classify_weight asks for classes, and the images that are trained on have "
            f"{context.num_classes}; give labels of at least 2 classes, or a weight of 0"
        )
    return Classified(
        objective,
        weight=classify_weight,
        code_size=context.code_size,
        num_classes=context.num_classes,
    )


def margin_of(settings: Any, usual_distance: float | None) -> float:
    """The margin that is set, or the fraction of the usual squared distance.

    >>> margin_of(TripletSettings(margin_fraction=0.25), 128.0), margin_of(TripletSettings(), None)
    (32.0, 0.2)
    """
    if settings.margin is not None:
        return float(settings.margin)
    if usual_distance is None:
        return MARGIN_WITHOUT_NORM
    fraction = MARGIN_FRACTION if settings.margin_fraction is None else settings.margin_fraction
    return float(fraction * usual_distance)
