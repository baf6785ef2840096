"""Images in a folder, in shards, or by name: found, ordered as people number them, grouped by sub-folders."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orbitset.datasets.pictures import SUFFIXES, Stretch
from orbitset.datasets.shards import expand, file_at, is_tar, scan_shards
from orbitset.datasets.table import ImageTable, Problem
from orbitset.errors import DataError

MANIFEST = "manifest.csv"
"""In a folder, it says what the images there are"""
ORBIT = "orbit"
"""The factor that tells sub-folders apart"""


@dataclass(frozen=True)
class Found:
    """Image files, and what else lay among them."""

    table: ImageTable
    ignored: tuple[str, ...] = ()
    """Other files, and folders that may not be read; hidden ones left aside"""


def holds_images(folder: Path) -> bool:
    """Whether there is any image below a folder, or a manifest in it."""
    return (folder / MANIFEST).is_file() or holds_files(folder, SUFFIXES)


def holds_files(folder: Path, suffixes: Collection[str]) -> bool:
    """Whether there is any file with one of these endings below a folder."""
    return any(Path(name).suffix.lower() in suffixes for name in _files(folder))


def find_shards(data: Path | str) -> tuple[Path, list[str]]:
    """The folder that shards lie in, and their names there; none if `data` is something else.

    `data` is a tar, a pattern such as `train-{000..009}.tar`, or a folder that holds tars and no images.
    """
    path = Path(data)
    if path.is_dir():
        return path, [] if holds_images(path) else [name for name in _files(path) if is_tar(name)]
    if not is_tar(path.name) or path.is_file():
        return path.parent, [path.name] if is_tar(path.name) else []
    root = Path(f"{str(path).partition('{')[0]}x").parent
    return root, [Path(name).relative_to(root).as_posix() for name in expand(str(path))]


def scan_folder(root: Path | str) -> Found:
    """All images below a folder; those in one sub-folder share the factor `orbit`, its path.

    Images that lie in the folder itself have the empty text for it.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"there is no folder {root}")
    paths: list[str] = []
    ignored: list[str] = []
    for path in _files(root, on_unreadable=ignored.append):
        (paths if Path(path).suffix.lower() in SUFFIXES else ignored).append(path)
    if not paths:
        kinds = ", ".join(sorted(suffix.removeprefix(".") for suffix in SUFFIXES))
        raise DataError(f"there is no image in {root}", hint=f"these are looked for: {kinds}")
    orbits = tuple(path.rpartition("/")[0] for path in paths)
    return Found(_table(str(root), root, paths, {ORBIT: orbits}), tuple(ignored))


def find_images(sources: Sequence[Path | str]) -> Found:
    """Images by their names, and all images below folders or in shards, in the order they are named.

    What is wrong with shards is in the table's `left_out`.
    """
    paths: dict[str, Stretch | None] = {}
    ignored: list[str] = []
    reasons: dict[str, None] = {}
    for source in map(Path, sources):
        root, shards = find_shards(source)
        if shards:
            names = [str(root / shard) for shard in shards]
            table, problems = scan_shards(str(source), Path(), names)
            paths |= dict(zip(table.paths, table.stretches or (), strict=True))
            reasons |= dict.fromkeys(problem.reason for problem in problems)
        elif source.is_dir():
            found = scan_folder(source)
            paths |= dict.fromkeys(str(source / path) for path in found.table.paths)
            ignored += [str(source / path) for path in found.ignored]
        elif source.is_file():
            paths[str(source)] = None
        elif isinstance(inside := file_at(source), Stretch):
            paths[str(source)] = inside
        else:
            raise DataError(f"there is no image or folder {source}")
    if not paths and not reasons:
        raise DataError("no image was named")
    label = str(sources[0]) if len(sources) == 1 else f"{len(sources)} files and folders"
    table = _table(label, Path(), list(paths), {})
    if any(paths.values()):
        table = replace(table, stretches=tuple(paths.values()))
    after = enumerate(reasons, start=len(paths) + 1)
    table = table.without([Problem(row, reason) for row, reason in after], "skip")
    return Found(table, tuple(ignored))


def _files(root: Path, on_unreadable: Callable[[str], None] | None = None) -> Iterator[str]:
    """Below a folder and relative to it, what is hidden left aside. Links to folders are followed, except
    into what is looked through anyway."""

    def skip(error: OSError) -> None:
        if on_unreadable is not None:
            on_unreadable(Path(error.filename).relative_to(root).as_posix())

    looked_through = [Path(os.path.realpath(root))]

    def is_new(path: str) -> bool:
        if not os.path.islink(path):
            return True
        target = Path(os.path.realpath(path))
        if any(target.is_relative_to(x) or x.is_relative_to(target) for x in looked_through):
            return False
        looked_through.append(target)
        return True

    for folder, inner, names in os.walk(root, onerror=skip, followlinks=True):
        inner[:] = [name for name in _ordered(inner) if is_new(os.path.join(folder, name))]
        inside = Path(folder).relative_to(root)
        yield from ((inside / name).as_posix() for name in _ordered(names))


def _ordered(names: Iterable[str]) -> list[str]:
    """Those that are not hidden, in one order also where zeros and capitals alone tell them apart."""
    return sorted(sorted(name for name in names if not name.startswith(".")), key=natural)


def _table(
    source: str, root: Path, paths: Sequence[str], columns: dict[str, tuple[str, ...]]
) -> ImageTable:
    rows = tuple(range(1, len(paths) + 1))
    return ImageTable(source, root, tuple(paths), columns, rows)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """To sort by: numbers inside names count as numbers.

    >>> sorted(["img10.png", "img2.png", "Img1.png"], key=natural)
    ['Img1.png', 'img2.png', 'img10.png']
    """
    parts: Iterable[str] = re.split(r"(\d+)", name.casefold())
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
