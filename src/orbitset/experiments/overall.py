"""Progress of several trainings one after the other: how many there are and how long all will take."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from orbitset.training.progress import Progress, format_seconds


class Overall:
    """Passes on the progress of each training, and says before each what is left of the whole.

    `sizes` says how much work each training is, in any unit. What was skipped, because it had been done
    before, does not count as time taken.
    """

    def __init__(self, inner: Progress, sizes: Sequence[float]) -> None:
        self.inner, self.sizes = inner, sizes
        self._done = self._took_s = 0.0
        self._began_at = time.monotonic()
        self._is_trained = False
        self._prefix = ""

    def begin(self, index: int, label: str) -> None:
        self._began_at, self._is_trained = time.monotonic(), False
        self._prefix = f"{index + 1}/{len(self.sizes)} {label}"
        self._left = sum(self.sizes[index:])

    def end(self, index: int) -> None:
        if self._is_trained:
            self._took_s += time.monotonic() - self._began_at
            self._done += self.sizes[index]

    def start(self, label: str, total: int, done: int) -> None:
        self._is_trained = True
        left = ""
        if self._done:
            seconds = self._took_s / self._done * self._left
            left = f", about {format_seconds(seconds)} left for all"
        self.inner.note(f"{self._prefix}{left}")
        self.inner.start(self._prefix, total, done)

    def update(self, done: int, images: int, terms: Mapping[str, float]) -> None:
        self.inner.update(done, images, terms)

    def pause(self, message: str) -> AbstractContextManager[None]:
        return self.inner.pause(message)

    def note(self, message: str) -> None:
        self.inner.note(message)

    def stop(self) -> None:
        self.inner.stop()
