"""Image files read ahead by threads and given in batches, so that neither reading nor what is done with them
waits, and memory does not grow with their number.

Shapes: N images of a batch, C x S x S each.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from orbitset.datasets.pictures import Box, ImageFile, ImageForm, large_images
from orbitset.datasets.table import ImageTable, Problem

T = TypeVar("T")
_CHUNK = 8
"""Images one thread reads at a time"""
_AHEAD = 64


class ImageStream:
    """Batches of the images of a table that can be read; `problems` names the others."""

    def __init__(
        self, table: ImageTable, form: ImageForm, *, batch: int = 64, threads: int | None = None
    ) -> None:
        self.table, self.form = table, form
        self.problems: list[Problem] = []
        self._batch = batch
        self._threads = threads

    def __iter__(self) -> Iterator[tuple[list[int], np.ndarray]]:
        """Places in the table, and the images there as uint8 (N, C, S, S)."""
        self.problems.clear()
        places: list[int] = []
        images: list[np.ndarray] = []
        ahead = read_ahead(self.table, self.form.read, threads=self._threads, ahead=2 * self._batch)
        for at, image in enumerate(ahead):
            if isinstance(image, str):
                self.problems.append(self.table.problem(at, image))
                continue
            places.append(at)
            images.append(image)
            if len(images) == self._batch:
                yield places, np.stack(images)
                places, images = [], []
        if images:
            yield places, np.stack(images)


def read_ahead(
    table: ImageTable,
    read: Callable[[ImageFile, Box | None], T],
    *,
    threads: int | None = None,
    ahead: int = _AHEAD,
) -> Iterator[T]:
    """What `read` gives for each image and its box, in the order of the table.

    Threads read so much ahead that all of them are busy, and `ahead` images more.
    """
    files, boxes = table.files, table.boxes or [None] * len(table)

    def read_chunk(start: int) -> list[T]:
        chunk = slice(start, start + _CHUNK)
        with large_images():  # not around the whole stream, which may be suspended
            return list(map(read, files[chunk], boxes[chunk]))

    num_threads = threads or os.cpu_count() or 1
    most_waiting = 2 * num_threads + ahead // _CHUNK
    with ThreadPoolExecutor(num_threads) as pool:
        waiting: deque[Future[list[T]]] = deque()
        try:
            for start in range(0, len(table), _CHUNK):
                waiting.append(pool.submit(read_chunk, start))
                if len(waiting) > most_waiting:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
