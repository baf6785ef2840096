"""WebDataset shards: tars in which files that share a key are a sample, an image and what is known of it.

A tar is gone through once, from header to header; only what holds factors is read. An image is then found by
its place in the tar, so that nothing is unpacked and threads can read in any order.
"""

import functools
import itertools
import json
import math
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from orbitset.datasets.pictures import SUFFIXES, ImageFile, Stretch
from orbitset.datasets.table import ImageTable, OnProblem, Problem
from orbitset.errors import ConfigError, DataError
from orbitset.limits import FACTORS, HEADER, ROWS

TAR = ".tar"
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
"""What compressed files begin with, whatever they are called"""
_TEXTS = ("cls", "txt")
"""Endings of files that hold one factor, called like the ending"""
_MOST_SHARDS = 100_000
_BLOCK = 512
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)", re.ASCII)


@dataclass(slots=True)
class _Sample:
    """The files of a key: an image, and what is known of it."""

    endings: dict[str, None] = field(default_factory=dict)
    name: str = ""
    """The image's"""
    stretch: Stretch | None = None
    factors: dict[str, str] = field(default_factory=dict)
    fault: str | None = None
    """Which file is why the image cannot be used"""


class _TooLarge(Exception):
    """A header that is no header."""


class _Headers:
    """A file of which headers are read, none larger than the limit."""

    def __init__(self, file: BinaryIO) -> None:
        self.tell, self.seek, self._file = file.tell, file.seek, file

    def read(self, num_bytes: int) -> bytes:
        if num_bytes > HEADER.value:
            raise _TooLarge(f"has a header of {num_bytes:,} bytes, {HEADER.described}")
        return self._file.read(num_bytes)


_Contents = tuple[dict[str, _Sample], str | None]
"""The samples of a tar by their keys, in their order, and what is wrong with the tar itself"""


def is_tar(name: str) -> bool:
    """Whether a file is called like a tar, compressed or not."""
    return name.lower().endswith((TAR, *_COMPRESSED))


def expand(pattern: str) -> list[str]:
    """The names that braces stand for, as a shell would understand them.

    >>> expand("train-{008..010}.tar")
    ['train-008.tar', 'train-009.tar', 'train-010.tar']
    >>> expand("{train,val}-{0..1}.tar")
    ['train-0.tar', 'train-1.tar', 'val-0.tar', 'val-1.tar']
    """
    # what is between braces is at the odd places
    parts = enumerate(_BRACES.split(pattern))
    choices = [_values(part) if at % 2 else [part] for at, part in parts]
    if math.prod(map(len, choices)) > _MOST_SHARDS:
        raise ConfigError(f"{pattern} means more than {_MOST_SHARDS:,} files; give a shorter range")
    return ["".join(names) for names in itertools.product(*choices)]


def shards_at(path: Path) -> list[str]:
    """The tars that a path or a pattern such as `train-{000..009}.tar` names, if it names any."""
    if not is_tar(path.name) or path.is_dir():
        return []
    return [str(path)] if path.is_file() else expand(str(path))


def scan_shards(
    source: str, root: Path, names: Sequence[str]
) -> tuple[ImageTable, tuple[Problem, ...]]:
    """The samples of tars below a folder, and what is wrong with others; rows are all that was found.

    Entries of a sample's `.json` that are texts or numbers are factors; so is what `.cls` and `.txt` hold.
    """
    if not any((root / shard).is_file() for shard in names):
        raise DataError(f"there is no shard {source}", is_usage=True)
    samples: list[tuple[int, str, _Sample]] = []
    problems: list[Problem] = []
    number = itertools.count(1)
    for shard in names:
        contents, fault = _contents((root / shard).absolute())
        for sample in contents.values():
            row = next(number)
            if sample.fault is None:
                samples.append((row, f"{shard}/{sample.name}", sample))
            else:
                problems.append(Problem(row, f"{shard}/{sample.fault}"))
        if fault is not None:
            problems.append(Problem(next(number), f"{shard} {fault}"))
    factors = dict.fromkeys(name for *_, sample in samples for name in sample.factors)
    if len(factors) > FACTORS.value:
        raise DataError(f"{source} has {len(factors):,} factors, {FACTORS.described}")
    table = ImageTable(
        source,
        root,
        tuple(path for _, path, _ in samples),
        {name: tuple(sample.factors.get(name, "") for *_, sample in samples) for name in factors},
        tuple(row for row, *_ in samples),
        inside=tuple(sample.stretch for *_, sample in samples),
    )
    return table, tuple(problems)


def read_shards(
    source: str,
    root: Path,
    names: Sequence[str],
    *,
    factors: Sequence[str] = (),
    on_problem: OnProblem = "stop",
) -> ImageTable:
    """The samples that can be used, all of which have these factors."""
    table, problems = scan_shards(source, root, names)
    if not len(table):  # without a single sample there are no factors, and the problems say why
        return table.without(problems, on_problem)
    missing = [
        table.problem(at, f"has no {name}")
        for name in factors
        for at, value in enumerate(table.require(factors).columns[name])
        if not value
    ]
    return table.without([*problems, *missing], on_problem)


def file_at(path: Path | str) -> ImageFile:
    """What an image is read from by the path a table gave it, which may lead into a shard."""
    path = Path(path)
    for folder in path.parents:
        if is_tar(folder.name) and folder.is_file():
            name = path.relative_to(folder).as_posix()
            for sample in _contents(folder.absolute())[0].values():
                if sample.name == name and sample.fault is None and sample.stretch is not None:
                    return sample.stretch
            return path
    return path


def _contents(path: Path) -> _Contents:
    try:
        about = path.stat()
        return _scanned(path, about.st_size, about.st_mtime_ns)
    except FileNotFoundError:
        return {}, "does not exist"
    except OSError as error:
        return {}, f"cannot be read: {error.strerror or error}"


@functools.cache
def _scanned(path: Path, num_bytes: int, _mtime_ns: int) -> _Contents:
    """What is in a tar; kept until it is another one, since settings are chosen before images are read."""
    samples: dict[str, _Sample] = {}
    with path.open("rb") as file:
        if path.name.lower().endswith(_COMPRESSED) or file.read(6).startswith(_MAGIC):
            return (
                {},
                "is compressed; unpack it to a plain .tar, in which images can be read at their places",
            )
        if num_bytes == 0:
            return {}, "is empty: it has 0 bytes"
        file.seek(0)
        fault = _gather(file, path, num_bytes, samples)
    for key, sample in samples.items():
        if sample.fault is None and sample.stretch is None:
            names = ", ".join(f"{key.rpartition('/')[2]}.{ending}" for ending in sample.endings)
            sample.fault = f"{key} has no image, only {names}"
    if not samples and fault is None:
        fault = "is empty: there is no sample in it"
    return samples, fault


def _gather(file: BinaryIO, path: Path, num_bytes: int, samples: dict[str, _Sample]) -> str | None:
    """Go through a tar, and say what is wrong with it if anything is."""
    last = None
    try:
        with tarfile.open(fileobj=cast(BinaryIO, _Headers(file)), mode="r:") as tar:
            for number in itertools.count(1):
                if (member := tar.next()) is None:
                    break
                if number > ROWS.value:
                    return f"has {number:,} files, {ROWS.described}"
                tar.members.clear()  # type: ignore[attr-defined]  # else it keeps them all
                last = member.name.removeprefix("./")
                if member.isdir():
                    continue
                if member.size < 0 or tar.offset <= member.offset:
                    return f"is damaged at {last}"
                end = member.offset_data + member.size
                is_cut = member.isreg() and not member.issparse() and end > num_bytes
                folder, _, base = last.rpartition("/")
                stem, dot, ending = base.partition(".")
                is_hidden = any(part[:1] == "." and part != ".." for part in folder.split("/"))
                if stem and dot and not is_hidden:
                    sample = samples.setdefault(last.removesuffix(f".{ending}"), _Sample())
                    fault = (
                        f"is cut off: the tar ends after {num_bytes:,} bytes" if is_cut else None
                    )
                    fault = fault or _add(sample, last, ending, member, file, path)
                    sample.endings[ending] = None
                    if fault is not None and sample.fault is None:
                        sample.fault = f"{last} {fault}"
                    if is_cut:
                        return None
                elif is_cut:
                    return f"ends in the middle of {last}"
            file.seek(tar.offset)
            if file.read(_BLOCK).strip(b"\0"):
                return f"is damaged or cut off after {last}"
    except _TooLarge as error:
        return str(error)
    except Exception as error:  # damaged ones raise whatever tarfile stumbles over
        return f"is no tar: {error}" if last is None else f"is damaged after {last}: {error}"
    return None


def _add(
    sample: _Sample, name: str, ending: str, member: tarfile.TarInfo, file: BinaryIO, path: Path
) -> str | None:
    """Add a file to its sample, or say what is wrong with it."""
    kind = ending.lower()
    is_image, is_text = f".{kind}" in SUFFIXES, kind in ("json", *_TEXTS)
    if ending in sample.endings:
        return "is in it twice"
    if not (is_image or is_text):
        return None
    if name.startswith("/") or ".." in name.split("/"):
        return "leads out of the tar"
    if member.issym() or member.islnk():
        return f"is a link to {member.linkname}; pack the file itself"
    if not member.isreg() or member.issparse():
        return "is no ordinary file"
    if is_text and member.size > HEADER.value:
        return f"has {member.size:,} bytes of factors, {HEADER.described}"
    if is_image and sample.stretch is not None:
        sample.fault = sample.fault or (
            f"{sample.name} is not the only image of its sample: there is {name}"
        )
    elif is_image:
        sample.name, sample.stretch = name, Stretch(path, member.offset_data, member.size)
    else:
        file.seek(member.offset_data)
        factors = _factors(kind, file.read(member.size))
        if isinstance(factors, str):
            return factors
        sample.factors = factors | sample.factors if kind == "json" else sample.factors | factors
    return None


def _factors(kind: str, content: bytes) -> dict[str, str] | str:
    """What a file says, or what is wrong with it. Numbers stay as they are written."""
    if kind in _TEXTS:
        try:
            return {kind: sys.intern(content.decode("utf-8-sig").strip())}
        except UnicodeDecodeError:
            return "is not UTF-8"
    try:
        entries = json.loads(content, parse_int=str, parse_float=str, parse_constant=_refuse)
        if not isinstance(entries, dict):
            return 'is not a JSON object, such as {"person": "ann", "view": 3}'
        return dict(_flat(entries.items()))
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"


def _flat(entries: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, value in entries:
        text = str(value).lower() if isinstance(value, bool) else value
        if isinstance(text, str):
            (name + text).encode()  # half of a surrogate pair is no text
            yield sys.intern(name), sys.intern(text.strip())


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _values(inside: str) -> list[str]:
    """The texts that stand between braces."""
    ends = _RANGE.fullmatch(inside)
    if ends is None:
        return inside.split(",") if "," in inside else [f"{{{inside}}}"]
    first, last = int(ends[1]), int(ends[2])
    is_padded = any(len(end) > 1 and end.startswith("0") for end in ends.groups())
    width = max(map(len, ends.groups())) if is_padded else 0
    step = 1 if first <= last else -1
    numbers = range(first, last + step, step)[: _MOST_SHARDS + 1]
    return [str(number).zfill(width) for number in numbers]
