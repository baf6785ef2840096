"""What retrieval leaves out among a user's images, where the user does not say: images that share a factor,
and neighbours in a factor that orders the images of a thing, such as frames of a film.

Neighbours are nearly the same picture, so that retrieval among them says little.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from statistics import median

from orbitset.datasets.table import ImageTable
from orbitset.errors import ConfigError
from orbitset.orbits.observed import ObservedConfig
from orbitset.protocols.exclusions import Exclusion, series_and_number

_FEWEST = 6
"""Different numbers that a series has at least"""
_NEARLY_ALL = 0.9
"""The share of images of which all this has to hold"""
_SHARE = 8
"""The part of a series that is left out to either side: an eighth"""
_DEGREES = 360.0
_Series = dict[tuple[str, ...], list[float]]


def excluded(
    table: ImageTable,
    tested: ImageTable,
    orbits: ObservedConfig,
    split_by: str = "",
    requested: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """What retrieval leaves out as settings name it: what is requested, `none` for nothing. `tested` are
    those rows of the table that are tested.

    By default images that share a factor of the orbits which varies within a label, and neighbours in a
    factor that orders the images of an orbit.
    """
    if requested is not None:
        chosen = requested_exclusions(requested)
        for factor in (Exclusion.parse(text).factor for text in chosen):
            if ":" in factor and factor not in table.columns:
                raise ConfigError(
                    f"--exclude {factor} is not understood; name a factor, or neighbours in one as "
                    "view:2steps, view:2steps:circular, angle:30 or angle:30:360"
                )
            table.require([factor])
        return chosen
    assert orbits.label is not None
    labels = tested.columns[orbits.label]
    alike = [
        name
        for name in (*orbits.orbit, *(orbits.target or ())[:1])
        if name not in (orbits.label, split_by)
        and len(set(zip(labels, tested.columns[name], strict=True))) > len(set(labels))
    ]
    incomplete = {name for name, values in table.columns.items() if not all(values)}
    near = neighbours(
        tested, orbits.orbit, {*incomplete, orbits.label, split_by, orbits.classes or ""}
    )
    ordered = {exclusion.factor for exclusion in near}
    return (*(name for name in alike if name not in ordered), *map(str, near))


def requested_exclusions(requested: Sequence[str]) -> tuple[str, ...]:
    """As settings name it.

    >>> requested_exclusions(["none"]), requested_exclusions(["light", "view:1steps"])
    ((), ('light', 'view:1step'))
    """
    is_none = list(requested) == ["none"]
    return () if is_none else tuple(str(Exclusion.parse(text)) for text in requested)


def neighbours(
    table: ImageTable, orbit: Sequence[str], used: Collection[str] = ()
) -> list[Exclusion]:
    """Neighbours in each factor that orders the images of an orbit, but for those that are used otherwise.

    A factor orders images if its values are numbers, or end in one after a text that names a series
    (test_003), and nearly all images are in series of at least 6 numbers that occur once in their orbit.
    Numbers with a fraction have to occur in several orbits, as angles do and measurements do not.
    """
    exclusions: list[Exclusion] = []
    orders: list[list[float | None]] = []
    for name in table.columns:
        order = [series_and_number(value)[1] for value in table.columns[name]]
        if name in used or name in orbit or order in orders:
            continue
        series = _series_of(table, orbit, name)
        if series is not None:
            num = median(map(len, series.values()))
            around = "circular" if all(map(_is_full_circle, series.values())) else None
            exclusions.append(Exclusion(name, steps=max(1, int(num / _SHARE)), around=around))
            orders.append(order)
    return exclusions


def _series_of(table: ImageTable, orbit: Sequence[str], name: str) -> _Series | None:
    """The numbers of each series in their order; None if the factor orders nothing."""
    series: _Series = defaultdict(list)
    orbits_with: dict[float, set[tuple[str, ...]]] = defaultdict(set)
    for key, places in table.orbits(orbit).items():
        for at in places:
            text, number = series_and_number(table.columns[name][at])
            if number is not None:
                series[(*key, text)].append(number)
                orbits_with[number].add(key)
    long = {key: sorted(set(numbers)) for key, numbers in series.items()}
    long = {key: numbers for key, numbers in long.items() if len(numbers) >= _FEWEST}
    is_designed = [
        number.is_integer() or len(orbits_with[number]) > 1
        for numbers in long.values()
        for number in numbers
    ]
    return long if sum(is_designed) >= _NEARLY_ALL * len(table) and long else None


def _is_full_circle(numbers: Sequence[float]) -> bool:
    """Whether they are even steps around 360 degrees.

    >>> _is_full_circle([0, 60, 120, 180, 240, 300]), _is_full_circle([0, 1, 2, 3, 4, 5])
    (True, False)
    """
    steps = [after - before for before, after in zip(numbers, numbers[1:], strict=False)]
    span = numbers[-1] - numbers[0]
    is_even = max(steps) - min(steps) < 0.01 * _DEGREES / len(numbers)
    return is_even and min(abs(span - _DEGREES), abs(span + steps[0] - _DEGREES)) < 0.01 * steps[0]
