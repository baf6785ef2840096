"""Search: keep an index of many images, and find those that show the same thing as a query."""

import contextlib
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from orbitset.datasets.folder import ImageFiles
from orbitset.datasets.named_images import find_images, open_image
from orbitset.datasets.pictures import Box, ImageFile
from orbitset.datasets.table import Problem
from orbitset.errors import ConfigError, DataError, OrbitsetError
from orbitset.models import Model
from orbitset.outside import is_name
from orbitset.search.folder import holds_index, locked
from orbitset.search.index import Index
from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet, short_names
from orbitset.search.stored import Kind
from orbitset.uses.embedding import Progress, Summary, embed_table, embedded_batches

_AT_ONCE = 4_096


@dataclass(frozen=True)
class Match:
    """An image of the index, and its squared distance from the query."""

    path: str
    distance: float


@dataclass(frozen=True)
class Answer:
    """The images that a query found, nearest first."""

    query: str
    matches: tuple[Match, ...]
    file: ImageFile
    """The query's"""
    box: Box | None


@dataclass
class Indexed(Summary):
    """What was added, and how many images the index holds now."""

    added: int = 0
    replaced: int = 0
    size: int = 0


def add_to_index(
    model: Model,
    folder: Path,
    images: Sequence[Path | str],
    *,
    kind: Kind | None = None,
    on_progress: Progress | None = None,
) -> Indexed:
    """Add images to an index, which is created if it does not exist; all of them, or none after an error.

    Items are named by their absolute paths, `clip.mp4#12` too. One that is in it is encoded again.
    A new index is flat by default.
    """
    files = _located(model, images)
    if holds_index(folder):
        index = Index.open(folder, model_id=model.id)
        if kind not in (None, index.kind):
            raise ConfigError(f"the index at {folder} is of the kind {index.kind}, not {kind}")
        return _add(model, index, files, on_progress)
    had_folder = folder.exists()
    index = Index.create(folder, model_id=model.id, code_size=model.code_size, kind=kind or "flat")
    try:
        return _add(model, index, files, on_progress)
    except BaseException:
        _discard(folder, had_folder)
        raise


def _add(model: Model, index: Index, files: ImageFiles, on_progress: Progress | None) -> Indexed:
    summary = Indexed(ignored=files.ignored)
    problems: list[Problem] = []
    with index.changes():
        for places, codes in embedded_batches(
            model, files.table, problems, batch=_AT_ONCE, on_progress=on_progress
        ):
            counts = index.add([files.table.paths[at] for at in places], codes)
            summary.added += counts.added
            summary.replaced += counts.replaced
            summary.done += len(places)
        summary.problems = tuple(problems)
        summary.check()
    summary.size = len(index)
    return summary


def _discard(folder: Path, keep_folder: bool) -> None:
    """Remove a new index that stayed empty, unless another process writes it by now."""
    with contextlib.suppress(OSError, OrbitsetError), locked(folder):
        if len(Index.open(folder)):
            return
        for name in ("index.zip", ".lock"):
            (folder / name).unlink()
        if not keep_folder:
            folder.rmdir()


def remove_from_index(folder: Path, images: Sequence[Path | str]) -> tuple[int, list[str], int]:
    """Remove images, and all images below folders or of videos, arrays and functions. Returns how many,
    unknown ones, and how many are left."""
    index = Index.open(folder)
    known = index.names
    names: list[str] = []
    unknown: list[str] = []
    for image, path in zip(images, _absolute(images), strict=True):
        below = (os.path.join(path, ""), f"{path}#")
        inside = [path] if path in index else [name for name in known if name.startswith(below)]
        names += inside
        if not inside:
            unknown.append(str(image))
    removed = index.remove(names).removed if names else 0
    return removed, unknown, len(index)


def search_index(
    model: Model,
    folder: Path,
    queries: Sequence[Path | str],
    *,
    k: int = 10,
    on_progress: Progress | None = None,
) -> tuple[list[Answer], tuple[Problem, ...]]:
    """The nearest images of each query, without the query itself; and problems with queries."""
    index = Index.open(folder, model_id=model.id)
    if not len(index):
        raise DataError(f"the index at {folder} is empty", hint="add images to it first")
    embedded = embed_table(model, _located(model, queries).table, on_progress=on_progress)
    nearest = index.search(embedded.codes, k, exclude_self=embedded.paths)
    table = embedded.table
    boxes = table.boxes or [None] * len(table)
    return [
        Answer(query, tuple(map(Match, names, distances.tolist())), file, box)
        for query, names, distances, file, box in zip(
            table.paths, nearest.names, nearest.distances, table.files, boxes, strict=True
        )
    ], embedded.problems


def search_sheet(model: Model, answers: Sequence[Answer]) -> str:
    """A page with each query, its rectified image, and its matches."""
    rows = []
    for answer in answers:
        paths = [match.path for match in answer.matches]
        query, *captions = short_names([answer.query, *paths])
        pixels = model.form.read(answer.file, answer.box)
        if isinstance(pixels, str):
            raise DataError(f"{answer.query} {pixels}")
        pictures = [
            SheetPicture(answer.query, "query", query, is_marked=True),
            SheetPicture(model.rectify_prepared(np.stack([pixels]))[0], "rectified"),
            *(
                SheetPicture(match.path, caption, f"{match.distance:.4g}")
                for match, caption in zip(answer.matches, captions, strict=True)
            ),
        ]
        rows.append(SheetRow(answer.query, pictures))
    note = "Nearest first, with the squared distance of their codes from the query's."
    return contact_sheet(rows, title="Search", note=note, open_file=open_image)


def _located(model: Model, images: Sequence[Path | str]) -> ImageFiles:
    """The images by their absolute paths, without duplicates."""
    files = find_images(images, model.form)
    paths = _absolute(files.table.paths)
    first = {path: at for at, path in reversed(list(enumerate(paths)))}
    table = replace(files.table, paths=tuple(paths)).at(sorted(first.values()))
    return replace(files, table=table)


def _absolute(paths: Sequence[Path | str]) -> list[str]:
    """The names of items: paths with links to folders resolved; an image may itself be a link, and a function
    has no path."""
    real = functools.cache(os.path.realpath)

    def located(path: str) -> str:
        if os.path.isdir(path):
            return str(real(path))
        folder, name = os.path.split(path)
        is_function = is_name(path.partition("#")[0]) and not os.path.exists(path)
        return path if is_function else os.path.join(real(folder or "."), name)

    return [located(str(path)) for path in paths]
