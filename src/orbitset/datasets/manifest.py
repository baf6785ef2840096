"""A manifest: a CSV or Parquet table with a column `path` and a column for every factor.

Rows are numbered as a spreadsheet shows them, the header of a CSV being row 1.
"""

import csv
import difflib
import io
import math
import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from orbitset.datasets.pictures import Box
from orbitset.datasets.table import ImageTable, OnProblem, Problem
from orbitset.errors import DataError
from orbitset.files import ordinary
from orbitset.limits import DECODING, FACTORS, ROWS

_BOX = ("left", "top", "right", "bottom")
_DRIVE = re.compile("[A-Za-z]:(/|$)")
_FOLLOW = "ORBITSET_FOLLOW_LINKS"
"""Set to 1 to follow links out of the folder of a manifest"""
_BYTES_PER_CELL, _BYTES_PER_CHARACTER = 32, 8
"""What rows of Parquet take while they are checked, beside equal texts, of which there is one"""
_BROKEN = re.compile("[\ud800-\udfff]")
"""What bytes that are not UTF-8 were kept as"""


def read_manifest(
    path: Path | str,
    *,
    root: Path | None = None,
    factors: Sequence[str] = (),
    on_problem: OnProblem = "stop",
) -> ImageTable:
    """The table in a file; paths in it are relative to `root`, by default the folder it lies in.

    Columns `left`, `top`, `right` and `bottom` give the part of each image to use, in pixels.
    Rows that cannot be used are named together: empty cells in `factors`, files that are missing or named
    twice, paths that leave the root, text that is not UTF-8.
    """
    path = Path(path)
    is_parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        header, rows, first = (_parquet if is_parquet else _csv)(ordinary(path))
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}",
            is_usage=isinstance(error, FileNotFoundError),
        ) from None
    _check_header(path, header, factors)
    root = path.parent if root is None else root
    has_boxes = set(_BOX) <= set(header)
    needed = (*factors, *_BOX) if has_boxes else factors
    folder, row_of, problems = _Folder(root), dict[str, int](), list[Problem]()
    for number, row in enumerate(rows, start=first):
        reason: str | None = f"it has {len(row)} cells, the header {len(header)}"
        cells = dict(zip(header, row, strict=False))
        if len(row) == len(header):
            reason = _fault(cells, folder, needed, row_of, number)
        if reason is not None:
            problems.append(Problem(number, reason, path=_plain(cells.get("path", ""))))
    columns = {
        name: tuple(row[at] if at < len(row) else "" for row in rows)
        for at, name in enumerate(header)
    }
    table = ImageTable(
        source=str(path),
        root=root,
        paths=tuple(map(_plain, columns.pop("path"))),
        columns=columns,
        rows=tuple(range(first, first + len(rows))),
    ).without(problems, on_problem)
    if not has_boxes:
        return table
    boxes = zip(*(table.columns[name] for name in _BOX), strict=True)
    columns = {name: values for name, values in table.columns.items() if name not in _BOX}
    return replace(table, columns=columns, boxes=tuple(_box(edges) for edges in boxes))


class _Folder:
    """The folder that paths are relative to, and which of the folders below it links lead out of."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._is_inside: dict[str, bool] = {}

    def fault(self, path: str) -> str | None:
        """Why a file in it cannot be used."""
        file = self.root / path
        try:
            if file.is_dir():
                return f"{path} is a folder"
            if not file.is_file():
                return f"{path} does not exist"
        except OSError as error:
            return f"{path} cannot be looked for: {error.strerror}"
        if os.environ.get(_FOLLOW) == "1" or self._holds(file):
            return None
        return (
            f"{path} is behind a link that leads out of the folder of the manifest, {self.root}; set "
            f"{_FOLLOW}=1 if you made that link or trust it"
        )

    def _holds(self, file: Path) -> bool:
        """Whether a file lies in it once links are followed."""
        place = str(file.parent)  # looked at once for all files that it holds
        if file.is_symlink():
            place = os.path.dirname(os.path.realpath(file))
        if place not in self._is_inside:
            real = Path(os.path.realpath(place))
            self._is_inside[place] = real.is_relative_to(os.path.realpath(self.root))
        return self._is_inside[place]


def _fault(
    cells: dict[str, str],
    folder: _Folder,
    needed: Sequence[str],
    row_of: dict[str, int],
    number: int,
) -> str | None:
    """What is wrong with a row, if anything; notes its path in `row_of`."""
    broken = next((name for name, text in cells.items() if _BROKEN.search(text)), None)
    if broken is not None:
        return f"its {broken} is not UTF-8"
    if not cells["path"]:
        return "its path is empty"
    path = _plain(cells["path"])
    if PurePosixPath(path).is_absolute() or path.startswith("../") or _DRIVE.match(path):
        return f"{_slashed(cells['path'])} leads out of the folder of the manifest, {folder.root}"
    if path in row_of:
        return f"{path} is in row {row_of[path]} already"
    row_of[path] = number
    empty = next((name for name in needed if not cells[name]), None)
    if empty is not None:
        return f"its {empty} is empty"
    if set(_BOX) <= set(needed) and _box([cells[name] for name in _BOX]) is None:
        edges = ", ".join(cells[name] for name in _BOX)
        return f"its box ({edges}) is not left, top, right and bottom in pixels"
    return folder.fault(path)


def _box(edges: Sequence[str]) -> Box | None:
    try:
        left, top, right, bottom = (float(edge) for edge in edges)
    except ValueError:
        return None
    is_box = all(map(math.isfinite, (left, top, right, bottom))) and right > left and bottom > top
    return (left, top, right, bottom) if is_box else None


def _plain(path: str) -> str:
    return posixpath.normpath(_slashed(path)) if path else ""


def _slashed(path: str) -> str:
    return path.replace("\\", "/")


def _check_header(path: Path, header: Sequence[str], factors: Sequence[str]) -> None:
    if len(header) > FACTORS.value:
        raise DataError(f"{path} has {len(header):,} columns, {FACTORS.described}")
    broken = next((at for at, name in enumerate(header, 1) if _BROKEN.search(name)), None)
    if broken is not None:
        raise DataError(
            f"{path}: the name of column {broken} is not UTF-8", hint="save it as UTF-8"
        )
    if "" in header:
        raise DataError(f"{path}: column {header.index('') + 1} has no name")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path} has the column {', '.join(twice)} twice; name each once")
    missing = [name for name in dict.fromkeys(("path", *factors)) if name not in header]
    if not missing:
        return
    near = {name: difflib.get_close_matches(name, header, n=1) for name in missing}
    guesses = [f"{names[0]} for {name}" for name, names in near.items() if names]
    raise DataError(
        f"{path} has no column {', '.join(missing)}; its first row names {', '.join(header) or 'none'}",
        hint=f"did you mean {', '.join(guesses)}?" if guesses else None,
    )


def _csv(path: Path) -> tuple[list[str], list[list[str]], int]:
    raw = path.read_bytes()
    if b"\0" in raw:
        raise DataError(f"{path} is not a CSV in UTF-8: it has NUL bytes", hint="save it as UTF-8")
    text = raw.decode("utf-8-sig", errors="surrogateescape")
    first_line = re.split("[\r\n]", text, maxsplit=1)[0]
    delimiter = next((mark for mark in ",;\t" if mark in first_line), ",")
    rows: list[list[str]] = []
    try:
        rows += csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    except csv.Error as error:
        raise DataError(
            f"{path} cannot be read as CSV: row {len(rows) + 1}: {error}",
            hint='write a quotation mark inside quoted text twice: ""',
        ) from None
    while rows and not any(rows[-1]):
        rows.pop()
    if len(rows) < 2:
        raise DataError(f"{path} has no rows; the first names the columns, path among them")
    if len(rows) - 1 > ROWS.value:
        raise DataError(f"{path} has {len(rows) - 1:,} rows, {ROWS.described}")
    header = [name.strip() for name in rows[0]]
    return header, [[cell.strip() for cell in row] for row in rows[1:]], 2


def _parquet(path: Path) -> tuple[list[str], list[list[str]], int]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path} is Parquet, which needs pyarrow", hint="pip install pyarrow"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            schema, about = file.schema_arrow, file.metadata
        header = list(schema.names)
        if len(set(header)) < len(header) or len(header) > FACTORS.value:
            return header, [], 1  # it cannot be read, and the header says why
        _check_size(path, about)
        texts = [field.name for field in schema if _is_text(field.type)]
        # a text that many rows share is kept once: a few kilobytes may hold millions of rows
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read()
        columns, needed = [], _BYTES_PER_CELL * table.num_rows * len(header)
        for name in header:
            columns.append(_cells(path, name, table.column(name)))
            needed += _BYTES_PER_CHARACTER * sum(map(len, columns[-1]))
            _check_bytes(path, needed)
    except pyarrow.ArrowException as error:
        first_line = str(error).partition("\n")[0]
        raise DataError(f"{path} cannot be read as Parquet: {first_line}") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{path}: the name of a column is not UTF-8", hint="save it as UTF-8"
        ) from None
    if not table.num_rows:
        raise DataError(f"{path} has no rows")
    return header, [list(row) for row in zip(*columns, strict=True)], 1


def _check_size(path: Path, about: Any) -> None:
    if about.num_rows > ROWS.value:
        raise DataError(f"{path} has {about.num_rows:,} rows, {ROWS.described}")
    _check_bytes(path, _BYTES_PER_CELL * about.num_rows * about.num_columns)
    groups = [about.row_group(at) for at in range(about.num_row_groups)]
    _check_bytes(path, sum(group.total_byte_size for group in groups))


def _check_bytes(path: Path, needed: int) -> None:
    if needed > DECODING.value:
        raise DataError(f"{path} takes {needed:,} bytes once it is read, {DECODING.described}")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _cells(path: Path, name: str, column: Any) -> list[str]:
    """The texts of a column, of those that are equal only one."""
    from pyarrow import types

    cells: list[str] = []
    for chunk in column.chunks:
        is_encoded = types.is_dictionary(chunk.type)
        values = chunk.dictionary if is_encoded else chunk
        try:
            texts = list(map(_cell, _values(values)))
        except (ValueError, OverflowError, TypeError, NotImplementedError) as error:
            raise DataError(f"{path}: column {name} cannot be read: {error}") from None
        places = chunk.indices.to_pylist() if is_encoded else range(len(texts))
        cells += ["" if place is None else texts[place] for place in places]
    return cells


def _values(array: Any) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:  # the rows are named later
        buffers = [value.as_buffer() for value in array]  # None of what is empty
        values = [raw and raw.to_pybytes().decode(errors="surrogateescape") for raw in buffers]
    return values


def _cell(value: Any) -> str:
    is_empty = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if is_empty else str(value)
