"""Losses from outside the package, named `package.module:name`.

Such a name is a function `(codes, batch)` or `(codes, batch, rectified)` that gives the loss, or named terms
with `loss` among them; or a class of modules that are called so, or a function that builds one. Its keyword
parameters with defaults are its settings: `--set loss.temperature=0.1`. A class or builder may also ask for
`code_size`, `num_orbits` and `num_classes`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from orbitset.errors import ConfigError
from orbitset.outside import import_named
from orbitset.recipes.losses import settings_type
from orbitset.recipes.methods import Method, base_name, built_in, has_transformer, parse_method


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
        settings=settings_type(base_name(name), loss),
        has_transformer=has_transformer(name),
    )


def default_loss(name: str, **values: float) -> Any:
    """The settings of a method's loss, with those of the values that it has."""
    settings = method_named(name).settings
    own = {field.name for field in dataclasses.fields(settings)}
    return settings(**{name: value for name, value in values.items() if name in own})


def plain_settings(values: Any, base: type) -> Any:
    """The type of settings of what has not been imported: the names of these values, with any values."""
    return _plain_settings(tuple(values), base) if isinstance(values, Mapping) else Any


@functools.cache
def _plain_settings(names: tuple[str, ...], base: type) -> type:
    return dataclasses.make_dataclass(
        "PlainSettings",
        [(name, Any) for name in names],
        bases=(base,),
        frozen=True,
        kw_only=True,
        namespace={"can_keep_best": True},  # as far as is known
    )
