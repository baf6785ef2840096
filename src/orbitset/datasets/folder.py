"""The files below a folder, listed once."""

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from orbitset.datasets.pictures import SUFFIXES
from orbitset.datasets.shards import is_tar
from orbitset.datasets.table import ImageTable
from orbitset.errors import DataError

MANIFEST = "manifest.csv"
"""The name of a manifest that describes the images in its folder"""
ORBIT = "orbit"
"""The factor that tells sub-folders apart"""


@dataclass(frozen=True)
class Listing:
    """All files below a folder, from one walk through it."""

    root: Path
    paths: tuple[str, ...]
    """Relative to the root, in natural order within each folder; hidden files are left out"""
    unreadable: tuple[str, ...] = ()
    """Folders that may not be read"""

    def ending_in(self, suffixes: Collection[str]) -> list[str]:
        return [path for path in self.paths if Path(path).suffix.lower() in suffixes]

    @property
    def shards(self) -> list[str]:
        return [path for path in self.paths if is_tar(path)]

    @property
    def images(self) -> "ImageFiles":
        """All images; those in one sub-folder share the factor `orbit`, its path, which is empty for images
        in the folder itself."""
        images = self.ending_in(SUFFIXES)
        if not images:
            kinds = ", ".join(sorted(suffix.removeprefix(".") for suffix in SUFFIXES))
            raise DataError(f"there is no image in {self.root}", hint=f"these are known: {kinds}")
        orbits = tuple(path.rpartition("/")[0] for path in images)
        table = ImageTable.numbered(str(self.root), self.root, images, {ORBIT: orbits})
        others = [path for path in self.paths if Path(path).suffix.lower() not in SUFFIXES]
        return ImageFiles(table, (*self.unreadable, *others))


@dataclass(frozen=True)
class ImageFiles:
    """Image files, and what else lay among them."""

    table: ImageTable
    ignored: tuple[str, ...] = ()
    """Files that are not images, and folders that may not be read"""

    @property
    def named(self) -> "ImageFiles":
        """The same with names that need no folder before them."""
        ignored = tuple(str(self.table.root / path) for path in self.ignored)
        return ImageFiles(self.table.named, ignored)


def list_folder(root: Path | str) -> Listing:
    """The files below a folder. Links to folders are followed, except into what is listed anyway."""
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"there is no folder {root}", is_usage=True)
    unreadable: list[str] = []
    visited = [Path(os.path.realpath(root))]

    def skip(error: OSError) -> None:
        unreadable.append(Path(error.filename).relative_to(root).as_posix())

    def is_new(path: str) -> bool:
        if not os.path.islink(path):
            return True
        target = Path(os.path.realpath(path))
        if any(target.is_relative_to(x) or x.is_relative_to(target) for x in visited):
            return False
        visited.append(target)
        return True

    paths: list[str] = []
    for folder, inner, names in os.walk(root, onerror=skip, followlinks=True):
        inner[:] = [name for name in _ordered(inner) if is_new(os.path.join(folder, name))]
        inside = Path(folder).relative_to(root)
        paths += [(inside / name).as_posix() for name in _ordered(names)]
    return Listing(root, tuple(paths), tuple(unreadable))


def _ordered(names: Iterable[str]) -> list[str]:
    """Names that are not hidden, in one order even where zeros or capitals alone tell them apart."""
    return sorted(sorted(name for name in names if not name.startswith(".")), key=natural)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """To sort by: numbers inside names count as numbers.

    >>> sorted(["img10.png", "img2.png", "Img1.png"], key=natural)
    ['Img1.png', 'img2.png', 'img10.png']
    """
    parts: Iterable[str] = re.split(r"(\d+)", name.casefold())
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
