"""A table of images: one row per image, with named factors. Nothing is decoded here.

Whatever is wrong with a row is a `Problem` that names the row. The caller chooses what becomes of it: *stop*
raises an error that names all problems, *skip* leaves those rows out and keeps the list.
"""

import difflib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from orbitset.datasets.pictures import Box, ImageFile, InMemory, Stretch
from orbitset.errors import DataError, check_choice, count_of

OnProblem = Literal["stop", "skip"]
T = TypeVar("T")
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
    inside: tuple[Stretch | InMemory | None, ...] | None = None
    """Images that are not files: parts of a tar, or in memory; None is a file"""
    left_out: tuple[Problem, ...] = ()

    @classmethod
    def numbered(
        cls, source: str, root: Path, paths: Sequence[str], columns: Mapping[str, tuple[str, ...]]
    ) -> "ImageTable":
        """A table whose rows are numbered from 1."""
        return cls(source, root, tuple(paths), columns, tuple(range(1, len(paths) + 1)))

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, at: int) -> ImageFile:
        """What the image in one place is read from."""
        inside = None if self.inside is None else self.inside[at]
        return self.root / self.paths[at] if inside is None else inside

    @property
    def files(self) -> list[ImageFile]:
        return [self.file(at) for at in range(len(self))]

    def problem(self, at: int, reason: str) -> Problem:
        """What is wrong with the image in one place."""
        return Problem(self.rows[at], f"{self.paths[at]} {reason}")

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

    def empty(self, factors: Collection[str]) -> list[Problem]:
        """A problem for each row without a value of one of these factors."""
        self.require(factors)
        return [
            Problem(row, f"its {name} is empty")
            for name in factors
            for row, value in zip(self.rows, self.columns[name], strict=True)
            if not value
        ]

    def without(self, problems: Sequence[Problem], on_problem: OnProblem) -> "ImageTable":
        """Stop because of the problems, or leave their rows out."""
        if not problems:
            return self
        if on_problem == "stop":
            stop_if_any(self.source, problems)
        problems = _by_row(problems)
        bad = {row for problem in problems for row in (problem.row, *problem.others)}
        places = [at for at, row in enumerate(self.rows) if row not in bad]
        if not places:
            everything = _by_row((*self.left_out, *problems))
            raise DataError(f"nothing is left of {self.source}: {named(everything)}")
        return replace(self.at(places), left_out=(*self.left_out, *problems))

    @property
    def named(self) -> "ImageTable":
        """The same with names that need no root: what a file is called from where the user is."""
        paths = tuple(str(self.root / path) for path in self.paths)
        return replace(self, root=Path(), paths=paths)

    def where(self, factor: str, values: Collection[str]) -> "ImageTable":
        """The rows with one of these values of a factor."""
        self.require([factor])
        for value in values:
            check_choice(factor, value, sorted(set(self.columns[factor])))
        return self.at([at for at, value in enumerate(self.columns[factor]) if value in values])

    def at(self, places: Sequence[int]) -> "ImageTable":
        """The rows in these places."""

        def pick(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[at] for at in places)

        return replace(
            self,
            paths=pick(self.paths),
            columns={name: pick(values) for name, values in self.columns.items()},
            rows=pick(self.rows),
            boxes=None if self.boxes is None else pick(self.boxes),
            inside=None if self.inside is None else pick(self.inside),
        )

    def orbits(self, factors: Sequence[str]) -> dict[tuple[str, ...], list[int]]:
        """The places of the rows that share the values of these factors."""
        places: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self.require(factors)
        for at, values in enumerate(zip(*(self.columns[name] for name in factors), strict=True)):
            places[values].append(at)
        return dict(places)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Which rows of a table are one orbit, and which orbits can be used."""

    orbit: tuple[str, ...]
    """Factors whose values all members of an orbit share"""
    target: tuple[str, str] | None = None
    """The factor and the value that mark the target of each orbit"""
    factors: tuple[str, ...] = ()
    """Further factors that the table must have"""
    min_members: int = 2

    def usable(self, table: ImageTable) -> ImageTable:
        """The table without the rows whose orbit cannot be used."""
        problems = orbit_problems(table, self.orbit, self.target, min_members=self.min_members)
        return table.without(problems, "skip")


def name_at(source: str, at: int) -> str:
    """The name of an image that is no file: a row of an array, a frame of a video, from 0.

    >>> name_at("clip.mp4", 12)
    'clip.mp4#12'
    """
    return f"{source}#{at}"


def stop_if_any(source: str, problems: Sequence[Problem]) -> None:
    if problems:
        raise DataError(
            f"{source} has {count_of(len(problems), 'problem')}: {named(_by_row(problems))}",
            hint="mend what is named, or leave those rows out with --on-problem skip",
        )


def orbit_problems(
    table: ImageTable,
    orbit: Sequence[str],
    canonical: tuple[str, str] | None = None,
    *,
    min_members: int = 2,
) -> list[Problem]:
    """Rows whose orbit cannot be learned from: too few members, no target, or more than one.

    An orbit is all rows with the same values of the factors in `orbit`; `canonical` is the factor and the
    value that mark its target.
    """
    table.require([*orbit, *([canonical[0]] if canonical else [])])
    problems = []
    for values, places in table.orbits(orbit).items():
        name = ", ".join(f"{factor} {value}" for factor, value in zip(orbit, values, strict=True))
        reason = None
        if len(places) < min_members:
            reason = f"has {count_of(len(places), 'member')}, {min_members} are needed"
        elif canonical is not None:
            factor, value = canonical
            targets = [table.rows[at] for at in places if table.columns[factor][at] == value]
            if not targets:
                reason = f"has no member with {factor} {value}"
            elif len(targets) > 1:
                reason = f"has {factor} {value} in rows {' and '.join(map(str, targets))}"
        if reason is not None:
            row, *others = (table.rows[at] for at in places)
            problems.append(Problem(row, f"its orbit ({name}) {reason}", tuple(others)))
    return problems


def named(problems: Sequence[Problem]) -> str:
    """The first few problems, and how many more there are. Those of several orbits for one reason are one
    clause."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kind = problem.reason.partition("its orbit (")[2].rpartition(") ")[2]
        kinds.setdefault(kind, []).append(problem)
    clauses: list[str] = []
    for kind, group in kinds.items():
        if not kind or len(group) < 3:
            clauses += map(str, group)
            continue
        rows = sum(1 + len(problem.others) for problem in group)
        first = f"row {group[0].row}, {group[0].reason.partition('(')[2].rpartition(')')[0]}"
        clauses.append(
            f"{count_of(rows, 'row')} of {len(group):,} orbits, each of which {kind} (the first: {first})"
        )
    texts = "; ".join(clauses[:_MOST_NAMED])
    more = len(clauses) - _MOST_NAMED
    return f"{texts}; and {more:,} more" if more > 0 else texts


def _by_row(problems: Sequence[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: problem.row)
