"""From a table of images to uint8 images of one size, decoded once and cached with their problems under the
names, sizes and times of their files."""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np
import torch

from orbitset.datasets.cache import Key, cached_pixels
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.pictures import (
    Box,
    ImageForm,
    InMemory,
    box_fault,
    decoded,
    large_images,
    size_of,
    stamp,
)
from orbitset.datasets.segments import VideoConfig
from orbitset.datasets.table import ImageTable, OnProblem, Problem
from orbitset.errors import ConfigError, DataError

_VERSION = 3
"""Cache version; bump when decoding changes."""
_AT_ONCE = 256
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
        shape, problems = _write(table, size_px, is_colour, file, on_progress)
        return shape, [(problem.row, problem.reason) for problem in problems]

    pixels, reasons = cached_pixels(key, write)
    rest = table.without([Problem(row, reason) for row, reason in reasons], on_problem)
    return ObservedImages.of(torch.from_numpy(pixels), rest.columns), rest


def image_problems(table: ImageTable) -> tuple[list[Problem], list[tuple[int, int]]]:
    """Decode all images without keeping any: what is wrong with some, and the sizes of the others."""
    problems, sizes = [], []
    boxes = table.boxes or [None] * len(table)
    with large_images(), ThreadPoolExecutor(os.cpu_count()) as threads:
        files = table.files
        for start in range(0, len(files), _AT_ONCE):
            chunk = files[start : start + _AT_ONCE]
            for at, image in enumerate(threads.map(decoded, chunk), start):
                fault = image if isinstance(image, str) else box_fault(boxes[at], image.size)
                if fault is not None:
                    problems.append(Problem(table.rows[at], f"{table.paths[at]} {fault}"))
                    continue
                assert not isinstance(image, str)
                sizes.append(image.size)
    return problems, sizes


def first_size(table: ImageTable) -> tuple[int, int]:
    """Width and height of the first image that can be read."""
    for at in range(len(table)):
        size = size_of(table.file(at))
        if size is not None:
            return size
    raise DataError(f"no image of {table.source} can be read")


def fitting_size(table: ImageTable) -> int:
    """A multiple of what the encoder's poolings divide by, near the first readable image's size."""
    near = round(max(first_size(table)) / _MULTIPLE_PX) * _MULTIPLE_PX
    return max(_MULTIPLE_PX, min(_LARGEST_PX, near))


def is_coloured(table: ImageTable) -> bool:
    """Whether any of the first images that can be read has a colour that is no grey."""
    num_images = 0
    with large_images():
        for at in range(len(table)):
            image = decoded(table.file(at), _LOOKED_AT_PX)
            if isinstance(image, str):
                continue
            pixels = ImageForm(_LOOKED_AT_PX, is_colour=True).fit(image).astype(np.int16)
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
    return size_px, is_colour, *files


def _write(
    table: ImageTable,
    size_px: int | None,
    is_colour: bool,
    file: BinaryIO,
    on_progress: Progress | None,
) -> tuple[tuple[int, ...], list[Problem]]:
    """Append one image after the other; gives the shape of all and what could not be read."""
    form = ImageForm(size_px, is_colour)
    with large_images(), ThreadPoolExecutor(os.cpu_count()) as threads:
        files = table.files
        if size_px is None:
            sizes = Counter(size for size in threads.map(size_of, files) if size is not None)
            form = dataclasses.replace(form, expected=sizes.most_common(1)[0][0] if sizes else None)
        boxes: Sequence[Box | None] = table.boxes or [None] * len(table)
        problems, shape = [], (0, 0, 0)
        for start in range(0, len(table), _AT_ONCE):
            chunk = slice(start, start + _AT_ONCE)
            for at, pixels in enumerate(threads.map(form.read, files[chunk], boxes[chunk]), start):
                if isinstance(pixels, str):
                    problems.append(Problem(table.rows[at], f"{table.paths[at]} {pixels}"))
                else:
                    shape = pixels.shape
                    file.write(pixels.tobytes())
            if on_progress is not None:
                on_progress(min(start + _AT_ONCE, len(table)), len(table))
    return (len(table) - len(problems), *shape), problems
