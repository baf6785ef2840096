"""Frozen dataclasses to and from JSON, and single fields set by dotted name: loss.margin=0.3."""

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from orbitset.errors import ConfigError, check_choice

T = TypeVar("T")


class UnknownSetting(ConfigError):
    """A setting that a configuration does not have; `name` is its dotted name, `known` is what there is."""

    name: str
    known: list[str]


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dictionaries of plain values, as they go to config.json."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def from_dict(
    cls: type[T],
    values: Mapping[str, Any],
    prefix: str = "",
    *,
    types: Mapping[str, Any] | None = None,
) -> T:
    """The dataclass with these values; every unknown key or wrong type is an error that names it.

    `types` gives the types of fields that their annotation leaves open.
    """
    hints = typing.get_type_hints(cls) | dict(types or {})
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise _unknown(f"{prefix}{key}", [f"{prefix}{name}" for name in names])
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if is_required and field.name not in values:
            raise ConfigError(f"the setting {prefix}{field.name} is missing")
    return cls(**{k: _convert(hints[k], v, f"{prefix}{k}") for k, v in values.items()})


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """Texts such as 'loss.margin=0.3' as values by name; the last one counts where a name is set twice."""
    values = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"setting {setting!r} has no '='; write it as name=value")
        values[name.strip()] = text.strip()
    return values


def with_settings(config: T, settings: Iterable[str] | Mapping[str, str]) -> T:
    """A copy with fields set from texts such as 'loss.margin=0.3', or from texts by name.

    A field whose metadata says that it `replaces` another one empties that; settings that set both are
    refused.

    >>> from orbitset.training import TrainConfig
    >>> with_settings(TrainConfig(), ["epochs=3"]).epochs
    3.0
    """
    values = to_dict(config)
    texts = settings if isinstance(settings, Mapping) else parse_settings(settings)
    for name, text in texts.items():
        *path, last = name.split(".")
        place: Any = values
        for depth, part in enumerate((*path, last)):
            if not isinstance(place, dict) or part not in place:
                is_off = place is None and _is_group(_field(config, path[:depth])[1])
                off = ".".join(path[:depth]) if is_off else None
                raise _unknown(name, list(_leaves(values)), off=off)
            parent, place = place, place[part]
        owner, hint = _field(config, [*path, last])
        if isinstance(place, dict) and not (text == "null" and type(None) in typing.get_args(hint)):
            inside = [leaf for leaf in _leaves(values) if leaf.startswith(f"{name}.")]
            raise ConfigError(f"{name} is a group of settings; set one of {', '.join(inside)}")
        parent[last] = _read(text, place, hint)
        replaced = ".".join([*path, owner.metadata.get("replaces", "")])
        if "replaces" not in owner.metadata or "null" in (text, texts.get(replaced)):
            continue
        if replaced in texts:
            raise ConfigError(f"{name} and {replaced} contradict each other; set one of them")
        parent[owner.metadata["replaces"]] = owner.metadata["replaces_with"]
    types = {name: kind for name, kind in _own_types(config).items() if values[name] is not None}
    return from_dict(type(config), values, types=types)


def check_setting(
    cls: type, name: str, text: str, *, types: Mapping[str, Any] | None = None
) -> None:
    """Refuse a setting that a dataclass does not have, or a value that its field never takes.

    Nothing is built, and what other settings make of the value is not looked at. `types` gives the types of
    fields that their annotation leaves open.

    >>> from orbitset.training import TrainConfig
    >>> check_setting(TrainConfig, "epochs", "0")
    Traceback (most recent call last):
    orbitset.errors.ConfigError: epochs is 0.0; give a number above 0
    """
    known = dict(_fields_of(cls, types or {}))
    if any(other.startswith(f"{name}.") for other in known):
        return  # `with_settings` refuses a group with a hint of its settings
    if name not in known:
        raise _unknown(name, list(known))
    field, hint = known[name]
    _check_field(field, hint, _convert(hint, _read(text, field.default, hint), name), name)


def bounded(default: Any, *, at_least: float | None = None, above: float | None = None) -> Any:
    """A field with a lower bound, which `check_fields` checks."""
    return dataclasses.field(default=default, metadata={"at_least": at_least, "above": above})


def check_fields(config: Any, group: str = "") -> None:
    """Refuse values below the bound of their field, or none of its choices, if it is a Literal.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Walk:
    ...     steps: int = bounded(1, at_least=1)
    >>> check_fields(Walk(steps=0), "walk")
    Traceback (most recent call last):
    orbitset.errors.ConfigError: walk.steps is 0; give at least 1
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        _check_field(field, hints[field.name], value, f"{group}.{field.name}".lstrip("."))


def _check_field(field: dataclasses.Field[Any], hint: Any, value: Any, name: str) -> None:
    if typing.get_origin(hint) is Literal:
        check_choice(name, value, typing.get_args(hint))
    least, above = (field.metadata.get(bound) for bound in ("at_least", "above"))
    if None not in (value, least) and not value >= least:
        raise ConfigError(f"{name} is {value}; give at least {least}")
    if None not in (value, above) and not value > above:
        raise ConfigError(f"{name} is {value}; give a number above {above}")


def replacing(name: str, default: Any, *, empty: Any = None, **bounds: float) -> Any:
    """A field that, when it is set, makes another field of its group `empty`.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Length:
    ...     metres: float | None = replacing("feet", None)
    ...     feet: float | None = replacing("metres", None)
    >>> with_settings(Length(feet=3.0), ["metres=2"])
    Length(metres=2.0, feet=None)
    """
    metadata = {"replaces": name, "replaces_with": empty, **bounds}
    return dataclasses.field(default=default, metadata=metadata)


def _own_types(config: Any) -> dict[str, Any]:
    """The types of the groups of settings that a configuration has, which its annotations may leave open."""
    fields = ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
    return {name: type(value) for name, value in fields if dataclasses.is_dataclass(value)}


def differences(a: Any, b: Any) -> list[str]:
    """What differs between two configurations, as 'name: old → new'."""
    left, right = _leaves(to_dict(a)), _leaves(to_dict(b))
    # a group of settings may be there on one side only
    pairs = {name: (left.get(name, "–"), right.get(name, "–")) for name in left | right}
    return [f"{name}: {old} → {new}" for name, (old, new) in pairs.items() if old != new]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return dict(_walk(values, prefix))


def _walk(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _walk(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _fields_of(
    cls: type, types: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[dataclasses.Field[Any], Any]]]:
    """All settings of a dataclass and its groups by their dotted names, with their types."""
    hints = typing.get_type_hints(cls) | dict(types)
    for field in dataclasses.fields(cls):
        hint, name = hints[field.name], f"{prefix}{field.name}"
        kinds = (hint, *typing.get_args(hint))
        group = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        if isinstance(group, type):
            yield from _fields_of(group, {}, f"{name}.")
        else:
            yield name, (field, hint)


def _field(config: Any, path: list[str]) -> tuple[dataclasses.Field[Any], Any]:
    """A field by its dotted name, and its annotated type."""
    *groups, last = path
    for group in groups:
        config = getattr(config, group)
    field = next(field for field in dataclasses.fields(config) if field.name == last)
    return field, typing.get_type_hints(type(config))[last]


def _read(text: str, old: Any, hint: Any) -> Any:
    """The value that a text stands for. Where the field holds texts, the text itself; where it holds a list,
    one number is a list of one."""
    if text == "null" and type(None) in typing.get_args(hint):
        return None
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is str:
        return [part.strip() for part in text.split(",") if part.strip()]
    if hint is str or str in typing.get_args(hint) or isinstance(old, str):
        return text
    value = _parse(text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [value] if isinstance(old, list | tuple) and is_number else value


def _parse(text: str) -> Any:
    """JSON where it is JSON (numbers, true, null, [1, 2]), else the text itself; 8,16 is a list."""
    for candidate in (text, f"[{text}]" if "," in text else text):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return text


def _convert(hint: Any, value: Any, name: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return tuple(value) if isinstance(value, list) else value
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {value!r}; give a group of settings")
        return from_dict(hint, value, f"{name}.")  # type: ignore[arg-type]
    if origin is Literal:
        value = next((a for a in args if str(a).lower() == str(value).lower()), value)
        check_choice(name, value, args)
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, name)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} is {value!r}; give a list such as 16,32,64")
        return tuple(_convert(args[0], item, name) for item in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {value!r}; give values by name")
        return {str(key): _convert(args[1], item, f"{name}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1023 else math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} is {value}; give a finite number")
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        kinds = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise ConfigError(f"{name} is {value!r}; give {kinds[hint]}")
    return value


def _is_group(hint: Any) -> bool:
    """Whether a field may hold settings of its own."""
    return any(dataclasses.is_dataclass(kind) for kind in typing.get_args(hint))


def nearest_setting(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant: one of the same group, else one that ends alike.

    >>> nearest_setting("loss.margn", ["loss.memory", "loss.margin", "orbits.margin"])
    'loss.margin'
    """
    known, group = list(known), f"{name.rpartition('.')[0]}."
    outer = [other for other in known if name.startswith(f"{other}.")]
    if outer:
        return outer[0]
    siblings = {other.removeprefix(group): other for other in known if other.startswith(group)}
    ends = {other.rpartition(".")[2]: other for other in reversed(known)}
    for names in (siblings, ends):
        if near := difflib.get_close_matches(name.rpartition(".")[2], names, n=1):
            return names[near[0]]
    return None


def _unknown(name: str, known: list[str], *, off: str | None = None) -> UnknownSetting:
    """The error about a name that is none of the known ones; `off` names a group of settings that is null."""
    near = nearest_setting(name, known)
    error = UnknownSetting(
        f"there is no setting {name!r}{f': {off} is null' if off else ''}",
        hint=f"did you mean {near}?" if near else f"settings are {', '.join(known)}",
    )
    error.name, error.known = name, known
    return error
