"""One training step, and the ways to do it again and again.

`train_step` is the step, and `Steps` calls it on one batch after another; `ReferenceSteps` does so without
any kernel of ours. On a GPU `ReplayedSteps` calls the same function with the network's fused twin, records
what that launches and replays it: a CUDA graph, so that the host only says which orbits come next.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orbitset import kernels
from orbitset.errors import ConfigError
from orbitset.kernels.streams import mark_made, meanwhile, overlap
from orbitset.training.monitors import Monitor

Engine = Literal["auto", "reference", "fast"]


def train_step(
    network: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    *,
    use_bfloat16: bool,
    watch: Callable[[Mapping[str, Tensor]], None] = lambda terms: None,
) -> tuple[Mapping[str, Tensor], Tensor]:
    """Forward, loss, backward, update. Gives the loss terms, which may be watched, and the codes."""
    with overlap():  # the batch is older than all that is made of it
        with torch.autocast(batch.images.device.type, torch.bfloat16, enabled=use_bfloat16):
            if loss.uses_rectified:
                codes, rectified = network(batch.images)
            else:
                codes, rectified = network.encode(batch.images), None  # type: ignore[operator]
        terms = loss(codes, batch, rectified)
        mark_made(terms["loss"])
    optimizer.zero_grad(set_to_none=True)
    with meanwhile(terms["loss"], lambda: watch(terms)):
        terms["loss"].backward()
    optimizer.step()
    return terms, codes


class Steps:
    """Training steps by number, one batch after another."""

    def __init__(
        self,
        network: nn.Module,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Any,
        monitor: Monitor,
        *,
        use_bfloat16: bool,
    ) -> None:
        self.network, self.loss, self.optimizer = network, loss, optimizer
        self.batches, self.monitor, self.use_bfloat16 = batches, monitor, use_bfloat16

    def __call__(self, index: int) -> Mapping[str, Tensor]:
        """Do step number `index` and give its loss terms, which the next step may overwrite."""
        terms, codes = self._run(self.batches.batch(index))
        self.monitor.count(codes)
        return terms

    def _run(self, batch: Any) -> tuple[Mapping[str, Tensor], Tensor]:
        terms, codes = train_step(
            *(self.network, self.loss, self.optimizer, batch),
            use_bfloat16=self.use_bfloat16,
            watch=self.monitor.watch,
        )
        return {name: value.detach() for name, value in terms.items()}, codes.detach()


class ReferenceSteps(Steps):
    """Plain torch code throughout."""

    def __call__(self, index: int) -> Mapping[str, Tensor]:
        with kernels.disabled():
            return super().__call__(index)


class ReplayedSteps(Steps):
    """The same steps, recorded and replayed.

    The first batch of a size is an ordinary step, which also warms everything up. The next two are recorded,
    each with memory of its own for its batch, and replayed in turn from then on: while the GPU is at one of
    them, the batch of the other is drawn and its images are made on a stream beside it.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._recorded: dict[Any, list[_Recorded]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        # of higher priority than the second stream, on which nothing waits for most of what is done
        self._stream = torch.cuda.Stream(priority=-1)
        self._making = torch.cuda.Stream()
        self._ahead: tuple[int, Any, _Recorded | None] | None = None

    def __call__(self, index: int) -> Mapping[str, Tensor]:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != index:
            ahead = (index, self.batches.draw(index), None)
        _, drawn, recorded = ahead
        if recorded is None:
            key = _kind(drawn)
            if key not in self._recorded:
                terms = self._first(drawn)
                self._recorded[key] = []
                return terms
            if len(self._recorded[key]) < 2:
                self._recorded[key].append(_Recorded(self, drawn))
            recorded = self._recorded[key][-1]
            with self._beside(torch.cuda.current_stream().record_event()):
                recorded.make(drawn)
        before = torch.cuda.current_stream().record_event()
        recorded.step.replay()
        self._go_ahead(index + 1, recorded, before)
        self.monitor.count(recorded.codes)
        return recorded.terms

    def _first(self, drawn: Any) -> Mapping[str, Tensor]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            terms, codes = self._run(self.batches.show(drawn))
        torch.cuda.current_stream().wait_stream(self._stream)
        self.monitor.count(codes)
        return terms

    def _go_ahead(self, index: int, busy: "_Recorded", after: torch.cuda.Event) -> None:
        """Draw a batch and make its images, if there is a recorded step for it that is not busy."""
        with self._beside(after):
            try:
                drawn = self.batches.draw(index)
            except Exception:  # is an error where it is asked for, which it may never be
                return
            free = [step for step in self._recorded.get(_kind(drawn), []) if step is not busy]
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


def _kind(drawn: Any) -> Any:
    """What steps recorded for one batch can be replayed for: those of the same kind."""
    return drawn.orbits.shape, drawn.members.shape, drawn.members_per_orbit


class _Recorded:
    """How a batch is made, and the step that is taken with it."""

    def __init__(self, steps: ReplayedSteps, drawn: Any) -> None:
        self._drawn = dataclasses.replace(
            drawn, orbits=drawn.orbits.clone(), members=drawn.members.clone()
        )
        steps.optimizer.zero_grad(set_to_none=True)
        self._batch, self.step = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # a batch is made while a step is taken with another: each has memory of its own, steps share theirs
        with torch.cuda.graph(self._batch, stream=steps._making):
            self.batch = steps.batches.show(self._drawn)
        with torch.cuda.graph(self.step, pool=steps._pool, stream=steps._stream):
            self.terms, self.codes = steps._run(self.batch)
        # those of this step are not the gradients of other recorded ones
        steps.optimizer.zero_grad(set_to_none=True)

    def make(self, drawn: Any) -> None:
        self._drawn.orbits.copy_(drawn.orbits)
        self._drawn.members.copy_(drawn.members)
        self._batch.replay()


def _fused(network: nn.Module) -> tuple[nn.Module | None, str]:
    """A network may offer a twin of itself that trains faster: see `RectifyingEncoder.fused`."""
    offer = getattr(network, "fused", None)
    twin: tuple[nn.Module | None, str] = offer() if offer else (None, "the network has no kernels")
    return twin


def choose_steps(
    engine: Engine,
    network: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Any,
    monitor: Monitor,
    *,
    use_bfloat16: bool,
) -> tuple[Steps, str]:
    """The fastest way that is open to this training, and a word on which it is."""
    device = next(network.parameters()).device
    reasons = []
    chosen: type[Steps] = ReferenceSteps if engine == "reference" else Steps
    if engine != "reference" and device.type == "cuda":
        twin, reason = _fused(network) if use_bfloat16 else (None, "float32 was asked for")
        if twin is None:
            reasons.append(f"not fused, {reason}")
        network = twin or network
        promised = {"loss": loss, "network": network, "batches": batches}
        silent = [
            name for name, part in promised.items() if not getattr(part, "is_replayable", False)
        ]
        if silent:
            reasons.append(f"not replayed, {' and '.join(silent)} did not promise is_replayable")
        else:
            chosen = ReplayedSteps
    elif engine == "fast":
        reasons.append("it needs an NVIDIA GPU")
    if engine == "fast" and reasons:
        raise ConfigError(
            f"this training cannot take the fast way: {'; '.join(reasons)}",
            hint="train.engine=auto takes what part of it there is",
        )
    steps = chosen(network, loss, optimizer, batches, monitor, use_bfloat16=use_bfloat16)
    if engine == "reference" or device.type != "cuda":
        return steps, "reference"
    return steps, "; ".join(reasons) or "fused kernels, replayed as a CUDA graph"
