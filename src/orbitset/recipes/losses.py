"""The settings of each method's loss, `loss.…` in a configuration, and the objective that they describe."""

from dataclasses import dataclass
from typing import Any, get_args

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


@dataclass(frozen=True, kw_only=True)
class ReconstructionSettings:
    """Autoencoder."""

    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        check_choice("loss.reduction", self.reduction, get_args(Reduction))

    def build(self, context: LossContext) -> nn.Module:
        return Autoencoder(reduction=self.reduction)


@dataclass(frozen=True, kw_only=True)
class ExemplarSettings:
    """Exemplar loss, which has no settings of its own."""

    def build(self, context: LossContext) -> nn.Module:
        return Exemplar(code_size=context.code_size, num_orbits=context.num_orbits)


@dataclass(frozen=True, kw_only=True)
class RectifySettings:
    """Orbit encode: the rectify term alone."""

    rectify_weight: float = 1.0
    """lambda2 of the paper"""
    scale: Scale = "as-printed"
    """Divide the rectify term by the code size, as printed, or by the number of pixels"""
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        _check_terms(self)

    def build(self, context: LossContext) -> nn.Module:
        return OrbitJoint(
            discriminate_weight=0,
            rectify_weight=self.rectify_weight,
            scale=self.scale,
            reduction=self.reduction,
        )


@dataclass(frozen=True, kw_only=True)
class TripletSettings:
    """Supervised triplet: the triplet term with classes in place of orbits."""

    margin: float | None = replacing("margin_fraction", None)
    """Required gap between squared distances; null: by margin_fraction"""
    margin_fraction: float | None = replacing("margin", None)
    """The margin as a fraction of the usual squared distance of two codes; 0.125 if neither is set"""
    reduction: Reduction = "mean"
    mining: Variant = "semihard-else-farthest"

    def __post_init__(self) -> None:
        _check_terms(self)

    def build(self, context: LossContext) -> nn.Module:
        return SupervisedTriplet(
            margin=margin_of(self, context.usual_distance),
            reduction=self.reduction,
            mining=self.mining,
        )


@dataclass(frozen=True, kw_only=True)
class OrbitTripletSettings:
    """Orbit triplet: the discriminate term alone."""

    margin: float | None = replacing("margin_fraction", None)
    """Required gap between squared distances; null: by margin_fraction"""
    margin_fraction: float | None = replacing("margin", None)
    """The margin as a fraction of the usual squared distance of two codes; 0.125 if neither is set"""
    discriminate_weight: float = 1.0
    """lambda1 of the paper"""
    scale: Scale = "as-printed"
    """Divide the discriminate term by the number of pixels, as printed, or by the code size"""
    reduction: Reduction = "mean"
    mining: Variant = "semihard-else-farthest"

    def __post_init__(self) -> None:
        _check_terms(self)

    def build(self, context: LossContext) -> nn.Module:
        return OrbitJoint(
            margin=margin_of(self, context.usual_distance),
            discriminate_weight=self.discriminate_weight,
            rectify_weight=0,
            scale=self.scale,
            reduction=self.reduction,
            mining=self.mining,
        )


@dataclass(frozen=True, kw_only=True)
class OrbitJointSettings:
    """Orbit joint: discriminate and rectify."""

    margin: float | None = replacing("margin_fraction", None)
    """Required gap between squared distances; null: by margin_fraction"""
    margin_fraction: float | None = replacing("margin", None)
    """The margin as a fraction of the usual squared distance of two codes; 0.125 if neither is set"""
    discriminate_weight: float = 1.0
    """lambda1 of the paper"""
    rectify_weight: float = 1.0
    """lambda2 of the paper"""
    scale: Scale = "as-printed"
    """Divide the terms as printed, or each by its own dimension"""
    reduction: Reduction = "mean"
    mining: Variant = "semihard-else-farthest"

    def __post_init__(self) -> None:
        _check_terms(self)

    def build(self, context: LossContext) -> nn.Module:
        return OrbitJoint(
            margin=margin_of(self, context.usual_distance),
            discriminate_weight=self.discriminate_weight,
            rectify_weight=self.rectify_weight,
            scale=self.scale,
            reduction=self.reduction,
            mining=self.mining,
        )


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


def _check_terms(settings: Any) -> None:
    """Check the ranges of the settings that a dataclass has."""
    check_choice("loss.reduction", settings.reduction, get_args(Reduction))
    if hasattr(settings, "scale"):
        check_choice("loss.scale", settings.scale, get_args(Scale))
    for name in ("discriminate_weight", "rectify_weight"):
        if not getattr(settings, name, 1.0) > 0:
            raise ConfigError(
                f"loss.{name} is {getattr(settings, name)}; give a number above 0 "
                "(OT has no rectify term, OE no discriminate term)"
            )
    if not hasattr(settings, "margin"):
        return
    check_variant(settings.mining)
    margin, fraction = settings.margin, settings.margin_fraction
    if None not in (margin, fraction):
        raise ConfigError("loss.margin and loss.margin_fraction contradict each other; set one")
    if margin is not None and not margin > 0:
        raise ConfigError(f"loss.margin is {margin}; give a number above 0")
    if fraction is not None and not 0 < fraction <= 2:
        raise ConfigError(
            f"loss.margin_fraction is {fraction}; give a number above 0 and at most 2, "
            "beyond which no two codes lie"
        )
