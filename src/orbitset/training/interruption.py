"""Ctrl-C and SIGTERM: a training that is asked to stop ends with its step, and a model is made of it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MESSAGE = "\nstopping: a model is made of what was learned so far; Ctrl-C again stops at once\n"


class Interruption:
    """Whether a training is asked to stop: from the beginning, or by a signal."""

    def __init__(self, *, is_requested: bool = False) -> None:
        self.is_requested = is_requested
        self.signal: int = signal.SIGINT

    @property
    def exit_code(self) -> int:
        """The exit code of a program that this ended."""
        return 128 + self.signal

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Inside, the first signal is remembered; the next does what it does without."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def remember(number: int, frame: FrameType | None) -> None:
            del frame
            self.is_requested, self.signal = True, number
            restore()
            os.write(2, _MESSAGE.encode())  # print may be what the signal interrupts

        for number in _SIGNALS:
            signal.signal(number, remember)
        try:
            yield
        finally:
            restore()
