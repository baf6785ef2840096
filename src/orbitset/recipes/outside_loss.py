"""Losses from outside the package, named `package.module:name`.

Such a name is a function `(codes, batch)` or `(codes, batch, rectified)` that gives the loss, or named terms
with `loss` among them; or a class of modules that are called so, or a function that builds one. Its keyword
parameters with defaults are its settings: `--set loss.temperature=0.1`. A class or builder may also ask for
`code_size`, `num_orbits` and `num_classes`.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from torch import nn

from orbitset.errors import ConfigError
from orbitset.losses import as_objective
from orbitset.outside import described_error, import_named
from orbitset.recipes.losses import LossContext
from orbitset.recipes.methods import Method, base_name, built_in, has_transformer, parse_method

_CONTEXT = tuple(field.name for field in dataclasses.fields(LossContext))
_BATCH = ("codes", "batch", "rectified")
_PLAIN = (bool, int, float, str)


def method_named(name: str) -> Method:
    """The method of that name; a loss from outside is imported."""
    known = built_in(parse_method(name))
    if known is not None:
        return known
    return method_of(name, import_named(base_name(name), what="loss"))


def method_of(name: str, loss: Any) -> Method:
    """The method that minimises a loss from outside the package."""
    if not callable(loss):
        raise ConfigError(f"{base_name(name)} is not a function or a class, so it cannot be a loss")
    return Method(
        name=name,
        title=base_name(name).rpartition(":")[2],
        settings=_settings_type(base_name(name), loss),
        decodes=_decodes(loss),
        has_transformer=has_transformer(name),
    )


def default_loss(name: str, **values: float) -> Any:
    """The settings of a method's loss, with those of the values that it has."""
    settings = method_named(name).settings
    own = {field.name for field in dataclasses.fields(settings)}
    return settings(**{name: value for name, value in values.items() if name in own})


def plain_settings(values: Any) -> Any:
    """The type of settings of what has not been imported: the names of these values, with any values."""
    return _plain_settings(tuple(values)) if isinstance(values, Mapping) else Any


@functools.cache
def _plain_settings(names: tuple[str, ...]) -> type:
    return dataclasses.make_dataclass(
        "PlainSettings",
        [(name, Any) for name in names],
        frozen=True,
        namespace={"can_keep_best": True},  # as far as is known
    )


@functools.cache
def _settings_type(name: str, loss: Any) -> type:
    """A dataclass of the keyword parameters of a loss, which builds the objective."""
    fields = []
    signed: Any = loss
    hints = typing.get_type_hints(signed.__init__ if isinstance(loss, type) else loss)
    for parameter in _parameters(loss):
        if parameter.name in (*_CONTEXT, *_BATCH) or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            continue
        if parameter.default is parameter.empty:
            raise ConfigError(
                f"the setting {parameter.name} of the loss {name} has no default; give it one"
            )
        kind = hints.get(parameter.name, type(parameter.default))
        if not (kind in _PLAIN or typing.get_origin(kind) is not None):
            kind = Any
        fields.append((parameter.name, kind, dataclasses.field(default=parameter.default)))

    def build(self: Any, context: LossContext) -> nn.Module:
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _build(name, loss, settings, context)

    return dataclasses.make_dataclass(
        "OutsideSettings", fields, frozen=True, kw_only=True, namespace={"build": build}
    )


def _build(name: str, loss: Any, settings: dict[str, Any], context: LossContext) -> nn.Module:
    if _is_objective_function(loss):
        return as_objective(functools.partial(loss, **settings))
    names = {parameter.name for parameter in _parameters(loss)}
    known = {field: getattr(context, field) for field in _CONTEXT if field in names}
    try:
        objective = loss(**known, **settings)
    except ConfigError:
        raise
    except Exception as error:  # the user's own code
        raise ConfigError(f"the loss {name} cannot be built: {described_error(error)}") from error
    if not callable(objective):
        raise ConfigError(f"{name} gave {type(objective).__name__}; give a module or a function")
    return as_objective(objective)


def _decodes(loss: Any) -> bool:
    """Whether the loss looks at decoded images."""
    if _is_objective_function(loss):
        return len(_positional(loss)) > 2
    own = getattr(loss, "uses_rectified", None)
    forward = getattr(loss, "forward", None)
    if own is None and isinstance(loss, type) and forward is not None:
        return len(_positional(forward)) > 3  # self, codes, batch, rectified
    return own is not False


def _is_objective_function(loss: Any) -> bool:
    """Whether it takes codes and a batch itself, and is not what builds an objective."""
    return not isinstance(loss, type) and len(_positional(loss)) >= 2


def _positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


def _parameters(loss: Any) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(loss).parameters.values())
    if _is_objective_function(loss):
        positional = _positional(loss)
        return [parameter for parameter in parameters if parameter.name not in positional]
    return parameters
