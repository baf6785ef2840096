"""The folder of an index: what is in it, and how it is read and written so that no kill can damage it.

index.json        what it is: format, model, code size, kind, number of items, and which generation holds
codes.G.faiss     the codes of generation G, as FAISS writes them
items.G.jsonl     the name of the item in each row, or null where it was removed
.lock             held by the process that writes

A change writes the next generation beside the one that holds, then replaces index.json, then removes the old
files. Sizes and checksums in index.json tell damage from data.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, get_args

from filelock import FileLock, Timeout

from orbitset.errors import RunError
from orbitset.files import remove_parts, write_atomically
from orbitset.search.stored import Kind, StoredCodes

VERSION = 1
_FORMAT = "orbitset index"
_HEADER = "index.json"
_DATA = re.compile(r"codes\.(\d+)\.faiss|items\.(\d+)\.jsonl")
_BLOCK_BYTES = 2**20
_ATTEMPTS = 8


@dataclass(frozen=True)
class Stamp:
    """What a data file must look like."""

    bytes: int
    crc32: int


@dataclass(frozen=True)
class Header:
    """What index.json says."""

    model_id: str
    code_size: int
    kind: Kind
    num_items: int
    trained_on: int | None
    generation: int
    codes: Stamp
    items: Stamp


@dataclass(frozen=True)
class State:
    """An index as it was read: its header, its codes, and the name in each row or None."""

    header: Header
    codes: StoredCodes
    names: list[str | None]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time may write the folder; the lock goes with the process."""
    if not folder.is_dir():
        raise RunError(f"there is no index at {folder} any more")
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(folder / ".lock").acquire(timeout=0))
        except Timeout:
            raise RunError(
                f"another process is writing the index at {folder}; wait for it to end"
            ) from None
        yield


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a new index must not be written into; touches nothing."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another folder", is_usage=True)
    if not folder.is_dir():
        return
    if not _holds_index(folder) and any(map(_is_foreign, folder.iterdir())):
        raise RunError(
            f"{folder} is not empty and holds no index; choose another folder", is_usage=True
        )
    if (folder / _HEADER).exists() and not overwrite:
        raise RunError(
            f"{folder} already holds an index",
            hint="add to that one, overwrite it, or choose another folder",
            is_usage=True,
        )


def read_state(folder: Path) -> State:
    """The index that the folder holds; nothing but an error comes of a damaged one."""
    header = read_header(folder)
    for _ in range(_ATTEMPTS):
        try:
            return _read_data(folder, header)
        except (RunError, FileNotFoundError) as error:
            # a writer may have gone on to the next generation meanwhile
            before, header = header, read_header(folder)
            if header == before:
                if isinstance(error, RunError):
                    raise
                missing = Path(error.filename or folder)
                raise RunError(f"{folder} is damaged: {missing.name} is missing") from None
    raise RunError(f"the index at {folder} changes too fast to be read; try again")


def read_header(folder: Path) -> Header:
    try:
        text = (folder / _HEADER).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"there is no index at {folder}", hint="it has no index.json", is_usage=True
        ) from None
    except UnicodeDecodeError as error:
        raise RunError(f"{folder / _HEADER} is damaged: {error}") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{folder / _HEADER} is damaged: {error}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise RunError(f"{folder / _HEADER} is damaged, or belongs to another program")
    version = content.get("version")
    if version != VERSION:
        raise RunError(
            f"{folder} holds an index of format {version!r}; this version reads format {VERSION}",
            hint="make the index again, or use the version that made it",
        )
    try:
        return _as_header(content)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / _HEADER} is damaged: {error!r}") from None


def write_state(
    folder: Path, model_id: str, codes: StoredCodes, names: Sequence[str | None]
) -> Header:
    """Write the next generation. Until the last moment the folder holds the one before."""
    generation = 1 + max((_generation(path) for path in _data_files(folder)), default=-1)
    codes_path, items_path = _paths(folder, generation)
    try:
        with _stamped(codes_path) as file:
            codes.write(file.write)
        codes_stamp = file.stamp
        with _stamped(items_path) as file:
            for name in names:
                file.write(f"{json.dumps(name)}\n".encode())
        header = Header(
            model_id=model_id,
            code_size=codes.code_size,
            kind=codes.kind,
            num_items=sum(name is not None for name in names),
            trained_on=codes.trained_on,
            generation=generation,
            codes=codes_stamp,
            items=file.stamp,
        )
        content = {"format": _FORMAT, "version": VERSION, **asdict(header)}
        write_atomically(folder / _HEADER, f"{json.dumps(content, indent=2)}\n".encode())
    finally:
        _clear(folder)
    return header


def _clear(folder: Path) -> None:
    """Remove all generations but the one that index.json names, if it names one."""
    try:
        holds = read_header(folder).generation
    except (RunError, OSError):
        return
    with suppress(OSError):
        remove_parts(folder)
        for path in _data_files(folder):
            if _generation(path) != holds:
                path.unlink()


def _holds_index(folder: Path) -> bool:
    """Whether index.json is ours, in whatever version."""
    try:
        content = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == _FORMAT


def _is_foreign(path: Path) -> bool:
    """Not what an index leaves, whole, damaged or killed in its first moment."""
    own = path.name in (_HEADER, ".lock") or _DATA.fullmatch(path.name)
    return not (own or re.fullmatch(r"\.index\.json\.\d+\.part", path.name))


def _paths(folder: Path, generation: int) -> tuple[Path, Path]:
    return folder / f"codes.{generation}.faiss", folder / f"items.{generation}.jsonl"


def _data_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _DATA.fullmatch(path.name)]


def _generation(path: Path) -> int:
    return int(path.name.split(".")[1])


def _as_header(content: dict[str, Any]) -> Header:
    """The header of JSON content; whatever is wrong with it is an error of Python's."""
    kind, model_id, trained_on = content["kind"], content["model_id"], content["trained_on"]
    if kind not in get_args(Kind) or not isinstance(model_id, str):
        raise ValueError(f"kind {kind!r} of model {model_id!r}")
    return Header(
        model_id=model_id,
        code_size=_count(content["code_size"], least=1),
        kind=kind,
        num_items=_count(content["num_items"]),
        trained_on=None if trained_on is None else _count(trained_on),
        generation=_count(content["generation"]),
        codes=Stamp(_count(content["codes"]["bytes"]), _count(content["codes"]["crc32"])),
        items=Stamp(_count(content["items"]["bytes"]), _count(content["items"]["crc32"])),
    )


def _count(value: Any, *, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is not a count")
    return value


def _read_data(folder: Path, header: Header) -> State:
    codes_path, items_path = _paths(folder, header.generation)
    with items_path.open("rb") as file:
        _check(items_path, file, header.items)
        names = [_as_name(items_path, line) for line in file]
    with codes_path.open("rb") as file:
        _check(codes_path, file, header.codes)
        try:
            codes = StoredCodes.read(header.kind, header.code_size, header.trained_on, file.read)
        except ValueError as error:
            raise RunError(f"{codes_path} is damaged: {error}") from None
    live = [name for name in names if name is not None]
    if len(codes) != len(names):
        raise RunError(
            f"{folder} is damaged: {codes_path.name} has {len(codes)} codes, "
            f"{items_path.name} has {len(names)} names"
        )
    if len(live) != header.num_items or len(set(live)) != len(live):
        raise RunError(
            f"{folder} is damaged: {items_path.name} has {len(set(live))} items, "
            f"index.json says {header.num_items}"
        )
    return State(header, codes, names)


def _as_name(path: Path, line: bytes) -> str | None:
    try:
        name = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if name is not None and not isinstance(name, str):
        raise RunError(f"{path} is damaged: {name!r} is not a name")
    return name


def _check(path: Path, file: IO[bytes], stamp: Stamp) -> None:
    """Refuse content that is not what was written."""
    size = os.fstat(file.fileno()).st_size
    if size != stamp.bytes:
        raise RunError(f"{path} is damaged: it has {size} bytes, index.json says {stamp.bytes}")
    crc32 = 0
    while block := file.read(_BLOCK_BYTES):
        crc32 = zlib.crc32(block, crc32)
    if crc32 != stamp.crc32:
        raise RunError(f"{path} is damaged: its checksum is not the one in index.json")
    file.seek(0)


class _Stamped:
    """A file that knows what was written into it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.stamp = Stamp(0, 0)

    def write(self, content: bytes) -> int:
        self.stamp = Stamp(self.stamp.bytes + len(content), zlib.crc32(content, self.stamp.crc32))
        return self._file.write(content)


@contextmanager
def _stamped(path: Path) -> Iterator[_Stamped]:
    with path.open("wb") as file:
        yield _Stamped(file)
        file.flush()
        os.fsync(file.fileno())
