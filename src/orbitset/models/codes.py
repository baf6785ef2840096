"""Codes of many images, written as they come: Parquet with their paths, or .npy with the paths beside it."""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orbitset.errors import ConfigError, OrbitsetError

_HEADER_BYTES = 128
_GROUP_ROWS = 8_192
"""The rows that are written to a Parquet file at a time"""


class CodeWriter(ABC):
    """What codes and the paths of their images are written to."""

    def __init__(self, code_size: int) -> None:
        self.code_size = code_size
        self.files = contextlib.ExitStack()
        """What is closed in the end, whatever happens"""

    @abstractmethod
    def write(self, paths: Sequence[str], codes_ND: np.ndarray) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Write what is left, when all codes have come."""

    @staticmethod
    @abstractmethod
    def why_refused(path: str) -> str | None:
        """Why the file cannot hold a path, if so."""


@contextlib.contextmanager
def open_codes(path: Path, code_size: int) -> Iterator[CodeWriter]:
    """A .parquet or .npy file, by its suffix, that appears when all is written, and not before."""
    kind = codes_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    targets = [paths_beside(path), path] if kind is _NpyCodes else [path]
    parts = [target.with_name(f".{target.name}.{os.getpid()}.part") for target in targets]
    try:
        writer = kind(*parts, code_size=code_size)
        with writer.files:
            yield writer
            writer.finish()
        for part, target in zip(parts, targets, strict=True):
            part.replace(target)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def codes_format(path: Path) -> type["_NpyCodes"] | type["_ParquetCodes"]:
    """How codes are written, by the suffix of the file."""
    match path.suffix.lower():
        case ".npy":
            return _NpyCodes
        case ".parquet" | ".pq":
            try:
                import pyarrow.parquet  # noqa: F401
            except ImportError:
                raise OrbitsetError(
                    "Parquet files are written with PyArrow, which is not installed",
                    hint="pip install pyarrow, or write .npy",
                ) from None
            return _ParquetCodes
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


class _NpyCodes(CodeWriter):
    """The header is written last, when the number of rows is known, into the room left for it."""

    def __init__(self, paths_part: Path, codes_part: Path, *, code_size: int) -> None:
        super().__init__(code_size)
        self._rows = 0
        self._file: BinaryIO = self.files.enter_context(codes_part.open("wb"))
        self._paths = self.files.enter_context(
            paths_part.open("w", encoding="utf-8", errors="surrogateescape", newline="\n")
        )
        self._file.write(b"\0" * _HEADER_BYTES)

    @staticmethod
    def why_refused(path: str) -> str | None:
        if "\n" in path or "\r" in path:
            return "has a line break in its name, which a list of paths cannot have; write .parquet"
        return None

    def write(self, paths: Sequence[str], codes_ND: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(codes_ND, np.float32).tobytes())
        self._paths.writelines(f"{path}\n" for path in paths)
        self._rows += len(paths)

    def finish(self) -> None:
        """The header as numpy writes it, filled up to the room that was left."""
        shape = (self._rows, self.code_size)
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        room = _HEADER_BYTES - 10
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little"))
        self._file.write(header.ljust(room - 1).encode() + b"\n")


class _ParquetCodes(CodeWriter):
    def __init__(self, part: Path, *, code_size: int) -> None:
        import pyarrow.parquet

        super().__init__(code_size)
        self._arrow: Any = pyarrow
        codes = pyarrow.list_(pyarrow.float32(), code_size)
        self._schema = pyarrow.schema([("path", pyarrow.string()), ("code", codes)])
        writer = self._arrow.parquet.ParquetWriter(part, self._schema)
        self._writer: Any = self.files.enter_context(writer)
        self._paths: list[str] = []
        self._codes: list[np.ndarray] = []

    @staticmethod
    def why_refused(path: str) -> str | None:
        try:
            path.encode()
        except UnicodeEncodeError:
            return "has a name that is no text, which Parquet cannot have; write .npy"
        return None

    def write(self, paths: Sequence[str], codes_ND: np.ndarray) -> None:
        self._paths += paths
        self._codes.append(np.ascontiguousarray(codes_ND, np.float32))
        if len(self._paths) >= _GROUP_ROWS:
            self.finish()

    def finish(self) -> None:
        if not self._paths:
            return
        flat = self._arrow.array(np.concatenate(self._codes).ravel())
        codes = self._arrow.FixedSizeListArray.from_arrays(flat, self.code_size)
        columns = [self._arrow.array(self._paths, self._arrow.string()), codes]
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._paths, self._codes = [], []
