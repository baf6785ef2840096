"""Progress of several trainings: how many there are and how long all will take."""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from orbitset.training.progress import Progress, format_seconds


class Overall:
    """Passes on the progress of each training, and says what is left of the whole.

    `sizes` says how much work each training is, in any unit, `done` which of them were done before. A note
    (`note: …`) that differs from an earlier one in its numbers alone is not repeated.
    """

    def __init__(self, inner: Progress, sizes: Sequence[float], done: Collection[int] = ()) -> None:
        self.inner, self.sizes = inner, sizes
        self._complete = set(done)
        self._began_at = time.monotonic()
        self._size_done = 0.0
        self._label = ""
        self._noted: set[str] = set()

    def begin(self, index: int, label: str) -> None:
        """One of several that follow one another."""
        self._label = f"{index + 1}/{len(self.sizes)} {label}"

    def end(self, index: int, label: str) -> None:
        self._complete.add(index)
        self._size_done += self.sizes[index]
        size_left = sum(size for at, size in enumerate(self.sizes) if at not in self._complete)
        left = ""
        if size_left:
            seconds = (time.monotonic() - self._began_at) / self._size_done * size_left
            left = f", about {format_seconds(seconds)} left for all"
        self.inner.note(f"{len(self._complete)}/{len(self.sizes)} complete: {label}{left}")

    def start(self, label: str, total: int, done: int) -> None:
        self.inner.start(self._label, total, done)

    def update(self, done: int, images: int, terms: Mapping[str, float]) -> None:
        self.inner.update(done, images, terms)

    def shorten(self, total: int) -> None:
        self.inner.shorten(total)

    def pause(self, message: str) -> AbstractContextManager[None]:
        return self.inner.pause(message)

    def note(self, message: str) -> None:
        if "note: " in message:
            template = re.sub(r"[\d.,e-]+", "#", message)
            if template in self._noted:
                return
            self._noted.add(template)
        self.inner.note(message)

    def stop(self) -> None:
        self.inner.stop()
