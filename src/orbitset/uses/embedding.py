"""Codes and rectified images of many images: what cannot be read is named, and the rest goes on.

Images are whatever `train` takes: files, folders, manifests, shards, videos, arrays, functions.

Shapes: N images, D code entries.
"""

import csv
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from orbitset.datasets.named_images import find_images
from orbitset.datasets.pictures import InMemory
from orbitset.datasets.shards import is_tar
from orbitset.datasets.source import MANIFESTS
from orbitset.datasets.stream import ImageStream
from orbitset.datasets.table import ImageTable, Problem
from orbitset.errors import ConfigError, DataError, RunError
from orbitset.files import remove_parts, write_atomically
from orbitset.models import Assessment, Model
from orbitset.models.codes import GROUP_ROWS, files_of, open_codes, why_refused
from orbitset.models.known import UNLIKE
from orbitset.precision import Precision

Progress = Callable[[int, int], None]
"""Called with the number of images that are done, and of all."""
T = TypeVar("T")
CONFIDENCE = "confidence.csv"
_BATCH = 32
_MOST_NAMED = 8
_ALIKE = 2
"""Levels of 255 by which pictures differ that look the same"""


@dataclass(frozen=True)
class Embedded:
    """Codes of images, and the images that could not be read."""

    table: ImageTable
    codes: np.ndarray
    problems: tuple[Problem, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return self.table.paths


@dataclass
class Summary:
    """How many images were processed, and which were not."""

    done: int = 0
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()
    """Files in folders that are no images"""
    unlike: int | None = None
    """How many of the rectified images are unlike anything trained on; None where that is not known"""
    left_out: int = 0
    """How many were not written since their confidence is too low"""
    are_alike: bool = False
    """Whether several images were rectified, and all to one picture"""

    def check(self) -> "Summary":
        """An error if no image could be processed."""
        if not self.done:
            raise _nothing_read(self.problems)
        return self


def embed(
    model: Model,
    images: Sequence[Path | str],
    *,
    precision: Precision = "float32",
    on_progress: Progress | None = None,
) -> Embedded:
    """Embed images; the codes stay in memory."""
    table = find_images(images, model.form).table
    return embed_table(model, table, precision=precision, on_progress=on_progress)


def embed_table(
    model: Model,
    table: ImageTable,
    *,
    precision: Precision = "float32",
    on_progress: Progress | None = None,
) -> Embedded:
    """Embed the images of a table; the codes stay in memory."""
    problems: list[Problem] = []
    batches = list(
        embedded_batches(
            model, table, problems, batch=len(table), precision=precision, on_progress=on_progress
        )
    )
    if not batches:
        raise _nothing_read(problems)
    ((places, codes),) = batches
    return Embedded(table.at(places), codes, tuple(problems))


def embed_to_file(
    model: Model,
    images: Sequence[Path | str],
    out: Path,
    *,
    overwrite: bool = False,
    precision: Precision = "float32",
    on_progress: Progress | None = None,
) -> Summary:
    """Embed images into a .parquet or .npy file, in memory that does not grow with their number.

    Parquet files have the factors of the images, too.
    """
    for path in files_of(out):
        if path.is_dir():
            raise RunError(f"{path} is a folder; choose another name", is_usage=True)
        if path.exists() and not overwrite:
            hint = "add --overwrite, or choose another name"
            raise RunError(f"{path} exists already", hint=hint, is_usage=True)
    files = find_images(images, model.form)
    refused = [
        Problem(row, f"{path} {reason}")
        for row, path in zip(files.table.rows, files.table.paths, strict=True)
        if (reason := why_refused(out, path))
    ]
    table = files.table.without(refused, "skip")
    done, problems = 0, list[Problem]()
    with open_codes(out, model.code_size, list(table.columns)) as write:
        for places, codes in embedded_batches(
            model, table, problems, batch=GROUP_ROWS, precision=precision, on_progress=on_progress
        ):
            part = table.at(places)
            write(part.paths, codes, part.columns)
            done += len(places)
        return Summary(done, tuple(problems), files.ignored).check()


def rectify_to_folder(
    model: Model,
    images: Sequence[Path | str],
    out: Path,
    *,
    overwrite: bool = False,
    min_confidence: float = 0.0,
    on_progress: Progress | None = None,
) -> Summary:
    """Write each image in its canonical pose, as a PNG with the name of the image.

    `confidence.csv` beside them says how much each image is like what the model was trained on. Images below
    `min_confidence` are in that list alone.
    """
    if not 0 <= min_confidence <= 1:
        raise ConfigError(
            f"the minimum confidence is {min_confidence:g}; give a number from 0 to 1"
        )
    if min_confidence:
        model.check_known()
    files = find_images(images, model.form)
    table = files.table
    targets = _targets(table, images, out)
    _check_apart(table, targets)
    lists = [] if model.known is None else [out / CONFIDENCE]
    existing = [path for path in [*targets, *lists] if path.exists()]
    if existing and not overwrite:
        more = f", and {len(existing) - 1:,} more" if len(existing) > 1 else ""
        raise RunError(
            f"{existing[0]} exists already{more}",
            hint="add --overwrite, or choose another folder",
            is_usage=True,
        )

    def rectify(pixels: np.ndarray) -> tuple[np.ndarray, Assessment | None]:
        return model.rectify_and_assess(model.place(torch.from_numpy(pixels)))

    for folder, inside in groupby(sorted(targets), key=lambda path: path.parent):
        remove_parts(folder, {path.name for path in inside})
    problems, rows = list[Problem](), list[tuple[Any, ...]]()
    done = written = 0
    extremes: list[np.ndarray] = []
    for places, (pixels, assessment) in _processed(
        table, model, rectify, problems, on_progress, cores=1
    ):
        extremes = [bound([*extremes, *pixels], axis=0) for bound in (np.min, np.max)]
        confidence = np.ones(len(places))
        if assessment is not None:
            confidence = assessment.confidence
            names = [table.paths[at] for at in places]
            rows += zip(names, *vars(assessment).values(), strict=True)
        for at, upright, value in zip(places, pixels, confidence, strict=True):
            if value >= min_confidence:
                image = Image.fromarray(upright)
                write_atomically(targets[at], partial(image.save, format="PNG"))
                written += 1
            else:
                targets[at].unlink(missing_ok=True)
        done += len(places)
    unlike = None if model.known is None else sum(bool(row[1] < UNLIKE) for row in rows)
    Summary(done, tuple(problems)).check()
    if rows:
        _write_confidence(lists[0], rows)
    are_alike = done > 1 and int(np.subtract(*extremes[::-1], dtype=int).max()) <= _ALIKE
    return Summary(written, tuple(problems), files.ignored, unlike, done - written, are_alike)


def _write_confidence(path: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", *(field.name for field in fields(Assessment))])
    writer.writerows([name, *(f"{value:.6g}" for value in values)] for name, *values in rows)
    write_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


def embedded_batches(
    model: Model,
    table: ImageTable,
    problems: list[Problem],
    *,
    batch: int,
    precision: Precision = "float32",
    on_progress: Progress | None = None,
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Places in the table and codes in batches; images that cannot be read are added to `problems`."""

    def encode(pixels: np.ndarray) -> np.ndarray:
        inputs = model.place(torch.from_numpy(pixels).to(model.device))
        codes: np.ndarray = model.encode(inputs, precision=precision).cpu().numpy()
        return codes

    cores = torch.get_num_threads() if model.device.type == "cpu" else 1
    gathered: list[int] = []
    parts: list[np.ndarray] = []
    for places, codes in _processed(table, model, encode, problems, on_progress, cores=cores):
        is_finite = np.isfinite(codes).all(1)
        if not is_finite.all():
            path = table.paths[places[int(is_finite.argmin())]]
            raise DataError(
                f"the code of {path} has entries that are no numbers",
                hint="the weights of the model are too large, or damaged; train it again",
            )
        gathered += places
        parts.append(codes)
        if len(gathered) >= batch:
            yield gathered, np.concatenate(parts)
            gathered, parts = [], []
    if gathered:
        yield gathered, np.concatenate(parts)


def _processed(
    table: ImageTable,
    model: Model,
    process: Callable[[np.ndarray], T],
    problems: list[Problem],
    on_progress: Progress | None,
    *,
    cores: int,
) -> Iterator[tuple[list[int], T]]:
    """Places of images in the table and what becomes of these images, batch by batch."""
    stream, done = ImageStream(table, model.form, batch=_BATCH), 0
    report = on_progress or (lambda done, total: None)
    report(0, len(table))
    for places, result in _side_by_side(process, stream, cores):
        yield places, result
        done += len(places)
        report(done + len(stream.problems), len(table))
    problems += [*table.left_out, *stream.problems]


def _side_by_side(
    process: Callable[[np.ndarray], T], stream: ImageStream, cores: int
) -> Iterator[tuple[list[int], T]]:
    """The results of all batches in order. Each core has a batch of its own: cores that share one wait for
    each other after every layer."""
    if cores == 1:
        yield from ((places, process(pixels)) for places, pixels in stream)
        return
    waiting: deque[tuple[list[int], Future[T]]] = deque()
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            for places, pixels in stream:
                waiting.append((places, threads.submit(process, pixels)))
                if len(waiting) > cores:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
    finally:
        for _, future in waiting:
            future.cancel()
        torch.set_num_threads(cores)


def _targets(table: ImageTable, sources: Sequence[Path | str], out: Path) -> list[Path]:
    """Where each image is written: in the sub-folders that it has below its source. A name that comes twice
    gets a number; `clip.mp4#12` is written to `clip-12.png`."""
    roots = [path for path in map(Path, sources) if path.is_dir() or is_tar(path.name)]
    roots += [path.parent for path in map(Path, sources) if path.suffix.lower() in MANIFESTS]
    names = []
    for at, path in enumerate(map(Path, table.paths)):
        inside = next((path.relative_to(root) for root in roots if path.is_relative_to(root)), None)
        name = out / (inside or Path(path.name))
        if isinstance(table.file(at), InMemory):
            stem, _, number = name.name.rpartition("#")
            name = name.with_name(f"{Path(stem).stem}-{number}.png")
        names.append(name.with_suffix(".png"))
    counts, taken = dict.fromkeys(names, 1), set(names)
    targets: dict[Path, None] = {}
    for name in names:
        target = name
        while target in targets or (target != name and target in taken):
            counts[name] += 1
            target = name.with_stem(f"{name.stem}-{counts[name]}")
        targets[target] = None
    return list(targets)


def _check_apart(table: ImageTable, targets: Sequence[Path]) -> None:
    """Refuse to write over an image that is read, even with `overwrite`."""
    sources = {os.path.realpath(path) for path in table.paths}
    for target in targets:
        if os.path.realpath(target) in sources:
            raise RunError(
                f"{target} is one of the images to rectify; choose another folder", is_usage=True
            )


def _nothing_read(problems: Sequence[Problem]) -> DataError:
    """The error that no image could be read, with the first few reasons."""
    reasons = "; ".join(problem.reason for problem in problems[:_MOST_NAMED])
    more = len(problems) - _MOST_NAMED
    return DataError(
        f"no image could be read: {reasons}" + (f"; and {more:,} more" if more > 0 else "")
    )
