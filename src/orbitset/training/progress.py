"""Progress on stderr: a bar on a terminal, a line every few seconds elsewhere, or nothing."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

_LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Who is told how far a training is."""

    def start(self, label: str, total: int, done: int) -> None: ...
    def update(self, done: int, images: int, terms: Mapping[str, float]) -> None: ...
    def shorten(self, total: int) -> None: ...
    def pause(self, message: str) -> AbstractContextManager[None]: ...
    def note(self, message: str) -> None: ...
    def stop(self) -> None: ...


class _Clock:
    """A stopwatch that can be paused."""

    def __init__(self) -> None:
        self._running_s, self._since = 0.0, time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._running_s = self.elapsed_s
        try:
            yield
        finally:
            self._since = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return self._running_s + time.monotonic() - self._since


class Silent:
    """No progress."""

    def start(self, label: str, total: int, done: int) -> None: ...
    def update(self, done: int, images: int, terms: Mapping[str, float]) -> None: ...
    def shorten(self, total: int) -> None: ...
    def pause(self, message: str) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Lines:
    """A plain line every ten seconds, for logs."""

    def start(self, label: str, total: int, done: int) -> None:
        self._label, self._total, self._first = label, total, done
        self._clock, self._printed_at = _Clock(), time.monotonic()

    def update(self, done: int, images: int, terms: Mapping[str, float]) -> None:
        if time.monotonic() - self._printed_at < _LINE_EVERY_S and done < self._total:
            return
        self._printed_at = time.monotonic()
        elapsed_s = max(1e-9, self._clock.elapsed_s)
        left_s = (self._total - done) * elapsed_s / max(1, done - self._first)
        self.note(
            f"{self._label}  {done}/{self._total}  {format_terms(terms)}  "
            f"{images / elapsed_s:,.0f} images/s  {format_seconds(left_s)} left"
        )

    def shorten(self, total: int) -> None:
        self._total = total

    @contextmanager
    def pause(self, message: str) -> Iterator[None]:
        self.note(message)
        with self._clock.paused():
            yield

    def note(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def stop(self) -> None: ...


class Bar:
    """A bar with loss terms, images/s and time left, or fewer of them on a narrow terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)

    def start(self, label: str, total: int, done: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        wide = self._console.width >= 90
        speed = [TextColumn("{task.fields[speed]}")] if self._console.width >= 60 else []
        terms = [TextColumn("{task.fields[terms]}", style="dim")] if wide else []
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None if wide else 12),
            TextColumn("{task.percentage:>3.0f}%"),
            *terms,
            *speed,
            TimeRemainingColumn(),
            console=self._console,
            expand=wide,
        )
        self._label = label
        self._task = self._progress.add_task(label, total=total, completed=done, terms="", speed="")
        self._clock = _Clock()
        self._progress.start()

    def update(self, done: int, images: int, terms: Mapping[str, float]) -> None:
        speed = images / max(1e-9, self._clock.elapsed_s)
        self._progress.update(
            self._task, completed=done, terms=format_terms(terms), speed=f"{speed:,.0f} images/s"
        )

    def shorten(self, total: int) -> None:
        self._progress.update(self._task, total=total)

    @contextmanager
    def pause(self, message: str) -> Iterator[None]:
        self._progress.update(self._task, description=message)
        with self._clock.paused():
            yield
        self._progress.update(self._task, description=self._label)

    def note(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False)

    def stop(self) -> None:
        self._progress.stop()


def default_progress(*, quiet: bool = False) -> Progress:
    """A bar on a terminal, lines where the output goes to a file."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()


def format_terms(terms: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.3g}" for name, value in terms.items())


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(3725)
    '1:02:05'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def duration_in_words(seconds: float) -> str:
    """
    >>> duration_in_words(12), duration_in_words(61), duration_in_words(1500), duration_in_words(40000)
    ('12 seconds', '61 seconds', '25 minutes', '11 hours')
    """
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1, round(seconds))} seconds"
