"""Settings that a training does not use are refused with a sentence that says what they belong to."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields

from orbitset.config import UnknownSetting
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
        orbits = "observed orbits" if is_observed else "computed orbits"
        users: dict[str, tuple[str, Mapping[str, type]]] = {
            "loss": (base_name(method), {name: row.settings for name, row in METHODS.items()}),
            "evaluation": (protocol, {name: kind.Settings for name, kind in PROTOCOLS.items()}),
            "orbits": (orbits, {"computed orbits": OrbitConfig, "observed orbits": ObservedConfig}),
            "video": ("a training on images", {"videos": VideoConfig}),
        }
        own, known = users.get(group.removesuffix("_settings"), ("", {}))
        setting = rest.partition(".")[0]
        owners = [
            owner
            for owner, settings in known.items()
            if setting in {field.name for field in fields(settings)}
        ]
        if not owners or own in owners:
            raise
        user = {orbits: f"a training on {orbits}", base_name(method): method}.get(own, own)
        listed = " and ".join(filter(None, [", ".join(owners[:-1]), owners[-1]]))
        raise ConfigError(f"{user} does not use {name}, which belongs to {listed}") from None
