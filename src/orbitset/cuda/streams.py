"""Work on a second stream of a GPU, beside what the first goes on with.

Memory is safe by one rule: what the second stream reads or writes of the first's is let go only after the two
were joined. A GPU has one such stream, so that two threads must not take or record steps at one time.
"""

import contextlib
import functools
from collections.abc import Iterator

import torch


@functools.cache
def _second(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Second:
    """The second stream of a device; of a CPU, which has none, the work is done in order.

    Within `with second.work():` what is started goes there. It knows of the first's work up to where it
    last caught up.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _second(device) if device.type == "cuda" else None

    def catch_up(self) -> None:
        """Wait for the work that the first stream was given until now."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """The first stream goes on when the second is through."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """However it is left, the first stream then waits for the second."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(RuntimeError):  # which would hide the cause
            Second(device).join()
        raise
    Second(device).join()
