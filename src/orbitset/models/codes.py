"""Codes of many images, written as they come: Parquet with their paths, or .npy with the paths beside it."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import numpy as np

from orbitset.errors import ConfigError, OrbitsetError

_HEADER_BYTES = 128
_GROUP_ROWS = 8_192
"""Of a Parquet file, written at a time"""


class CodeWriter(Protocol):
    """A file that appears when all is written, and not before."""

    def refuses(self, path: str) -> str | None:
        """Why it cannot hold a path, if so."""

    def write(self, paths: Sequence[str], codes_ND: np.ndarray) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_codes(path: Path, code_size: int) -> CodeWriter:
    """By the suffix: .parquet or .npy."""
    match path.suffix.lower():
        case ".npy":
            return _NpyCodes(path, code_size)
        case ".parquet" | ".pq":
            return _ParquetCodes(path, code_size)
    raise ConfigError(f"codes are written as .parquet or .npy, and {path} is neither")


def read_codes(path: Path) -> tuple[list[str], np.ndarray]:
    """What was written: paths and codes."""
    if path.suffix.lower() == ".npy":
        with paths_beside(path).open(
            encoding="utf-8", errors="surrogateescape", newline="\n"
        ) as file:
            return file.read().split("\n")[:-1], np.load(path)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    codes = table.column("code").combine_chunks()
    size = codes.type.list_size
    return table.column("path").to_pylist(), codes.flatten().to_numpy().reshape(-1, size)


def paths_beside(path: Path) -> Path:
    """Where the paths of codes in an .npy file lie, one in a line.

    >>> paths_beside(Path("codes.npy")).name
    'codes.paths.txt'
    """
    return path.with_suffix(".paths.txt")


class _Atomic:
    """Written beside; renamed at the end if nothing went wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(f".{path.name}.{os.getpid()}.part")

    @contextlib.contextmanager
    def settled(self, is_whole: bool) -> Iterator[None]:
        """What is done inside is the last that can go wrong."""
        try:
            yield
            if is_whole:
                self.part.replace(self.path)
        finally:
            self.part.unlink(missing_ok=True)


class _NpyCodes:
    """The header is written last, when the number of rows is known, into the room left for it."""

    def __init__(self, path: Path, code_size: int) -> None:
        self._code_size, self._rows = code_size, 0
        self._codes, self._paths = _Atomic(path), _Atomic(paths_beside(path))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "_NpyCodes":
        self._codes.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = self._stack.enter_context(self._codes.part.open("wb"))
        self._names = self._stack.enter_context(
            self._paths.part.open("w", encoding="utf-8", errors="surrogateescape", newline="\n")
        )
        self._file.write(b"\0" * _HEADER_BYTES)
        return self

    def refuses(self, path: str) -> str | None:
        if "\n" in path or "\r" in path:
            return "has a line break in its name, which a list of paths cannot have; write .parquet"
        return None

    def write(self, paths: Sequence[str], codes_ND: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(codes_ND, np.float32).tobytes())
        self._names.writelines(f"{path}\n" for path in paths)
        self._rows += len(paths)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_whole = kind is None
        with self._codes.settled(is_whole), self._paths.settled(is_whole), self._stack:
            if is_whole:
                self._file.seek(0)
                self._file.write(_npy_header(self._rows, self._code_size))


def _npy_header(rows: int, columns: int) -> bytes:
    """As numpy writes it, filled up to the room that was left."""
    about = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    room = _HEADER_BYTES - 10
    return (
        b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + about.ljust(room - 1).encode() + b"\n"
    )


class _ParquetCodes:
    def __init__(self, path: Path, code_size: int) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise OrbitsetError(
                "Parquet files are written with PyArrow, which is not installed",
                hint="pip install pyarrow, or write .npy",
            ) from None
        self._arrow: Any = pyarrow
        self._file = _Atomic(path)
        self._code_size = code_size
        self._schema = pyarrow.schema(
            [("path", pyarrow.string()), ("code", pyarrow.list_(pyarrow.float32(), code_size))]
        )

    def __enter__(self) -> "_ParquetCodes":
        self._file.path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = self._arrow.parquet.ParquetWriter(self._file.part, self._schema)
        self._paths: list[str] = []
        self._codes: list[np.ndarray] = []
        return self

    def refuses(self, path: str) -> str | None:
        try:
            path.encode()
        except UnicodeEncodeError:
            return "has a name that is no text, which Parquet cannot have; write .npy"
        return None

    def write(self, paths: Sequence[str], codes_ND: np.ndarray) -> None:
        self._paths += paths
        self._codes.append(np.ascontiguousarray(codes_ND, np.float32))
        if len(self._paths) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._paths:
            return
        flat = self._arrow.array(np.concatenate(self._codes).ravel())
        codes = self._arrow.FixedSizeListArray.from_arrays(flat, self._code_size)
        columns = [self._arrow.array(self._paths, self._arrow.string()), codes]
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._paths, self._codes = [], []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file.settled(kind is None), self._writer:
            if kind is None:
                self._flush()
