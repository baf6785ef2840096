"""From a table of images to uint8 images of one size, decoded once and cached with their problems under the
names, sizes and times of their files."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
import torch

from orbitset.datasets import pictures
from orbitset.datasets.cache import Key, cached_pixels
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.pictures import ImageForm, InMemory, stamp
from orbitset.datasets.segments import VideoConfig
from orbitset.datasets.stream import read_ahead
from orbitset.datasets.table import ImageTable, OnProblem, Problem
from orbitset.errors import ConfigError, DataError
from orbitset.limits import PIXELS

_VERSION = 3
"""Cache version; bump when decoding changes."""
_REPORTED_EVERY = 256
_LOOKED_AT, _LOOKED_AT_PX, _GREY_TOLERANCE = 8, 32, 16
_LARGEST_PX, _MULTIPLE_PX = 128, 16
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """How the images or videos of a source become pixels."""

    size_px: int | None = None
    """Images are fitted into a square of that size; None leaves them as they are, all of one size"""
    is_colour: bool | None = False
    """None leaves it to plain images whether they have colours"""
    crops: str | None = None
    """A CSV of boxes or a folder of landmarks: the part of each image to use"""
    on_problem: OnProblem = "stop"
    video: VideoConfig = VideoConfig()
    is_cached: bool = True
    """Private images must not be written to the cache"""
    device: str = "cpu"
    """Where heads are rendered"""


def load_images(
    table: ImageTable,
    *,
    size_px: int | None = None,
    is_colour: bool = False,
    on_problem: OnProblem = "stop",
    is_cached: bool = True,
    on_progress: Progress | None = None,
) -> tuple[ObservedImages, ImageTable]:
    """The images, and the table without the rows that were left out.

    Each is turned as its EXIF data says, cut to its box, made grey or colour and, if `size_px` is given,
    fitted whole into a square of that size, black where it is not square itself. Without it all must have
    one size. Without `is_cached` nothing is written.
    """
    if size_px is not None and size_px < 2:
        raise ConfigError(f"size_px is {size_px}; give at least 2")
    if size_px is None and table.boxes is not None:
        raise ConfigError(f"{table.source} has boxes; give size_px, the size they are brought to")
    if len(table) == 0:
        raise DataError(f"{table.source} names no images")
    key = None
    if is_cached and not any(isinstance(file, InMemory) for file in table.files):
        key = Key("images", _VERSION, table.source, _inputs(table, size_px, is_colour))

    def write(file: BinaryIO) -> tuple[tuple[int, ...], list[tuple[int, str]]]:
        return _write(table, ImageForm(size_px, is_colour), file, on_progress)

    pixels, reasons = cached_pixels(key, write)
    rest = table.without([Problem(row, reason) for row, reason in reasons], on_problem)
    return ObservedImages.of(torch.from_numpy(pixels), rest.columns), rest


def image_problems(table: ImageTable) -> tuple[list[Problem], list[tuple[int, int]]]:
    """Decode all images without keeping any: what is wrong with some, and the sizes of the others."""

    def look(file: pictures.ImageFile, box: pictures.Box | None) -> tuple[int, int] | str:
        image = pictures.decoded(file)
        return (
            image if isinstance(image, str) else pictures.box_fault(box, image.size) or image.size
        )

    problems, sizes = [], []
    for at, size in enumerate(read_ahead(table, look)):
        if isinstance(size, str):
            problems.append(table.problem(at, size))
        else:
            sizes.append(size)
    return problems, sizes


def fitting_size(table: ImageTable) -> int:
    """A multiple of what the encoder's poolings divide by, near the first readable image's size."""
    size = next(filter(None, map(pictures.size_of, table.files)), None)
    if size is None:
        raise DataError(f"no image of {table.source} can be read")
    near = round(max(size) / _MULTIPLE_PX) * _MULTIPLE_PX
    return max(_MULTIPLE_PX, min(_LARGEST_PX, near))


def is_coloured(table: ImageTable) -> bool:
    """Whether any of the first images that can be read has a colour that is no grey."""
    form, num_images = ImageForm(_LOOKED_AT_PX, is_colour=True), 0
    with pictures.large_images():
        for file in table.files:
            image = pictures.decoded(file, _LOOKED_AT_PX)
            if not isinstance(image, str):
                pixels = form.fit(image).astype(np.int16)
                if np.abs(pixels - pixels[:1]).max() > _GREY_TOLERANCE:
                    return True
                num_images += 1
                if num_images == _LOOKED_AT:
                    break
    return False


def _inputs(table: ImageTable, size_px: int | None, is_colour: bool) -> tuple[Any, ...]:
    """All that the pixels of a table depend on."""
    root = table.root.absolute()
    boxes = table.boxes or [None] * len(table)
    files = (
        (str(root / path), row, stamp(file), box)
        for path, row, file, box in zip(table.paths, table.rows, table.files, boxes, strict=True)
        if not isinstance(file, InMemory)
    )
    return size_px, is_colour, PIXELS.value, *files


def _write(
    table: ImageTable, form: ImageForm, file: BinaryIO, on_progress: Progress | None
) -> tuple[tuple[int, ...], list[tuple[int, str]]]:
    """Append one image after the other; gives the shape of all, and which rows cannot be read and why."""
    if form.size_px is None:
        sizes = Counter(
            size for size in read_ahead(table, lambda file, _: pictures.size_of(file)) if size
        )
        form = dataclasses.replace(form, expected=sizes.most_common(1)[0][0] if sizes else None)
    problems, shape = [], (0, 0, 0)
    for at, pixels in enumerate(read_ahead(table, form.read)):
        if isinstance(pixels, str):
            problem = table.problem(at, pixels)
            problems.append((problem.row, problem.reason))
        else:
            shape = pixels.shape
            file.write(pixels.tobytes())
        if on_progress is not None and ((at + 1) % _REPORTED_EVERY == 0 or at + 1 == len(table)):
            on_progress(at + 1, len(table))
    return (len(table) - len(problems), *shape), problems
