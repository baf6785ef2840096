"""Training steps the fast way: the fused network, recorded as a CUDA graph and replayed.

Nobody promises that a step can be recorded. The engine watches an ordinary step, tries, and compares what it
replays with what it computes anew; where that fails it says so and goes on with ordinary steps.
"""

import contextlib
import dataclasses
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from orbitset.cuda.fused import FusedEncoder
from orbitset.cuda.fused_plan import why_not_fused
from orbitset.cuda.watching import watched
from orbitset.encoders.rectifying import RectifyingEncoder
from orbitset.encoders.spatial_transformer import TransformedEncoder
from orbitset.errors import ConfigError
from orbitset.training.steps import Steps, forward

Terms = Mapping[str, Tensor]
_LOSS_WITHIN, _TERM_WITHIN = 0.02, 0.01
"""How far a replayed loss may be from one computed anew, as a share of it; other terms, besides that share"""


def fast_steps(
    steps: Steps, *, required: bool, note: Callable[[str], None]
) -> tuple[Callable[[int], Terms] | None, str]:
    """See `orbitset.dispatch.fast_steps`."""
    reasons = []
    twin, reason = fused(steps.network) if steps.use_bfloat16 else (None, "float32 was asked for")
    if twin is None:
        reasons.append(f"not fused, {reason}")
    unrecorded = _why_not_drawn_ahead(steps.batches)
    if unrecorded is not None:
        reasons.append(f"not replayed, {unrecorded}")
    word = "; ".join(reasons) or "fused kernels, replayed as a CUDA graph"
    if required and reasons:
        return None, word
    ordinary = steps if twin is None else dataclasses.replace(steps, network=twin)
    if unrecorded is not None:
        return ordinary, word
    return RecordedSteps(ordinary, steps.network, required=required, note=note), word


def fused(network: nn.Module) -> tuple[nn.Module | None, str]:
    """The network's training pass with kernels of our own, sharing its weights; or None, and why."""
    if type(network) is TransformedEncoder:
        twin, reason = fused(network.encoder)
        return (None if twin is None else TransformedEncoder(network.transformer, twin)), reason
    if not isinstance(network, RectifyingEncoder):
        return None, "the network has no kernels"
    why = why_not_fused(network)
    return (FusedEncoder(network), "") if why is None else (None, why)


def _why_not_drawn_ahead(batches: Any) -> str | None:
    if not (hasattr(batches, "draw") and hasattr(batches, "show")):
        return "the batches have no draw and show, by which one is made ahead of its step"
    if getattr(batches, "is_streamed", False):
        return "threads fetch the images, which must not meet the recording of a step"
    return None


class RecordedSteps:
    """The same steps, recorded and replayed.

    The first batch of a size is an ordinary step, which also warms everything up; one more is watched. The
    next two are recorded, each with memory of its own for its batch, and replayed in turn from then on: while
    the GPU is at one of them, the batch of the other is drawn and its images are made on a stream beside it.
    """

    def __init__(
        self, steps: Steps, network: nn.Module, *, required: bool, note: Callable[[str], None]
    ) -> None:
        self.steps, self.network, self.required, self.note = steps, network, required, note
        self.is_recording = True
        self.recorded: dict[Any, list[_Recorded]] = {}
        self.replays = 0
        self._is_watched = self._is_doubtful = False
        self._pool = torch.cuda.graph_pool_handle()
        # of higher priority than the second stream, on which nothing waits for most of what is done
        self._stream = torch.cuda.Stream(priority=-1)
        self._making = torch.cuda.Stream()
        self._ahead: tuple[int, Any, _Recorded | None] | None = None

    def __call__(self, index: int) -> Terms:
        if not self.is_recording:
            return self.steps(index)
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != index:
            ahead = (index, self.steps.batches.draw(index), None)
        _, drawn, recorded = ahead
        steps_of_kind = self.recorded.get(_kind(drawn))
        if steps_of_kind is None or not self._is_watched:
            return self._ordinary(drawn, is_first=steps_of_kind is None)
        if recorded is None:
            recorded = self._next(steps_of_kind, drawn)
            if recorded is None:
                return self.steps(index)
        return self._replay(index, recorded)

    def _ordinary(self, drawn: Any, *, is_first: bool) -> Terms:
        self.recorded.setdefault(_kind(drawn), [])
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            batch, why = self.steps.batches.show(drawn), None
            if is_first:
                terms, codes = self.steps.take(batch)
            else:
                self._is_watched = True
                (terms, codes), why = watched(
                    lambda: self.steps.take(batch), self.steps.loss, self.network
                )
        torch.cuda.current_stream().wait_stream(self._stream)
        self.steps.monitor.count(codes)
        if why is not None:
            self._give_up(why)
        return terms

    def _next(self, steps_of_kind: "list[_Recorded]", drawn: Any) -> "_Recorded | None":
        """A recorded step with its batch made, or None where recording failed."""
        if len(steps_of_kind) < 2:
            why = self._record(steps_of_kind, drawn)
            if why is not None:
                self._give_up(why)
                return None
        recorded = steps_of_kind[-1]
        with self._beside(torch.cuda.current_stream().record_event()):
            recorded.make(drawn)
        return recorded

    def _record(self, steps_of_kind: "list[_Recorded]", drawn: Any) -> str | None:
        """Record one more step; gives why that failed, or None."""
        stream = torch.cuda.current_stream()
        try:
            self._batch_pool = torch.cuda.graph_pool_handle()
            steps_of_kind.append(_Recorded(self, drawn))
            return None
        except Exception as error:  # an error of the step itself comes again
            self._recover(stream)
            why = _cause(error)
        # The traceback holds the autograd graph of the failed step. Its gradients accumulate on the stream of
        # the recording, and so would those of later steps while it is alive.
        gc.collect()
        return why

    def _replay(self, index: int, recorded: "_Recorded") -> Terms:
        self.replays += 1
        is_checked = self._is_doubtful or self.replays & (self.replays - 1) == 0
        expected = self._computed_anew(index) if is_checked else None
        before = torch.cuda.current_stream().record_event()
        recorded.step.replay()
        self._go_ahead(index + 1, recorded, before)
        self.steps.monitor.count(recorded.codes)
        if expected is not None:
            self._compare(index, recorded.terms, expected)
        return recorded.terms

    def _go_ahead(self, index: int, busy: "_Recorded", after: torch.cuda.Event) -> None:
        """Draw a batch and make its images, if there is a recorded step for it that is not busy."""
        with self._beside(after):
            try:
                drawn = self.steps.batches.draw(index)
            except Exception:  # is an error where it is asked for, which it may never be
                return
            free = [step for step in self.recorded.get(_kind(drawn), []) if step is not busy]
            if free:
                free[0].make(drawn)
            self._ahead = (index, drawn, free[0] if free else None)

    @contextlib.contextmanager
    def _beside(self, after: torch.cuda.Event) -> Iterator[None]:
        """On the stream where batches are made, when the event has come; the current stream then waits."""
        self._making.wait_event(after)
        with torch.cuda.stream(self._making):
            yield
        torch.cuda.current_stream().wait_stream(self._making)

    def _computed_anew(self, index: int) -> dict[str, float]:
        """The terms of a step that is not taken. Buffers and random numbers are put back."""
        buffers = [*self.network.buffers(), *self.steps.loss.buffers()]
        values = [buffer.clone() for buffer in buffers]
        random_state = torch.cuda.get_rng_state()
        terms, _ = forward(
            self.steps.network,
            self.steps.loss,
            self.steps.batches.batch(index),
            use_bfloat16=self.steps.use_bfloat16,
        )
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
        torch.cuda.set_rng_state(random_state)
        return {name: float(term.detach()) for name, term in terms.items()}

    def _compare(self, index: int, terms: Terms, expected: Mapping[str, float]) -> None:
        """Rounding may choose another of two nearly equal negatives once, but not at two steps in a row."""
        replayed = {name: float(term) for name, term in terms.items()}
        other = [name for name in expected if not _is_near(name, replayed[name], expected[name])]
        if other and self._is_doubtful:
            name = other[0]
            self._give_up(
                f"its term {name} was {replayed[name]:.4g} at step {index}, and {expected[name]:.4g} "
                "when it was computed anew"
            )
        self._is_doubtful = bool(other)

    def _give_up(self, why: str) -> None:
        self.is_recording = False
        if self.required:
            raise ConfigError(
                f"this training cannot take the fast way: its step cannot be recorded, {why}",
                hint="train.engine=auto uses what it can of it",
            )
        self.note(f"the step is not recorded, which is slower: {why}")

    def _recover(self, stream: torch.cuda.Stream) -> None:
        """After a recording that failed half-way: leave its stream, and let go what torch keeps for it."""
        torch.cuda.set_stream(stream)
        self.steps.optimizer.zero_grad(set_to_none=True)
        for pool in (self._pool, self._batch_pool):
            with contextlib.suppress(RuntimeError):  # it had ended
                torch._C._cuda_endAllocateToPool(stream.device_index, pool)
        # a recording that ends well also puts right what torch keeps of random numbers
        with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device=stream.device)


def _kind(drawn: Any) -> Any:
    """What steps recorded for one batch can be replayed for: those of the same kind."""
    shapes = tuple((name, tensor.shape) for name, tensor in _tensors(drawn).items())
    return *shapes, drawn.members_per_orbit


def _tensors(drawn: Any) -> dict[str, Tensor]:
    """All that a batch is made from: a replayed step reads these where they were recorded."""
    values = {field.name: getattr(drawn, field.name) for field in dataclasses.fields(drawn)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _cause(error: Exception) -> str:
    """In a line. A recording that fails cannot be ended either, which hides the cause."""
    cause = error.__context__ or error
    return f"{type(cause).__name__}: {cause}".partition("\n")[0]


def _is_near(name: str, replayed: float, expected: float) -> bool:
    if math.isnan(replayed) or math.isnan(expected) or replayed == expected:
        return replayed == expected or (math.isnan(replayed) and math.isnan(expected))
    slack = 0.0 if name == "loss" else _TERM_WITHIN
    return abs(replayed - expected) <= _LOSS_WITHIN * abs(expected) + slack


class _Recorded:
    """How a batch is made, and the step that is taken with it."""

    def __init__(self, engine: RecordedSteps, drawn: Any) -> None:
        steps = engine.steps
        clones = {name: tensor.clone() for name, tensor in _tensors(drawn).items()}
        self._drawn = dataclasses.replace(drawn, **clones)
        steps.optimizer.zero_grad(set_to_none=True)
        self._batch, self.step = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # a batch is made while a step is taken with another: each has memory of its own, steps share theirs
        with torch.cuda.graph(self._batch, pool=engine._batch_pool, stream=engine._making):
            self.batch = steps.batches.show(self._drawn)
        with torch.cuda.graph(self.step, pool=engine._pool, stream=engine._stream):
            self.terms, self.codes = steps.take(self.batch)
        # those of this step are not the gradients of other recorded ones
        steps.optimizer.zero_grad(set_to_none=True)

    def make(self, drawn: Any) -> None:
        for name, tensor in _tensors(drawn).items():
            getattr(self._drawn, name).copy_(tensor)
        self._batch.replay()
