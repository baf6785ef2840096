"""The part of each image that is used: from a file of boxes, or from landmarks as Multi-PIE has them."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from orbitset.datasets.manifest import read_manifest
from orbitset.datasets.pictures import Box
from orbitset.datasets.table import ImageTable, OnProblem, Problem
from orbitset.errors import ConfigError, DataError

_LANDMARKS = "_lm.mat"
_LANDMARK_MARGIN = 0.35
"""Added on each side of the landmarks, in their larger extent: they end at brows and chin."""


def crop(table: ImageTable, crops: Path, on_problem: OnProblem = "stop") -> ImageTable:
    """By a CSV of boxes, or by a folder of landmarks."""
    if table.inside is not None:
        raise ConfigError(
            f"crops are for image files, and {table.source} has none; crop its images before"
        )
    by = crop_by_landmarks if crops.is_dir() else crop_by_boxes
    return by(table, crops, on_problem)


def crop_by_boxes(table: ImageTable, boxes: Path, on_problem: OnProblem = "stop") -> ImageTable:
    """Boxes from a manifest with the columns path, left, top, right and bottom."""
    manifest = read_manifest(boxes, root=table.root, on_problem=on_problem)
    if manifest.boxes is None:
        raise DataError(f"{boxes} has no boxes; it needs the columns left, top, right and bottom")
    by_path = dict(zip(manifest.paths, manifest.boxes, strict=True))
    why = {problem.path: f"{boxes}, {problem}" for problem in manifest.left_out}
    return _boxed(table, [by_path.get(path) for path in table.paths], str(boxes), why, on_problem)


def crop_by_landmarks(
    table: ImageTable, folder: Path, on_problem: OnProblem = "stop"
) -> ImageTable:
    """Boxes round the points in files such as 001_01_01_051_07_lm.mat, each an array `pts` of x and y.

    One made in any light serves the images of that camera in all of them, which are taken within a second.
    """
    landmarks = {
        path.name.removesuffix(_LANDMARKS): path
        for path in sorted(folder.rglob(f"*{_LANDMARKS}"), reverse=True)
    }
    if not landmarks:
        raise DataError(f"{folder} holds no landmarks; files are named as …051_07{_LANDMARKS}")
    in_any_light = {_without_light(name): path for name, path in landmarks.items()}
    names = [Path(path).stem for path in table.paths]
    files = [landmarks.get(name) or in_any_light.get(_without_light(name)) for name in names]
    box_of = {path: _around(path) for path in {path for path in files if path is not None}}
    boxes = [None if path is None else box_of[path] for path in files]
    return _boxed(table, boxes, str(folder), {}, on_problem)


def _boxed(
    table: ImageTable,
    boxes: Sequence[Box | None],
    source: str,
    why: Mapping[str, str],
    on_problem: OnProblem,
) -> ImageTable:
    """The table with its boxes; of images without one, `why` says by path what is known beside the source."""
    problems = [
        Problem(
            table.rows[at], f"{table.paths[at]} has no box in {why.get(table.paths[at], source)}"
        )
        for at, box in enumerate(boxes)
        if box is None
    ]
    return replace(table, boxes=tuple(boxes)).without(problems, on_problem)


def _around(path: Path) -> Box | None:
    """A square round the points in a file, if they can be read."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        points = np.asarray(loadmat(path)["pts"], dtype=float)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, MatReadError, zlib.error):
        return None
    if points.ndim != 2 or points.shape[1] != 2 or not len(points) or not np.isfinite(points).all():
        return None
    low, high = points.min(0), points.max(0)
    half = float((high - low).max()) * (0.5 + _LANDMARK_MARGIN)
    x, y = map(float, (low + high) / 2)
    return (x - half, y - half, x + half, y + half) if half > 0 else None


def _without_light(name: str) -> str:
    return name.rpartition("_")[0]
