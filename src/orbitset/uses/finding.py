"""Search: keep an index of many images, and find those that show the same thing as a query."""

import contextlib
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orbitset.datasets.folder import ImageFiles, find_images
from orbitset.datasets.shards import open_at
from orbitset.datasets.table import Problem
from orbitset.errors import ConfigError, DataError, OrbitsetError
from orbitset.models import Model
from orbitset.search.folder import holds_index, locked
from orbitset.search.index import Index
from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet
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

    Items are named by their absolute paths. An image that is in the index is encoded again. A new index is
    flat by default.
    """
    files = _located(images)
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
        for paths, codes in embedded_batches(
            model, files.table, problems, batch=_AT_ONCE, on_progress=on_progress
        ):
            counts = index.add(paths, codes)
            summary.added += counts.added
            summary.replaced += counts.replaced
            summary.done += len(paths)
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
    """Remove images, and all images below folders. Returns how many, unknown ones, and how many are left."""
    index = Index.open(folder)
    known = index.names
    names: list[str] = []
    unknown: list[str] = []
    for image, path in zip(images, _absolute(images), strict=True):
        below = os.path.join(path, "")
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
    embedded = embed_table(model, _located(queries).table, on_progress=on_progress)
    nearest = index.search(embedded.codes_ND, k, exclude_self=embedded.paths)
    return [
        Answer(query, tuple(map(Match, names, distances.tolist())))
        for query, names, distances in zip(
            embedded.paths, nearest.names, nearest.distances_QK, strict=True
        )
    ], embedded.problems


def search_sheet(model: Model, answers: Sequence[Answer]) -> str:
    """A page with each query, its rectified image, and its matches."""
    rows = []
    for answer in answers:
        upright = model.rectify(answer.query)[0]
        pictures = [
            SheetPicture(answer.query, "query", Path(answer.query).name, is_marked=True),
            SheetPicture(upright, "rectified"),
            *(
                SheetPicture(match.path, Path(match.path).name, f"{match.distance:.4g}")
                for match in answer.matches
            ),
        ]
        rows.append(SheetRow(answer.query, pictures))
    note = "Nearest first, with the squared distance of their codes from the query's."
    return contact_sheet(rows, title="Search", note=note, open_file=open_at)


def _located(images: Sequence[Path | str]) -> ImageFiles:
    """The images by their absolute paths, without duplicates."""
    files = find_images(images)
    paths = _absolute(files.table.paths)
    first = {path: at for at, path in reversed(list(enumerate(paths)))}
    table = replace(files.table, paths=tuple(paths)).at(sorted(first.values()))
    return replace(files, table=table)


def _absolute(paths: Sequence[Path | str]) -> list[str]:
    """The names of items: paths with links to folders resolved; an image may itself be a link."""
    real = functools.cache(os.path.realpath)
    return [
        str(real(path) if os.path.isdir(path) else os.path.join(real(folder or "."), name))
        for path in paths
        for folder, name in [os.path.split(path)]
    ]
