"""Pixels that are computed from a source once and cached: decoded images, frames of videos, rendered heads.

An entry is `KIND/KEY.u8`, pixels that are mapped into memory, and `KIND/KEY.json`, written last, which
describes it: the code that wrote it, its source, its shape, a checksum of every 16 MiB. Several threads
verify all checksums whenever an entry is opened (some GB/s); training reads the same pixels next. The time
of the description says when the entry was last used. While an entry is written it is locked, so that other
processes wait for it, and what a killed process left is recognised and removed.
"""

import contextlib
import datetime
import hashlib
import io
import json
import math
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from filelock import FileLock, Timeout

from orbitset.errors import ConfigError, DataError
from orbitset.files import cache_folder, write_atomically

Kind = Literal["images", "frames", "heads"]
_PIXELS = ("images", "frames", "heads")
_COMPILED = ".cubin"
"""Compiled code is listed and cleared here, but written elsewhere"""
LIMIT = "ORBITSET_CACHE_GB"
"""The environment variable with the most gigabytes that are cached; with 0 nothing is"""
_LIMIT_GB = 50.0
_BLOCK = 1 << 24
Write = Callable[[BinaryIO], tuple[tuple[int, ...], Any]]
"""Appends pixels to a file; gives the shape of all, and what else is to be cached, as JSON can"""


@dataclass(frozen=True)
class Key:
    """What the pixels of an entry depend on."""

    kind: Kind
    version: int
    """Raised when the code that writes the pixels changes them"""
    source: str
    """Where they come from, for people"""
    inputs: tuple[Any, ...]

    @property
    def path(self) -> Path:
        """Where the entry lies, without an ending."""
        digest = hashlib.sha256(repr((self.kind, self.version, self.inputs)).encode()).hexdigest()
        return cache_folder() / self.kind / digest[:32]


@dataclass(frozen=True)
class Entry:
    """One entry of the cache, as `orbitset cache` lists it."""

    kind: str
    name: str
    source: str | None
    """None if the description is missing or from an older version"""
    owner: str | None
    """The version of orbitset that wrote it"""
    bytes: int
    used: str
    """When it was last used"""

    @property
    def days_unused(self) -> float:
        used = datetime.datetime.fromisoformat(self.used)
        return (datetime.datetime.now(datetime.UTC) - used).total_seconds() / 86_400


def cached_pixels(key: Key | None, write: Write) -> tuple[np.ndarray, Any]:
    """The pixels of an entry and what is cached beside them; if there are none, what `write` makes now.

    Without a key, or where nothing can be cached, the pixels stay in memory.
    """
    limit = limit_bytes()
    if key is None or not limit:
        return _in_memory(write)
    if stored := _stored(key.path):
        return stored
    with contextlib.ExitStack() as stack:
        try:
            key.path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_lock(key.path.name))
        except (OSError, NotImplementedError):  # read-only, or a disk without locks
            return _in_memory(write)
        if stored := _stored(key.path):  # by another process meanwhile
            return stored
        computed = _make(key, write)
    remove_parts()
    total = 0
    for entry in entries():  # those that were used least recently go, until the others fit
        total += entry.bytes
        if total > limit and entry.name != key.path.name:
            _remove(entry)
    return computed


def entries() -> list[Entry]:
    """All entries of the cache, those that were used last first."""
    listed = []
    stems: dict[tuple[str, str], list[Path]] = {}
    for path in cache_folder().glob("*/[!.]*"):
        if path.parent.name in _PIXELS or path.suffix == _COMPILED:
            stems.setdefault((path.parent.name, path.stem), []).append(path)
    for (kind, stem), paths in stems.items():
        with contextlib.suppress(OSError):  # removed meanwhile
            listed.append(_entry(kind, stem, paths))
    return sorted(listed, key=lambda entry: entry.used, reverse=True)


def clear(*, older_than_days: float = 0.0) -> list[Entry]:
    """Remove the entries that have not been used for so many days; gives those that were removed."""
    remove_parts()
    removed = [entry for entry in entries() if entry.days_unused >= older_than_days]
    for entry in removed:
        _remove(entry)
    return removed


def remove_parts() -> None:
    """Remove what processes left that were killed while they wrote."""
    for part in cache_folder().glob("*/.*.part*"):
        if part.parent.name in _PIXELS:
            try:
                with _lock(part.name.split(".")[1]).acquire(timeout=0):
                    part.unlink(missing_ok=True)
            except (Timeout, OSError, NotImplementedError):
                continue  # it is being written, or the disk is read-only or has no locks


def _stored(path: Path) -> tuple[np.ndarray, Any] | None:
    """A whole entry whose checksums are right."""
    try:
        about = json.loads(path.with_suffix(".json").read_text())
        shape, pixels = tuple(about["shape"]), path.with_suffix(".u8")
        if not math.prod(shape) or pixels.stat().st_size != math.prod(shape):
            return None
        if about["checksums"] != _checksums(pixels):
            return None
        with contextlib.suppress(OSError):  # a cache that is read-only
            os.utime(path.with_suffix(".json"))
        # copy on write: nothing that is done to the pixels reaches the file
        return np.memmap(pixels, np.uint8, "c", shape=shape), about["details"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make(key: Key, write: Write) -> tuple[np.ndarray, Any]:
    from orbitset import __version__

    pixels = key.path.with_suffix(".u8")
    part = key.path.with_name(f".{pixels.name}.part")
    try:
        with part.open("w+b") as file:
            shape, details = write(file)
        if not math.prod(shape):
            return np.empty(shape, np.uint8), details
        about = {
            "owner": f"orbitset {__version__}, {key.kind} {key.version}",
            "source": key.source,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "shape": shape,
            "checksums": _checksums(part),
            "details": details,
        }
        part.replace(pixels)
        write_atomically(key.path.with_suffix(".json"), json.dumps(about).encode())
    except OSError as error:
        raise DataError(
            f"decoded {key.kind} cannot be cached in {part.parent}: {error.strerror}",
            hint=f"set XDG_CACHE_HOME to a folder with room for them, or {LIMIT}=0 to cache nothing",
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return np.memmap(pixels, np.uint8, "c", shape=shape), details


def _in_memory(write: Write) -> tuple[np.ndarray, Any]:
    file = io.BytesIO()
    shape, details = write(file)
    return np.frombuffer(bytearray(file.getbuffer()), np.uint8).reshape(shape), details


def _checksums(path: Path) -> list[int]:
    """The CRC-32 of every block of a file."""

    def checksum(start: int) -> int:
        with path.open("rb") as file:
            file.seek(start)
            return zlib.crc32(file.read(_BLOCK))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(checksum, range(0, path.stat().st_size, _BLOCK)))


def _entry(kind: str, stem: str, paths: list[Path]) -> Entry:
    about: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        about = json.loads((cache_folder() / kind / f"{stem}.json").read_text())
    used = max(path.stat().st_mtime for path in paths)
    when = datetime.datetime.fromtimestamp(used, datetime.UTC).isoformat(timespec="seconds")
    num_bytes = sum(path.stat().st_size for path in paths)
    source = "compiled code" if paths[0].suffix == _COMPILED else about.get("source")
    return Entry(kind, stem, source, about.get("owner"), num_bytes, when)


def _remove(entry: Entry) -> None:
    for folder in (entry.kind, "locks"):
        for path in sorted(cache_folder().glob(f"{folder}/{entry.name}.*")):  # .json before .u8
            with contextlib.suppress(OSError):  # in use on Windows
                path.unlink(missing_ok=True)


def _lock(name: str) -> FileLock:
    return FileLock(cache_folder() / "locks" / f"{name}.lock")


def limit_bytes() -> int:
    """The size that the cache may have."""
    text = os.environ.get(LIMIT, "").strip()
    try:
        gigabytes = float(text) if text else _LIMIT_GB
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < math.inf:
        raise ConfigError(f"{LIMIT} is {text!r}; give gigabytes, such as 20, or 0 to cache nothing")
    return int(gigabytes * 1e9)
