"""Images by name, from whatever `train` takes: files, and every kind of source that `open_source` knows.

An image that is no file is named by its source and a number, as `clip.mp4#12` and `images.npy#3`.
"""

import functools
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from orbitset.datasets.folder import ImageFiles
from orbitset.datasets.pictures import ImageFile, ImageForm, InMemory, Stretch, open_bytes, stamp
from orbitset.datasets.shards import file_at
from orbitset.datasets.source import Source, UnknownSource, open_path, open_source
from orbitset.datasets.table import ImageTable, Problem
from orbitset.errors import ConfigError, DataError
from orbitset.outside import check_trust, is_name

_SHOWN = ImageForm(160, is_colour=True)
"""Frames of videos on a page"""


def find_images(sources: Sequence[Path | str], form: ImageForm) -> ImageFiles:
    """Images by their names, and all images of sources, in the order they are named and each once.

    Factors are those of any source, empty where another has none. Frames of videos are decoded in that form.
    What is wrong with single images of a source is in the table's `left_out`.
    """
    if not sources:
        raise DataError("no image was named", is_usage=True)
    listed = [_listed(str(source), form) for source in sources]
    tables = [files.table for files in listed]
    places: dict[str, tuple[ImageTable, int]] = {}
    for table in tables:
        for at, path in enumerate(table.paths):
            places.setdefault(path, (table, at))
    label = str(sources[0]) if len(sources) == 1 else f"{len(sources)} sources"
    merged = ImageTable.numbered(label, Path(), list(places), _factors(tables, places.values()))
    if any(table.boxes for table in tables):
        boxes = tuple(table.boxes[at] if table.boxes else None for table, at in places.values())
        merged = replace(merged, boxes=boxes)
    if any(table.inside for table in tables):
        inside = tuple(table.inside[at] if table.inside else None for table, at in places.values())
        merged = replace(merged, inside=inside)
    reasons = dict.fromkeys(problem.reason for table in tables for problem in table.left_out)
    problems = [Problem(row, why) for row, why in enumerate(reasons, start=len(places) + 1)]
    ignored = tuple(name for files in listed for name in files.ignored)
    return ImageFiles(merged.without(problems, "skip"), ignored)


def image_at(name: Path | str, form: ImageForm) -> ImageFile:
    """What one image is read from, by the name it has in tables."""
    spec = str(name)
    source = _source(spec)
    if source is not None:
        raise ConfigError(
            f"{spec} holds more than one image, and one is needed",
            hint="name a file, a file in a shard (train-000.tar/a.jpg), or a frame or row by its number "
            "(clip.mp4#12, images.npy#3)",
        )
    file = file_at(spec)
    if isinstance(file, Stretch) or Path(spec).is_file():
        return file
    stem, mark, _ = spec.rpartition("#")
    images = _numbered(stem, form, stamp(Path(stem))) if mark else {}
    if spec in images:
        return images[spec]
    if images:
        raise DataError(f"there is no image {spec}; {stem} has {len(images):,}", is_usage=True)
    raise DataError(f"there is no image, folder or other data {spec}", is_usage=True)


def open_image(name: str) -> BinaryIO:
    """An image by its name, to be shown. The name may come from a file: code that it names is run only if it
    is trusted."""
    stem = name.rpartition("#")[0]
    if is_name(stem):
        check_trust({stem: "source"}, "the name of an image")
    return open_bytes(image_at(name, _SHOWN))


def _factors(
    tables: Sequence[ImageTable], places: Collection[tuple[ImageTable, int]]
) -> dict[str, tuple[str, ...]]:
    names = dict.fromkeys(name for table in tables for name in table.columns)
    empty = ("",) * max(map(len, tables))
    return {
        name: tuple(table.columns.get(name, empty)[at] for table, at in places) for name in names
    }


def _listed(spec: str, form: ImageForm) -> ImageFiles:
    source = _source(spec)
    if source is not None:
        return source.images(form)
    file = image_at(spec, form)
    table = ImageTable.numbered(
        spec, Path(), [str(Path(spec)) if isinstance(file, Path) else spec], {}
    )
    return ImageFiles(table if isinstance(file, Path) else replace(table, inside=(file,)))


def _source(spec: str) -> Source | None:
    """The source of that name; None if it is one image, or nothing. A path comes before a name."""
    try:
        return open_path(spec) if os.path.exists(spec) else open_source(spec)
    except UnknownSource:
        if os.path.isdir(spec):
            raise
        return None


@functools.lru_cache(maxsize=8)
def _numbered(source: str, form: ImageForm, _stamp: tuple[int, ...]) -> dict[str, ImageFile]:
    """The images of a source that are no files, by their names."""
    opened = _source(source)
    if opened is None:
        return {}
    table = opened.images(form).table
    return {
        path: file
        for path, file in zip(table.paths, table.files, strict=True)
        if isinstance(file, InMemory)
    }
