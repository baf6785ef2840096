"""The settings of a loss, `loss.…` in a configuration: the keyword parameters of its objective.

This holds for the objectives of the package and for losses from outside it. A margin of the paper's ones can
also be set as a fraction of the usual distance of two codes.
"""

import functools
import inspect
import typing
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from orbitset.config import check_fields, replacing
from orbitset.errors import ConfigError
from orbitset.losses import Objective, as_objective
from orbitset.losses.contrast import check_ranges
from orbitset.losses.methods import Classified
from orbitset.outside import described_error

MARGIN_FRACTION, MARGIN_WITHOUT_NORM = 0.125, 0.2
"""The margin where none is set: a fraction of the usual squared distance of two codes, or a number for codes
without a norm, which have no usual distance"""
_BATCH = ("codes", "batch", "rectified")
_PLAIN = (bool, int, float, str)


@dataclass(frozen=True, kw_only=True)
class LossContext:
    """What an objective may need to know about the network and the images."""

    code_size: int
    num_orbits: int
    num_classes: int = 0
    usual_distance: float | None = None
    """The mean squared distance of two random codes; None if the codes have no norm"""


class _Common:
    """What settings have that are no fields of a loss."""

    shapes_codes: bool = True
    margin_fraction: float | None = None


@dataclass(frozen=True, kw_only=True)
class LossSettings(_Common):
    """The settings of a loss."""

    def build(self, context: LossContext) -> Objective:
        """The objective with these settings; an error while their loss, from outside, is not imported."""
        raise ConfigError("these settings are of a loss that has not been imported")


_CONTEXT = tuple(field.name for field in fields(LossContext))


@functools.cache
def settings_type(name: str, loss: Any, *, is_outside: bool = True) -> type[LossSettings]:
    """A dataclass of the keyword parameters of a loss; its `build(context)` gives the objective.

    `loss` is a function of codes and a batch, a class of modules, or a function that builds one. Parameters
    that a `functools.partial` sets are no settings.

    >>> from orbitset.losses import SupervisedTriplet
    >>> [field.name for field in fields(settings_type("ST", SupervisedTriplet, is_outside=False))]
    ['margin', 'margin_fraction', 'reduction', 'mining']
    """
    signed: Any = loss.func if isinstance(loss, functools.partial) else loss
    is_class = isinstance(signed, type)
    hints = typing.get_type_hints(signed.__init__ if is_class else signed)
    members: list[Any] = []
    for parameter in _settings_of(loss):
        if parameter.default is parameter.empty:
            raise ConfigError(
                f"the setting {parameter.name} of the loss {name} has no default; give it one"
            )
        kind = hints.get(parameter.name, type(parameter.default))
        if parameter.name == "margin" and not is_outside:
            members.append(("margin", float | None, replacing("margin_fraction", None, above=0)))
            members.append(("margin_fraction", float | None, replacing("margin", None)))
            continue
        is_known = kind in _PLAIN or typing.get_origin(kind) is not None
        members.append(
            (parameter.name, kind if is_known else Any, field(default=parameter.default))
        )

    def build(self: Any, context: LossContext) -> Objective:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if not is_outside and "margin" in values:
            del values["margin_fraction"]
            values["margin"] = margin_of(self, context.usual_distance)
            if values.get("scale") == "own-dimension" and context.usual_distance is not None:
                # entries of unit codes are small: their dimension is 1
                values["discriminate_weight"] *= context.code_size / (context.usual_distance / 2)
        return _build(name, loss, values, context)

    namespace = {"build": build} if is_outside else {"build": build, "__post_init__": _check}
    return make_dataclass(
        f"{name}Settings",
        members,
        bases=(LossSettings,),
        frozen=True,
        kw_only=True,
        namespace=namespace,
    )


def _build(name: str, loss: Any, settings: dict[str, Any], context: LossContext) -> Objective:
    if _is_objective_function(loss):
        return as_objective(functools.partial(loss, **settings))
    known = {
        name: getattr(context, name)
        for name in _CONTEXT
        if name in inspect.signature(loss).parameters
    }
    try:
        objective = loss(**known, **settings)
    except ConfigError:
        raise
    except Exception as error:  # the user's own code
        raise ConfigError(f"the loss {name} cannot be built: {described_error(error)}") from error
    if not callable(objective):
        raise ConfigError(f"{name} gave {type(objective).__name__}; give a module or a function")
    return as_objective(objective)


def _settings_of(loss: Any) -> list[inspect.Parameter]:
    """The parameters of a loss that are settings."""
    bound = loss.keywords if isinstance(loss, functools.partial) else ()
    others = {*_CONTEXT, *_BATCH, *bound}
    if _is_objective_function(loss):
        others.update(_positional(loss))
    return [
        parameter
        for parameter in inspect.signature(loss).parameters.values()
        if parameter.name not in others
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]


def _is_objective_function(loss: Any) -> bool:
    """Whether it takes codes and a batch itself, and is not what builds an objective."""
    return not isinstance(loss, type) and len(_positional(loss)) >= 2


def _positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


def _check(settings: Any) -> None:
    """Check the ranges of the settings that a loss of the package has."""
    check_fields(settings, "loss")
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    check_ranges(values, "loss.")
    for name in ("discriminate_weight", "rectify_weight", "hard_weight"):
        if not values.get(name, 1.0) > 0:
            raise ConfigError(
                f"loss.{name} is {values[name]}; give a number above 0 "
                "(OT, IN, IM, SG and PR have no rectify term, OE no discriminate term, IN no hard pairs)"
            )
    if "margin" not in values:
        return
    fraction = values["margin_fraction"]
    if None not in (values["margin"], fraction):
        raise ConfigError("loss.margin and loss.margin_fraction contradict each other; set one")
    if fraction is not None and not 0 < fraction <= 2:
        raise ConfigError(
            f"loss.margin_fraction is {fraction}; give a number above 0 and at most 2, "
            "beyond which no two codes lie"
        )


def build_loss(
    settings: LossSettings, context: LossContext, classify_weight: float = 0.0
) -> Objective:
    """The objective that settings describe; with a weight, class labels are learned beside it."""
    objective = settings.build(context)
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
    """The margin that is set, or the fraction of the usual squared distance."""
    if settings.margin is not None:
        return float(settings.margin)
    if usual_distance is None:
        return MARGIN_WITHOUT_NORM
    fraction = MARGIN_FRACTION if settings.margin_fraction is None else settings.margin_fraction
    return float(fraction * usual_distance)
