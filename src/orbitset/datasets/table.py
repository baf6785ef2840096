"""A table of image files: one row per file, with named factors. Nothing is decoded here.

Whatever is wrong with a row is a `Problem` that names the row. The caller chooses what becomes of it: *stop*
says all that was found and goes no further, *skip* leaves those rows out and keeps the list.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orbitset.datasets.pictures import Box, ImageFile, Stretch
from orbitset.errors import DataError, check_choice

OnProblem = Literal["stop", "skip"]
_MOST_NAMED = 8


@dataclass(frozen=True)
class Problem:
    """What is wrong with a row, and with others for the same reason."""

    row: int
    reason: str
    others: tuple[int, ...] = ()
    path: str = ""
    """The row's file, if it is known"""

    def __str__(self) -> str:
        rest = f" and {len(self.others):,} more" if self.others else ""
        return f"row {self.row}{rest}: {self.reason}"


@dataclass(frozen=True)
class ImageTable:
    """Files under `root` with the values of their factors, in the order of the source.

    >>> table = ImageTable("faces.csv", Path("."), ("a.png", "b.png"), {"person": ("ann", "bob")}, (2, 3))
    >>> table.without([Problem(3, "b.png does not exist")], "skip").paths
    ('a.png',)
    """

    source: str
    """What it was read from, for messages"""
    root: Path
    paths: tuple[str, ...]
    """Relative to the root, with forward slashes"""
    columns: Mapping[str, tuple[str, ...]]
    rows: tuple[int, ...]
    """The number of each row in the source"""
    boxes: tuple[Box | None, ...] | None = None
    """The part of each image that is used; None is the whole"""
    stretches: tuple[Stretch | None, ...] | None = None
    """Where in a tar each image lies; None is a file of its own"""
    left_out: tuple[Problem, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, at: int) -> ImageFile:
        """What the image in one place is read from."""
        stretch = None if self.stretches is None else self.stretches[at]
        return self.root / self.paths[at] if stretch is None else stretch

    @property
    def files(self) -> list[ImageFile]:
        return [self.file(at) for at in range(len(self))]

    def require(self, columns: Collection[str]) -> "ImageTable":
        """Itself, if it has these columns."""
        missing = [name for name in dict.fromkeys(columns) if name not in self.columns]
        if missing:
            near = difflib.get_close_matches(missing[0], self.columns, n=1)
            raise DataError(
                f"{self.source} has no factor {', '.join(missing)}; "
                f"it has {', '.join(self.columns) or 'none at all'}",
                hint=f"did you mean {near[0]}?" if near else None,
            )
        return self

    def without(self, problems: Sequence[Problem], on_problem: OnProblem) -> "ImageTable":
        """Stop because of the problems, or leave their rows out."""
        if not problems:
            return self
        found = sorted(problems, key=lambda problem: problem.row)
        if on_problem == "stop":
            stop_if_any(self.source, found)
        bad = {row for problem in found for row in (problem.row, *problem.others)}
        kept = [at for at, row in enumerate(self.rows) if row not in bad]
        if not kept:
            everything = sorted((*self.left_out, *found), key=lambda problem: problem.row)
            raise DataError(f"nothing is left of {self.source}: {named(everything)}")
        return replace(self.at(kept), left_out=(*self.left_out, *found))

    def where(self, factor: str, chosen: Collection[str]) -> "ImageTable":
        """The rows with one of these values of a factor."""
        self.require([factor])
        for value in chosen:
            check_choice(factor, value, sorted(set(self.columns[factor])))
        return self.at([at for at, has in enumerate(self.columns[factor]) if has in chosen])

    def at(self, places: Sequence[int]) -> "ImageTable":
        """The rows in these places."""
        return replace(
            self,
            paths=tuple(self.paths[at] for at in places),
            columns={name: tuple(of[at] for at in places) for name, of in self.columns.items()},
            rows=tuple(self.rows[at] for at in places),
            boxes=None if self.boxes is None else tuple(self.boxes[at] for at in places),
            stretches=None
            if self.stretches is None
            else tuple(self.stretches[at] for at in places),
        )


def stop_if_any(source: str, problems: Sequence[Problem]) -> None:
    if problems:
        found = sorted(problems, key=lambda problem: problem.row)
        raise DataError(
            f"{source} has {_count(len(found), 'problem')}: {named(found)}",
            hint="mend what is named, or leave those rows out with --on-problem skip",
        )


def orbit_problems(
    table: ImageTable,
    orbit: Sequence[str],
    canonical: tuple[str, str] | None = None,
    *,
    min_members: int = 2,
) -> list[Problem]:
    """Rows whose orbit cannot be learned from: too few members, no canonical one, or more than one.

    An orbit is all rows with the same values of the factors in `orbit`; `canonical` is the factor and the
    value that tell its target.
    """
    table.require([*orbit, *([canonical[0]] if canonical else [])])
    members: dict[tuple[str, ...], list[int]] = {}
    for at, key in enumerate(zip(*(table.columns[name] for name in orbit), strict=True)):
        members.setdefault(key, []).append(at)
    problems = []
    for key, places in members.items():
        name = ", ".join(f"{factor} {value}" for factor, value in zip(orbit, key, strict=True))
        reason = None
        if len(places) < min_members:
            reason = (
                f"its orbit ({name}) has {_count(len(places), 'member')}, {min_members} are needed"
            )
        elif canonical is not None:
            factor, value = canonical
            targets = [at for at in places if table.columns[factor][at] == value]
            if not targets:
                reason = f"its orbit ({name}) has no member with {factor} {value}"
            elif len(targets) > 1:
                shared = " and ".join(str(table.rows[at]) for at in targets)
                reason = f"its orbit ({name}) has {factor} {value} in rows {shared}"
        if reason is not None:
            row, *others = (table.rows[at] for at in places)
            problems.append(Problem(row, reason, tuple(others)))
    return problems


def named(problems: Sequence[Problem]) -> str:
    """The first few of them, and how many more."""
    shown = "; ".join(map(str, problems[:_MOST_NAMED]))
    more = len(problems) - _MOST_NAMED
    return f"{shown}; and {more:,} more" if more > 0 else shown


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
