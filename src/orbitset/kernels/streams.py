"""Work on a second stream of a GPU, beside what the first goes on with.

Memory is safe by two rules. What the second stream reads or writes of the first's is let go only after the
two were joined; and what it reads again on the way back, of which autograd lets go as it likes, is recorded
as used by both. A GPU has one such stream, so that two threads must not take or record steps at one time.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from orbitset import kernels

Result = TypeVar("Result", bound=tuple[Tensor, ...] | None)
_MADE = "_orbitset_made"
_is_allowed = False


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

    def catch_up(self, until: torch.cuda.Event | None = None) -> None:
        """With the first stream, as far as it was given work until now or until an event."""
        if self._stream is not None:
            self._stream.wait_event(until or torch.cuda.current_stream(self._device).record_event())

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


@contextlib.contextmanager
def overlap() -> Iterator[None]:
    """Within it tensors are marked as made: who says so knows that what else is read beside them is older."""
    global _is_allowed
    before, _is_allowed = _is_allowed, True
    try:
        yield
    finally:
        _is_allowed = before


def mark_made(tensor: Tensor) -> None:
    """Remember that the tensor is made by what was started until now, where that may be made use of."""
    if _is_allowed and kernels.serve(tensor):
        made = torch.cuda.current_stream(tensor.device).record_event()
        setattr(tensor, _MADE, (made, tensor._version))


def beside(tensor: Tensor, work: Callable[[], Result]) -> Result:
    """What `work` gives, done beside what was started since the tensor was made, where that was marked.

    The work may read the tensor and what is older. Its gradient is taken beside that of the others too.
    """
    if not _is_marked(tensor):
        return work()
    first = torch.cuda.current_stream(tensor.device)
    with joined(tensor.device):
        result = _done_beside(tensor, work)
    for made_there in result if isinstance(result, tuple) else ():
        made_there.record_stream(first)
    return result


@contextlib.contextmanager
def meanwhile(tensor: Tensor, work: Callable[[], None]) -> Iterator[None]:
    """`work` is done beside what is started within, at the end of which it is waited for.

    It may read the tensor and what is older, as `beside`, all of which must be held until then.
    """
    if not _is_marked(tensor):
        work()
        yield
        return
    with joined(tensor.device):
        _done_beside(tensor, work)
        yield


def _is_marked(tensor: Tensor) -> bool:
    made, version = getattr(tensor, _MADE, (None, None))
    return made is not None and version == tensor._version


def _done_beside(tensor: Tensor, work: Callable[[], Result]) -> Result:
    second = Second(tensor.device)
    second.catch_up(getattr(tensor, _MADE)[0])
    with second.work():
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return work()
