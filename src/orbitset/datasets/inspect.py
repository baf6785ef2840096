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
from orbitset.datasets.folder import ORBIT
from orbitset.datasets.multi_pie import CANONICAL
from orbitset.datasets.pictures import ImageFile, num_bytes, open_bytes
from orbitset.datasets.source import Folder, MultiPie, Plain, TableSource
from orbitset.datasets.table import ImageTable, Problem, orbit_problems
from orbitset.errors import ConfigError

_MOST_NAMED = 8
_CHOSEN = ("first", "middle", "medoid")
"""Targets that every orbit has"""


@dataclass(frozen=True)
class Inspected:
    """What a table of images holds, and what is wrong with it."""

    source: str
    images: int
    """How many can be used"""
    sizes: dict[str, int]
    """How many images have which size, as width x height"""
    factors: dict[str, int]
    """How many values each factor has"""
    members: dict[str, float] | None
    """The number of orbits, and their fewest, median and most members, if it is known what an orbit is"""
    problems: tuple[Problem, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Subjects of Multi-PIE that are not in all sessions, and not used"""
    ignored: tuple[str, ...] = ()
    """Files in a folder that are no images"""
    copies: tuple[tuple[str, ...], ...] = ()
    """Files with the same content"""
    orbits: tuple[tuple[tuple[str, ImageFile], ...], ...] = ()
    """The members of the first few orbits, each with its path"""
    is_plain: bool = False
    """Whether every image is an orbit of its own"""

    def as_dict(self) -> dict[str, Any]:
        return {
            "data": self.source,
            "images": self.images,
            "sizes": self.sizes,
            "factors": self.factors,
            "orbits": self.members,
            "problems": [
                {"row": problem.row, "others": list(problem.others), "reason": problem.reason}
                for problem in self.problems
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
            members = self.members
            lines.append(
                f"orbits: {members['orbits']:,.0f} with {members['fewest']:.0f} to "
                f"{members['most']:.0f} members, median {members['median']:g}"
            )
        if self.is_plain:
            lines.append("orbits: every image is an orbit of its own, whose members are computed")
        lines += [f"the same file: {', '.join(paths)}" for paths in self.copies]
        if self.ignored:
            lines.append(
                f"not images: {', '.join(self.ignored[:_MOST_NAMED])}{_more(self.ignored)}"
            )
        if self.incomplete:
            few = ", ".join(self.incomplete[:_MOST_NAMED]) + _more(self.incomplete)
            lines.append(f"in some sessions only, and not used: {few}")
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"missing: {path}" for path in self.missing]
        lines += [f"unexpected: {path}" for path in self.unexpected]
        return "\n".join(lines)


def inspect_table(
    source: TableSource | Plain,
    *,
    orbit: Sequence[str] | None = None,
    canonical: str | None = None,
    crops: Path | None = None,
) -> Inspected:
    """Read every row and every image, and go on whatever is wrong with them."""
    inspected = Inspected(
        source=source.spec, images=0, sizes={}, factors={}, members=None, problems=()
    )
    if isinstance(source, Plain) and (orbit, canonical, crops) != (None, None, None):
        raise ConfigError(
            f"{source.spec} has no sub-folders; --orbit, --canonical and --crops are for orbits"
        )
    if isinstance(source, MultiPie):
        files = source.scan()
        inspected = replace(
            inspected,
            missing=files.missing,
            unexpected=files.unexpected,
            incomplete=tuple(files.incomplete),
        )
        orbit, canonical = orbit or ("person", "light", "session"), canonical or f"view={CANONICAL}"
    elif isinstance(source, Plain | Folder):
        inspected = replace(
            inspected, ignored=source.files.ignored, is_plain=isinstance(source, Plain)
        )
        orbit = (ORBIT,) if orbit is None and isinstance(source, Folder) else orbit
    if canonical is not None and orbit is None:
        raise ConfigError("--canonical is for orbits; name the factors they share with --orbit")
    target = None if canonical in _CHOSEN else _target(canonical)
    if isinstance(source, MultiPie):
        table = files.table
    elif isinstance(source, Plain):
        table = replace(source.files.table, columns={})
    else:
        table = source.table((*(orbit or ()), *(target or ())[:1]))
        orbit = (ORBIT,) if orbit is None and ORBIT in table.columns else orbit
    if crops is not None:
        table = crop(table, crops, "skip")
    broken, sizes = image_problems(table)
    usable = table.without(broken, "skip")
    problems = [*usable.left_out]
    if orbit is not None:
        problems += orbit_problems(usable, orbit, target)
        inspected = replace(
            inspected, members=_members(usable, orbit), orbits=_first_orbits(usable, orbit)
        )
    return replace(
        inspected,
        images=len(usable),
        sizes={f"{size[0]}x{size[1]}": count for size, count in Counter(sizes).most_common()},
        factors={name: len(set(values)) for name, values in usable.columns.items()},
        problems=tuple(sorted(problems, key=lambda problem: problem.row)),
        copies=_copies(usable),
    )


def _copies(table: ImageTable) -> tuple[tuple[str, ...], ...]:
    """Files with the same bytes; only those of one size are read."""
    by_size: dict[int, list[int]] = {}
    for at in {path: at for at, path in enumerate(table.paths)}.values():
        by_size.setdefault(num_bytes(table.file(at)), []).append(at)
    by_digest: dict[bytes, list[str]] = {}
    for places in by_size.values():
        for at in places if len(places) > 1 else ():
            with open_bytes(table.file(at)) as file:
                digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
            by_digest.setdefault(digest, []).append(table.paths[at])
    return tuple(tuple(paths) for paths in by_digest.values() if len(paths) > 1)


def _first_orbits(
    table: ImageTable, orbit: Sequence[str]
) -> tuple[tuple[tuple[str, ImageFile], ...], ...]:
    orbits = list(table.orbits(orbit).values())[:_MOST_NAMED]
    return tuple(
        tuple((str(table.root / table.paths[at]), table.file(at)) for at in places)
        for places in orbits
    )


def _members(table: ImageTable, orbit: Sequence[str]) -> dict[str, float]:
    counts = [len(places) for places in table.orbits(orbit).values()]
    return {
        "orbits": len(counts),
        "fewest": min(counts),
        "median": statistics.median(counts),
        "most": max(counts),
    }


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
