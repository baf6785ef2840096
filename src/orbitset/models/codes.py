"""Codes of many images, written as they come: Parquet with their paths and factors, or .npy with the paths
beside it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from orbitset.errors import ConfigError, OrbitsetError
from orbitset.files import naming, remove_parts

GROUP_ROWS = 8_192
"""The rows that are best written to a Parquet file at a time"""
Factors = Mapping[str, Sequence[str]]
_NO_FACTORS: Factors = MappingProxyType({})
_OWN_COLUMNS = ("path", "code")


class Write(Protocol):
    """Adds the paths of some images, their codes (N, D) and their factors, which .npy cannot have."""

    def __call__(
        self, paths: Sequence[str], codes_ND: np.ndarray, factors: Factors = _NO_FACTORS
    ) -> None: ...


@contextmanager
def open_codes(path: Path, code_size: int, factors: Sequence[str] = ()) -> Iterator[Write]:
    """Write a .parquet or .npy file, by its suffix, that appears when all is written, and not before."""
    targets = files_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_parts(path.parent, [target.name for target in targets])
    parts = [target.with_name(f".{target.name}.{os.getpid()}.part") for target in targets]
    try:
        names = column_names(factors)
        with (
            naming(path),
            _parquet(*parts, code_size=code_size, names=names)
            if len(parts) == 1
            else _npy(*parts, code_size=code_size) as write,
        ):
            yield write
        for part, target in zip(parts, targets, strict=True):
            part.replace(target)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def files_of(path: Path) -> list[Path]:
    """The files that hold codes and paths, by the suffix of the first."""
    match path.suffix.lower():
        case ".npy":
            return [path, paths_beside(path)]
        case ".parquet" | ".pq":
            try:
                import pyarrow.parquet  # noqa: F401
            except ImportError:
                raise OrbitsetError(
                    "Parquet files are written with PyArrow, which is not installed",
                    hint="pip install pyarrow, or write .npy",
                ) from None
            return [path]
    raise ConfigError(f"codes are written as .parquet or .npy, and {path} is neither")


def column_names(factors: Sequence[str]) -> dict[str, str]:
    """The column of each factor: its name, unless the path or the code has that.

    >>> column_names(["view", "code"])
    {'view': 'view', 'code': 'factor_code'}
    """
    return {name: f"factor_{name}" if name in _OWN_COLUMNS else name for name in factors}


def why_refused(file: Path, path: str) -> str | None:
    """Why a file of codes cannot hold the path of an image, or None if it can."""
    if file.suffix.lower() == ".npy":
        if "\n" in path or "\r" in path:
            return "has a line break in its name, which a list of paths cannot have; write .parquet"
        return None
    try:
        path.encode()
    except UnicodeEncodeError:
        return "has a name that is no text, which Parquet cannot have; write .npy"
    return None


def read_codes(path: Path) -> tuple[list[str], np.ndarray]:
    """Paths and codes of a file that was written here."""
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


@contextmanager
def _npy(codes_part: Path, paths_part: Path, *, code_size: int) -> Iterator[Write]:
    """Write the header again when the number of rows is known: numpy leaves room for it."""
    num_rows = 0
    with (
        codes_part.open("wb") as codes_file,
        paths_part.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as names,
    ):

        def write_header() -> None:
            header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, code_size)}
            codes_file.seek(0)
            np.lib.format.write_array_header_1_0(codes_file, header)

        def write(
            paths: Sequence[str], codes_ND: np.ndarray, factors: Factors = _NO_FACTORS
        ) -> None:
            nonlocal num_rows
            del factors
            codes_file.write(np.ascontiguousarray(codes_ND, "<f4").tobytes())
            names.writelines(f"{path}\n" for path in paths)
            num_rows += len(paths)

        write_header()
        yield write
        write_header()


@contextmanager
def _parquet(part: Path, *, code_size: int, names: Mapping[str, str]) -> Iterator[Write]:
    import pyarrow
    import pyarrow.parquet

    kind = pyarrow.list_(pyarrow.float32(), code_size)
    fields = [("path", pyarrow.string()), ("code", kind)]
    schema = pyarrow.schema([*fields, *((name, pyarrow.string()) for name in names.values())])
    with pyarrow.parquet.ParquetWriter(part, schema) as writer:

        def write(
            paths: Sequence[str], codes_ND: np.ndarray, factors: Factors = _NO_FACTORS
        ) -> None:
            flat = pyarrow.array(np.ascontiguousarray(codes_ND, np.float32).ravel())
            codes = pyarrow.FixedSizeListArray.from_arrays(flat, code_size)
            columns = [pyarrow.array(paths, pyarrow.string()), codes]
            columns += [
                pyarrow.array([value or None for value in factors[name]], pyarrow.string())
                for name in names
            ]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))

        yield write
