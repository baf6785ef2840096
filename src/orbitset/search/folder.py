"""The folder of an index: one zip file, which a change replaces as a whole, so that no kill can damage it.

index.zip    index.json    format, model, code size, kind, rows that its lists were made for, revision
             items.json    the name of the item in each row, or null where it was removed
             codes.faiss   the codes, as FAISS writes them
.lock        held by the process that writes

The zip's checksums detect damage. docs/decisions/0016-an-index-is-one-file.md says why this is no database.
"""

import json
import re
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, get_args

from filelock import FileLock, Timeout

from orbitset.errors import RunError, check_choice
from orbitset.files import ordinary, remove_parts, write_atomically
from orbitset.limits import parse_json, read_json
from orbitset.search.stored import Kind, StoredCodes

VERSION = 2
_FORMAT = "orbitset index"
_FILE = "index.zip"
_LARGEST = 2**31
"""FAISS counts the entries of a code in 32 bits"""
_VERSION_1 = re.compile(r"index\.json|codes\.\d+\.faiss|items\.\d+\.jsonl")
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, ValueError, TypeError, LookupError, EOFError, RuntimeError),
    OSError,  # for a place outside the file
)


@dataclass(frozen=True)
class Header:
    """What index.json says."""

    model_id: str
    code_size: int
    kind: Kind
    trained_on: int | None
    revision: str
    """Another one after every change."""


@dataclass(frozen=True)
class State:
    """An index in memory: its header, its codes, and the name in each row or None."""

    header: Header
    codes: StoredCodes
    names: list[str | None]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time may write the folder; the lock ends with the process."""
    if not folder.is_dir():
        raise RunError(f"there is no index at {folder} any more")
    try:
        lock = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise RunError(
            f"another process is writing the index at {folder}; wait for it to end"
        ) from None
    with lock:
        yield


def holds_index(folder: Path) -> bool:
    """Whether there is an index in the folder, even a damaged one or one of another version."""
    return (folder / _FILE).exists() or (folder / "index.json").exists()


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a new index must not be written into; touches nothing."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another folder", is_usage=True)
    if not folder.is_dir():
        return
    if not _is_ours(folder) and any(map(_is_foreign, folder.iterdir())):
        raise RunError(
            f"{folder} is not empty and holds no index; choose another folder", is_usage=True
        )
    if holds_index(folder) and not overwrite:
        raise RunError(
            f"{folder} already holds an index",
            hint="add to that one, overwrite it, or choose another folder",
            is_usage=True,
        )


def read_header(folder: Path) -> Header:
    with _opened(folder) as archive:
        return _header(folder, archive)


def read_state(folder: Path) -> State:
    """The index that the folder holds; a damaged one raises an error."""
    with _opened(folder) as archive:
        header = _header(folder, archive)
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} is wrong")
        names = parse_json(archive.read("items.json"))
        if not isinstance(names, list) or not all(isinstance(name, str | None) for name in names):
            raise ValueError("items.json is no list of names")
        with archive.open("codes.faiss") as file:
            size = archive.getinfo("codes.faiss").file_size
            codes = StoredCodes.read(
                header.kind, header.code_size, header.trained_on, file.read, size
            )
        if len(codes) != len(names):
            raise ValueError(f"it has {len(codes)} codes and {len(names)} names")
    return State(header, codes, names)


def write_state(
    folder: Path, model_id: str, codes: StoredCodes, names: Sequence[str | None]
) -> Header:
    """Replace the index in the folder. Until the last moment the folder holds the one before."""
    header = Header(model_id, codes.code_size, codes.kind, codes.trained_on, uuid.uuid4().hex)

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            about = {"format": _FORMAT, "version": VERSION, **asdict(header)}
            archive.writestr("index.json", json.dumps(about, indent=2))
            archive.writestr("items.json", json.dumps(names))
            with archive.open("codes.faiss", "w", force_zip64=True) as part:
                codes.write(part.write)

    remove_parts(folder)
    write_atomically(folder / _FILE, write)
    for path in folder.iterdir():
        if _VERSION_1.fullmatch(path.name):
            path.unlink()
    return header


@contextmanager
def _opened(folder: Path) -> Iterator[zipfile.ZipFile]:
    """The file of an index. Whatever is wrong with its content becomes one error."""
    try:
        with zipfile.ZipFile(ordinary(folder / _FILE)) as archive:
            _check_plain(archive)
            yield archive
    except (FileNotFoundError, NotADirectoryError):
        if (folder / "index.json").exists():
            raise RunError(
                f"{folder} holds an index of format 1, which this version does not read",
                hint=f"remove it and make it anew: orbitset index add MODEL {folder} IMAGES",
            ) from None
        raise RunError(
            f"there is no index at {folder}", hint=f"it has no {_FILE}", is_usage=True
        ) from None
    except PermissionError:
        raise
    except _DAMAGE as error:
        raise RunError(f"{folder / _FILE} is damaged: {error}") from None


def _check_plain(archive: zipfile.ZipFile) -> None:
    """Refuse what was never written here: a few compressed kilobytes may unpack to gigabytes."""
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is compressed")


def _header(folder: Path, archive: zipfile.ZipFile) -> Header:
    content = parse_json(archive.read("index.json"))
    if not isinstance(content, dict) or content.pop("format") != _FORMAT:
        raise ValueError("it belongs to another program")
    if (version := content.pop("version")) != VERSION:
        raise RunError(
            f"{folder} holds an index of format {version}; this version reads format {VERSION}",
            hint="make the index again, or use the version that made it",
        )
    header = Header(**content)
    sizes = [header.code_size, header.code_size if header.trained_on is None else header.trained_on]
    if not all(type(size) is int and 0 < size < _LARGEST for size in sizes):
        raise ValueError(f"its code size or the rows that its lists were made for are {sizes}")
    check_choice("its kind", header.kind, get_args(Kind))
    return header


def _is_ours(folder: Path) -> bool:
    """Whether the folder holds an index of any version whose description is not damaged."""
    try:
        if (folder / _FILE).exists():
            with zipfile.ZipFile(ordinary(folder / _FILE)) as archive:
                _check_plain(archive)
                content = parse_json(archive.read("index.json"))
        else:
            content = read_json(folder / "index.json")
    except _DAMAGE:
        return False
    return isinstance(content, dict) and content.get("format") == _FORMAT


def _is_foreign(path: Path) -> bool:
    """Whether a file was not left by an index, whole, damaged, or killed while it was written."""
    own = path.name in (_FILE, ".lock") or _VERSION_1.fullmatch(path.name)
    return not (own or re.fullmatch(r"\.index\.(zip|json)\.\d+\.part", path.name))
