"""What a table of images holds, looked at before anyone trains on it."""

import hashlib
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orbitset.datasets.crops import crop
from orbitset.datasets.decode import image_problems
from orbitset.datasets.folder import ORBIT, scan_folder
from orbitset.datasets.multi_pie import CANONICAL, scan_multi_pie
from orbitset.datasets.named import MULTI_PIE, has_sub_folders, table_at
from orbitset.datasets.pictures import num_bytes, open_bytes
from orbitset.datasets.plain import is_plain
from orbitset.datasets.table import ImageTable, Problem, orbit_problems
from orbitset.errors import ConfigError

_MOST_NAMED = 8
_CHOSEN = ("first", "middle", "medoid")
"""Targets that every orbit has"""


@dataclass(frozen=True)
class Inspected:
    """What was found."""

    source: str
    images: int
    """Those that can be used"""
    sizes: dict[str, int]
    """How many images have which size, as width x height"""
    factors: dict[str, int]
    """How many values each factor has"""
    members: dict[str, float] | None
    """Orbits and their members, fewest, median and most, if it was said what an orbit is"""
    problems: tuple[Problem, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Subjects of Multi-PIE that are not in all sessions, and not used"""
    ignored: tuple[str, ...] = ()
    """Files in a folder that are no images"""
    copies: tuple[tuple[str, ...], ...] = ()
    """Files with the same content"""
    orbits: tuple[tuple[Path, ...], ...] = ()
    """The members of the first few orbits"""
    is_plain: bool = False
    """Images without sub-folders: each an orbit of its own"""

    def as_dict(self) -> dict[str, Any]:
        return {
            "data": self.source,
            "images": self.images,
            "sizes": self.sizes,
            "factors": self.factors,
            "orbits": self.members,
            "problems": [
                {"row": one.row, "others": list(one.others), "reason": one.reason}
                for one in self.problems
            ],
            "missing": list(self.missing),
            "unexpected": list(self.unexpected),
            "incomplete": list(self.incomplete),
            "ignored": list(self.ignored),
            "copies": [list(paths) for paths in self.copies],
        }

    def __str__(self) -> str:
        sizes = ", ".join(f"{count:,} of {size} px" for size, count in self.sizes.items())
        values = ", ".join(f"{name} ({count})" for name, count in self.factors.items())
        lines = [f"{self.source}: {self.images:,} images; {sizes}", f"factors: {values or 'none'}"]
        if self.members is not None:
            of = self.members
            lines.append(
                f"orbits: {of['orbits']:,.0f} with {of['fewest']:.0f} to {of['most']:.0f} members, "
                f"median {of['median']:g}"
            )
        if self.is_plain:
            lines.append("orbits: every image is an orbit of its own, whose members are computed")
        lines += [f"the same file: {', '.join(paths)}" for paths in self.copies]
        if self.ignored:
            lines.append(f"no images: {', '.join(self.ignored[:_MOST_NAMED])}{_more(self.ignored)}")
        if self.incomplete:
            few = ", ".join(self.incomplete[:_MOST_NAMED]) + _more(self.incomplete)
            lines.append(f"in some sessions only, and not used: {few}")
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"missing: {path}" for path in self.missing]
        lines += [f"unexpected: {path}" for path in self.unexpected]
        return "\n".join(lines)


def inspect_table(
    source: str,
    *,
    orbit: Sequence[str] | None = None,
    canonical: str | None = None,
    crops: Path | None = None,
) -> Inspected:
    """Read every row and every image, and keep on whatever is wrong with them."""
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    plain, is_folder = is_plain(source), has_sub_folders(source)
    if plain and (orbit is not None or canonical is not None or crops is not None):
        raise ConfigError(
            f"{source} has no sub-folders; --orbit, --canonical and --crops are for orbits"
        )
    orbit = (ORBIT,) if is_folder and orbit is None and not plain else orbit
    if canonical is not None and orbit is None and not source.startswith(MULTI_PIE):
        raise ConfigError("--canonical is of orbits; say what they share with --orbit")
    target = None if canonical in _CHOSEN else _target(canonical)
    if source.startswith(MULTI_PIE):
        found = scan_multi_pie(Path(source.removeprefix(MULTI_PIE)))
        table, missing, unexpected = found.table, found.missing, found.unexpected
        incomplete = tuple(found.incomplete)
        orbit, canonical = orbit or ("person", "light", "session"), canonical or f"view={CANONICAL}"
    elif plain:
        inside = scan_folder(source)
        table, ignored = replace(inside.table, columns={}), inside.ignored
    else:
        named = (*(orbit or ()), *(target or ())[:1])
        table = table_at(source, factors=named, on_problem="skip")
        ignored = scan_folder(source).ignored if is_folder else ()
        orbit = (ORBIT,) if orbit is None and ORBIT in table.columns else orbit
    if crops is not None:
        table = crop(table, crops, "skip")
    broken, sizes = image_problems(table)
    usable = table.without(broken, "skip")
    problems = [*usable.left_out]
    members = None
    if orbit is not None:
        target = None if canonical in _CHOSEN else _target(canonical)
        problems += orbit_problems(usable, orbit, target)
        members = _members(usable, orbit)
    return Inspected(
        source=source,
        images=len(usable),
        sizes={f"{size[0]}x{size[1]}": count for size, count in Counter(sizes).most_common()},
        factors={name: len(set(values)) for name, values in usable.columns.items()},
        members=members,
        problems=tuple(sorted(problems, key=lambda problem: problem.row)),
        missing=missing,
        unexpected=unexpected,
        incomplete=incomplete,
        ignored=ignored,
        copies=_copies(usable),
        orbits=() if orbit is None else _first_orbits(usable, orbit),
        is_plain=plain,
    )


def _copies(table: ImageTable) -> tuple[tuple[str, ...], ...]:
    """Files with the same bytes; only those of one size are read."""
    by_size: dict[int, list[int]] = {}
    for at in {path: at for at, path in enumerate(table.paths)}.values():
        by_size.setdefault(num_bytes(table.file(at)), []).append(at)
    found: dict[bytes, list[str]] = {}
    for places in by_size.values():
        for at in places if len(places) > 1 else ():
            with open_bytes(table.file(at)) as file:
                digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
            found.setdefault(digest, []).append(table.paths[at])
    return tuple(tuple(paths) for paths in found.values() if len(paths) > 1)


def _first_orbits(table: ImageTable, orbit: Sequence[str]) -> tuple[tuple[Path, ...], ...]:
    members: dict[tuple[str, ...], list[Path]] = {}
    keys = zip(*(table.columns[name] for name in orbit), strict=True)
    for key, path in zip(keys, table.paths, strict=True):
        if key in members or len(members) < _MOST_NAMED:
            members.setdefault(key, []).append(table.root / path)
    return tuple(tuple(paths) for paths in members.values())


def _more(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return f" and {more:,} more" if more > 0 else ""


def _target(canonical: str | None) -> tuple[str, str] | None:
    if canonical is None:
        return None
    factor, _, value = canonical.partition("=")
    if not value:
        raise ConfigError(
            f"canonical is {canonical!r}; write it as factor=value, such as view=front"
        )
    return factor.strip(), value.strip()


def _members(table: ImageTable, orbit: Sequence[str]) -> dict[str, float]:
    counts = Counter(zip(*(table.columns[name] for name in orbit), strict=True)).values()
    return {
        "orbits": len(counts),
        "fewest": min(counts),
        "median": statistics.median(counts),
        "most": max(counts),
    }
