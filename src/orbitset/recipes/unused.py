"""Settings that a training does not use are refused with a sentence that says what they belong to."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from orbitset.config import UnknownSetting, nearest_setting
from orbitset.datasets.segments import VideoConfig
from orbitset.errors import ConfigError
from orbitset.orbits.computed import OrbitConfig
from orbitset.orbits.observed import ObservedConfig
from orbitset.protocols import PROTOCOLS
from orbitset.recipes.methods import METHODS, base_name


@contextmanager
def belonging(
    *, method: str = "OJ", protocol: str = "one-shot", is_observed: bool = False, prefix: str = ""
) -> Iterator[None]:
    """Says of an unknown setting what it belongs to, if another method, protocol or kind of orbits has it.

    `prefix` is what the names of the settings lack.

    >>> from orbitset.config import from_dict
    >>> with belonging(method="OE"):
    ...     from_dict(METHODS["OE"].settings, {"discriminate_weight": 2.0}, "loss.")
    Traceback (most recent call last):
    orbitset.errors.ConfigError: OE does not use loss.discriminate_weight, which belongs to OJ and OT
    """
    try:
        yield
    except UnknownSetting as error:
        name = prefix + error.name
        group, _, rest = name.partition(".")
        group, setting = group.removesuffix("_settings"), rest.partition(".")[0]
        orbits = "observed orbits" if is_observed else "computed orbits"
        own = {
            "loss": base_name(method),
            "evaluation": protocol,
            "orbits": orbits,
            "video": "a training on images",
        }.get(group, "")
        owners_by_name = _owners()
        owners = owners_by_name.get(f"{group}.{setting}", [])
        if own in owners:
            raise
        if not owners:
            known = [prefix + name for name in error.known]
            near = nearest_setting(name, [*known, *owners_by_name])
            if near is None or near in known:
                raise
            hint = f"did you mean {near}, which belongs to {_listed(owners_by_name[near])}?"
            raise ConfigError(error.message, hint=hint) from None
        user = {orbits: f"a training on {orbits}", base_name(method): method}.get(own, own)
        raise ConfigError(
            f"{user} does not use {name}, which belongs to {_listed(owners)}"
        ) from None


def _owners() -> dict[str, list[str]]:
    """The methods, protocols or kinds of orbits that have a setting, by its name."""
    groups: dict[str, dict[str, type]] = {
        "loss": {name: row.settings for name, row in METHODS.items()},
        "evaluation": {name: kind.Settings for name, kind in PROTOCOLS.items()},
        "orbits": {"computed orbits": OrbitConfig, "observed orbits": ObservedConfig},
        "video": {"videos": VideoConfig},
    }
    owners = defaultdict(list)
    for group, kinds in groups.items():
        for owner, settings in kinds.items():
            for field in fields(settings):
                owners[f"{group}.{field.name}"].append(owner)
    return dict(owners)


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
