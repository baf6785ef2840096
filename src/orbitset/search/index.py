"""An index of named codes on disk: add and remove items, and find the nearest.

A flat index looks at every code and is exact. An ivf index groups codes into lists once there are many, and
looks into the nearest lists; an hnsw index follows a graph of neighbours. Both are fast and may miss some.

Shapes: N items, Q queries, K places, D code entries.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from orbitset.errors import DataError, RunError, check_choice
from orbitset.search.distances import checked_codes
from orbitset.search.folder import State, check_free, locked, read_header, read_state, write_state
from orbitset.search.stored import Kind, StoredCodes

_MOST_REMOVED = 1 / 3
"""The share of removed rows from which on an index that is not exact is built anew"""


@dataclass(frozen=True)
class Added:
    """How many names were new, and how many were known and have a new code."""

    added: int
    replaced: int


@dataclass(frozen=True)
class Removed:
    """How many items were removed, and which names were unknown."""

    removed: int
    unknown: list[str]


@dataclass(frozen=True)
class Found:
    """The nearest items of each query, nearest first; equally near ones in the order they were added."""

    names: list[list[str]]
    distances: np.ndarray
    """Squared Euclidean; infinite where a query found fewer than others"""


class Index:
    """Names and codes of one model, in a folder that holds a whole index at any moment."""

    def __init__(self, folder: Path, state: State) -> None:
        """Use `create` or `open`."""
        self.folder = folder
        self._is_changing = False
        self._take(state)

    @classmethod
    def create(
        cls,
        folder: Path | str,
        *,
        model_id: str,
        code_size: int,
        kind: Kind = "flat",
        overwrite: bool = False,
    ) -> "Index":
        """Create an empty index; an existing one is replaced only with `overwrite`."""
        check_choice("kind", kind, get_args(Kind))
        if code_size < 1:
            raise ValueError(f"code_size is {code_size}; give at least 1")
        folder = Path(folder)
        check_free(folder, overwrite=overwrite)
        codes = StoredCodes(kind, code_size)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            check_free(folder, overwrite=overwrite)
            header = write_state(folder, model_id, codes, [])
        return cls(folder, State(header, codes, []))

    @classmethod
    def open(cls, folder: Path | str, *, model_id: str | None = None) -> "Index":
        """The index in a folder; codes of another model than `model_id` are refused."""
        folder = Path(folder)
        header = read_header(folder)
        if model_id is not None and header.model_id != model_id:
            raise RunError(
                f"the index at {folder} was made by another model: {header.model_id}, not {model_id}",
                hint="codes of different models cannot be compared; make an index for this model",
            )
        index = cls(folder, read_state(folder))
        if model_id is not None and index.model_id != model_id:
            raise RunError(f"the index at {folder} was replaced while it was opened")
        return index

    @property
    def model_id(self) -> str:
        return self._header.model_id

    @property
    def code_size(self) -> int:
        return self._header.code_size

    @property
    def kind(self) -> Kind:
        return self._header.kind

    @property
    def names(self) -> list[str]:
        """In the order they were added; a replaced item counts as added when it was replaced."""
        return list(self._row_of)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, name: object) -> bool:
        return name in self._row_of

    def add(self, names: Sequence[str], codes: np.ndarray) -> Added:
        """Add items, and replace the codes of known ones: all of them, or none after an error."""
        names = _as_list(names)
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is named twice; give every name once")
        codes = checked_codes(codes, size=self.code_size, names=names)
        with self.changes():
            replaced = self._drop(names)
            if names:
                self._is_changed = True
                first = len(self._names)
                self._row_of.update({name: first + i for i, name in enumerate(names)})
                self._names.extend(names)
                self._codes.add(codes)
        return Added(added=len(names) - replaced, replaced=replaced)

    def remove(self, names: Sequence[str]) -> Removed:
        """Remove items. A flat index drops their codes at once, the others once many are removed."""
        names = list(dict.fromkeys(_as_list(names)))
        with self.changes():
            unknown = [name for name in names if name not in self._row_of]
            removed = self._drop(names)
        return Removed(removed, unknown)

    @contextmanager
    def changes(self) -> Iterator[None]:
        """Write all additions and removals inside at once, at the end; after an error none of them.

        Searching inside includes what has been added so far. No other process can write meanwhile.
        """
        if self._is_changing:
            yield
            return
        with locked(self.folder):
            if read_header(self.folder) != self._header:
                raise RunError(
                    f"the index at {self.folder} was changed since it was opened; open it again"
                )
            self._is_changing = True
            try:
                yield
                if self._is_changed:
                    self._write()
            except BaseException:
                if self._is_changed:
                    self._take(read_state(self.folder))
                raise
            finally:
                self._is_changing = False

    def search(
        self, codes: np.ndarray, k: int, *, exclude_self: Sequence[str] | None = None
    ) -> Found:
        """The k nearest items of each query, or all where there are fewer.

        `exclude_self` has a name for each query, which is left out of its results.
        """
        if k < 1:
            raise ValueError(f"k is {k}; give at least 1")
        codes = checked_codes(codes, size=self.code_size)
        if exclude_self is not None and len(exclude_self) != len(codes):
            raise ValueError(f"there are {len(exclude_self)} names for {len(codes)} queries")
        if not self._row_of:
            raise DataError(
                f"the index at {self.folder} is empty", hint="add items before searching"
            )
        more = 0 if exclude_self is None else 1
        rows_QK, near_QK = self._codes.nearest(codes, min(k + more, len(self)), self._dead_rows)
        names: list[list[str]] = []
        distances_QK = np.full((len(codes), min(k, len(self))), np.inf)
        for q, (rows_K, near_K) in enumerate(zip(rows_QK, near_QK, strict=True)):
            own = None if exclude_self is None else self._row_of.get(exclude_self[q])
            is_kept_K = np.flatnonzero(rows_K != (-1 if own is None else own))[:k]
            distances_QK[q, : len(is_kept_K)] = near_K[is_kept_K]
            names.append([str(self._names[row]) for row in rows_K[is_kept_K]])
        longest = max(map(len, names), default=0)
        return Found(names, distances_QK[:, :longest])

    @property
    def _dead_rows(self) -> np.ndarray:
        return np.fromiter(self._dead, np.int64, len(self._dead))

    def _take(self, state: State) -> None:
        """Become what the folder holds."""
        self._header, self._codes, self._names = state.header, state.codes, list(state.names)
        self._row_of = {name: row for row, name in enumerate(self._names) if name is not None}
        self._dead = {row for row, name in enumerate(self._names) if name is None}
        self._is_changed = False

    def _drop(self, names: Sequence[str]) -> int:
        """Forget the known ones among the names; their rows stay, and are passed over."""
        rows = [self._row_of.pop(name) for name in names if name in self._row_of]
        for row in rows:
            self._names[row] = None
        self._dead.update(rows)
        self._is_changed |= bool(rows)
        return len(rows)

    def _take_out(self) -> None:
        """Take out the rows of removed items; the others move up."""
        self._codes.take_out(self._dead_rows)
        self._names = [name for name in self._names if name is not None]
        self._row_of = {str(name): row for row, name in enumerate(self._names)}
        self._dead = set()

    def _write(self) -> None:
        most = 0 if self._codes.is_exact else _MOST_REMOVED * len(self._names)
        if len(self._dead) > most:
            self._take_out()
        self._codes.fit_lists()
        self._header = write_state(self.folder, self.model_id, self._codes, self._names)
        self._is_changed = False


def _as_list(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError("names must be a sequence of strings")
    return list(names)
