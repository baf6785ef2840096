"""Codes and rectified images of many files: what cannot be read is named, and the rest goes on.

Shapes: N images, D code entries.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from orbitset.datasets.folder import find_images
from orbitset.datasets.shards import is_tar
from orbitset.datasets.stream import ImageStream
from orbitset.datasets.table import ImageTable, Problem
from orbitset.errors import DataError, RunError
from orbitset.models import Model
from orbitset.models.codes import codes_format, open_codes, paths_beside
from orbitset.precision import Precision

Progress = Callable[[int, int], None]
"""It is told how many images are done, and of how many."""
_BATCH = 32
_MOST_NAMED = 8


@dataclass(frozen=True)
class Embedded:
    """Codes of images, and the images that could not be read."""

    paths: tuple[str, ...]
    codes_ND: np.ndarray
    problems: tuple[Problem, ...] = ()


@dataclass
class Summary:
    """How many images were processed, and which were not."""

    done: int = 0
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = field(default=())
    """Files in folders that are no images"""

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
    """Embed image files, and all images in folders; the codes stay in memory."""
    table = find_images(images).table
    return embed_table(model, table, precision=precision, on_progress=on_progress)


def embed_table(
    model: Model,
    table: ImageTable,
    *,
    precision: Precision = "float32",
    on_progress: Progress | None = None,
) -> Embedded:
    """Embed the images of a table; the codes stay in memory."""
    stream = ImageStream(table, model.wanted, batch=_BATCH)
    paths: list[str] = []
    codes: list[np.ndarray] = []
    for places, batch in _encoded(model, stream, precision, on_progress):
        paths += [table.paths[at] for at in places]
        codes.append(batch)
    if not codes:
        raise _nothing_read(stream.problems)
    problems = (*table.left_out, *stream.problems)
    return Embedded(tuple(paths), np.concatenate(codes), problems)


def embed_to_file(
    model: Model,
    images: Sequence[Path | str],
    out: Path,
    *,
    overwrite: bool = False,
    precision: Precision = "float32",
    on_progress: Progress | None = None,
) -> Summary:
    """Embed images into a .parquet or .npy file, in memory that does not grow with their number."""
    why_refused = codes_format(out).why_refused
    written = [out, paths_beside(out)] if out.suffix.lower() == ".npy" else [out]
    for path in written:
        if path.is_dir():
            raise RunError(f"{path} is a folder; choose another name", is_usage=True)
        if path.exists() and not overwrite:
            hint = "add --overwrite, or choose another name"
            raise RunError(f"{path} exists already", hint=hint, is_usage=True)
    files = find_images(images)
    refused = [
        Problem(row, f"{path} {reason}")
        for row, path in zip(files.table.rows, files.table.paths, strict=True)
        if (reason := why_refused(path))
    ]
    table = files.table.without(refused, "skip")
    stream = ImageStream(table, model.wanted, batch=_BATCH)
    summary = Summary(ignored=files.ignored)
    with open_codes(out, model.code_size) as file:
        for places, codes in _encoded(model, stream, precision, on_progress):
            file.write([table.paths[at] for at in places], codes)
            summary.done += len(places)
        summary.problems = (*table.left_out, *stream.problems)
        summary.check()
    return summary


def rectify_to_folder(
    model: Model,
    images: Sequence[Path | str],
    out: Path,
    *,
    overwrite: bool = False,
    on_progress: Progress | None = None,
) -> Summary:
    """Write each image in its canonical pose, as a PNG with the name of the image."""
    files = find_images(images)
    table = files.table
    targets = _targets(table, images, out)
    _check_apart(table, targets)
    existing = [path for path in targets if path.exists()]
    if existing and not overwrite:
        more = f", and {len(existing) - 1:,} more" if len(existing) > 1 else ""
        raise RunError(
            f"{existing[0]} exists already{more}",
            hint="add --overwrite, or choose another folder",
            is_usage=True,
        )
    stream = ImageStream(table, model.wanted, batch=_BATCH)
    summary = Summary(ignored=files.ignored)
    if on_progress is not None:
        on_progress(0, len(table))
    for places, pixels in stream:
        for at, upright in zip(places, model.rectify_prepared(pixels), strict=True):
            targets[at].parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(upright).save(targets[at])
        summary.done += len(places)
        if on_progress is not None:
            on_progress(summary.done + len(stream.problems), len(table))
    summary.problems = (*table.left_out, *stream.problems)
    return summary.check()


def embedded_batches(
    model: Model,
    table: ImageTable,
    problems: list[Problem],
    *,
    batch: int,
    precision: Precision = "float32",
    on_progress: Progress | None = None,
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Paths and codes in batches; images that cannot be read are added to `problems`."""
    stream = ImageStream(table, model.wanted, batch=_BATCH)
    paths: list[str] = []
    codes: list[np.ndarray] = []
    for places, batch_codes in _encoded(model, stream, precision, on_progress):
        paths += [table.paths[at] for at in places]
        codes.append(batch_codes)
        if len(paths) >= batch:
            yield paths, np.concatenate(codes)
            paths, codes = [], []
    if paths:
        yield paths, np.concatenate(codes)
    problems += [*table.left_out, *stream.problems]


def _encoded(
    model: Model, stream: ImageStream, precision: Precision, on_progress: Progress | None
) -> Iterator[tuple[list[int], np.ndarray]]:
    done = 0
    if on_progress is not None:
        on_progress(0, len(stream.table))

    def encode(pixels: np.ndarray) -> np.ndarray:
        inputs = model.place(torch.from_numpy(pixels).to(model.device))
        codes: np.ndarray = model.encode(inputs, precision=precision).cpu().numpy()
        return codes

    for places, codes in _side_by_side(encode, stream, is_cpu=model.device.type == "cpu"):
        yield places, codes
        done += len(places)
        if on_progress is not None:
            on_progress(done + len(stream.problems), len(stream.table))


def _side_by_side(
    encode: Callable[[np.ndarray], np.ndarray], stream: ImageStream, *, is_cpu: bool
) -> Iterator[tuple[list[int], np.ndarray]]:
    """The codes of every batch in order. On a CPU each core encodes a batch of its own: cores that share one
    wait for each other after every layer."""
    if not is_cpu or torch.get_num_threads() == 1:
        yield from ((places, encode(pixels)) for places, pixels in stream)
        return
    cores = torch.get_num_threads()
    waiting: deque[tuple[list[int], Future[np.ndarray]]] = deque()
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            for places, pixels in stream:
                waiting.append((places, threads.submit(encode, pixels)))
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
    gets a number."""
    roots = [path for path in map(Path, sources) if path.is_dir() or is_tar(path.name)]
    names = []
    for path in map(Path, table.paths):
        inside = next((path.relative_to(root) for root in roots if path.is_relative_to(root)), None)
        names.append(out / (inside or Path(path.name)).with_suffix(".png"))
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
