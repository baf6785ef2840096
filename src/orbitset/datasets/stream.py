"""Image files read ahead by threads and given in batches, so that neither reading nor what is done with them
waits, and memory does not grow with their number.

Shapes: N images of a batch, C x S x S each.
"""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from orbitset.datasets.pictures import ImageForm, large_images
from orbitset.datasets.table import ImageTable, Problem

_CHUNK = 8
"""Images one thread reads at a time"""
Read = list[np.ndarray | str]


class ImageStream:
    """Batches of the images of a table that can be read; `problems` names the others."""

    def __init__(
        self, table: ImageTable, form: ImageForm, *, batch: int = 64, threads: int | None = None
    ) -> None:
        self.table, self.form = table, form
        self.problems: list[Problem] = []
        self._batch = batch
        self._threads = threads or os.cpu_count() or 1

    def __iter__(self) -> Iterator[tuple[list[int], np.ndarray]]:
        """Places in the table, and the images there as uint8 (N, C, S, S)."""
        self.problems.clear()
        places: list[int] = []
        images: list[np.ndarray] = []
        for at, image in enumerate(self._read_ahead()):
            if isinstance(image, str):
                path = self.table.paths[at]
                self.problems.append(Problem(self.table.rows[at], f"{path} {image}"))
                continue
            places.append(at)
            images.append(image)
            if len(images) == self._batch:
                yield places, np.stack(images)
                places, images = [], []
        if images:
            yield places, np.stack(images)

    def _read_ahead(self) -> Iterator[np.ndarray | str]:
        """In the order of the table, so much ahead that all threads are busy for two batches."""
        starts = iter(range(0, len(self.table), _CHUNK))
        ahead = 2 * self._threads + 2 * self._batch // _CHUNK
        with ThreadPoolExecutor(self._threads) as threads:
            waiting: deque[Future[Read]] = deque()
            try:
                for start in starts:
                    waiting.append(threads.submit(self._read, start))
                    if len(waiting) > ahead:
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _read(self, start: int) -> Read:
        table = self.table
        places = range(start, min(start + _CHUNK, len(table)))
        boxes = table.boxes or [None] * len(table)
        with large_images():  # not around the whole stream, which may be suspended
            return [self.form.read(table.file(at), boxes[at]) for at in places]
