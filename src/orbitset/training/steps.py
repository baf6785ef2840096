"""One training step, and how it is taken again and again.

`train_step` is the algorithm; `Steps` calls it on one batch after another. On a GPU there may be a faster way
to take the same steps, which `choose_steps` asks for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orbitset.dispatch import disabled, fast_steps
from orbitset.errors import ConfigError
from orbitset.losses.objective import Objective, Terms, name_of
from orbitset.training.monitors import Monitor

Engine = Literal["auto", "reference", "fast"]


def train_step(
    network: nn.Module,
    loss: Objective,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    *,
    use_bfloat16: bool,
) -> tuple[Terms, Tensor]:
    """Encode, decode, loss, backward, update. Gives the terms of the loss, and the codes."""
    terms, codes = forward(network, loss, batch, use_bfloat16=use_bfloat16)
    optimizer.zero_grad(set_to_none=True)
    terms["loss"].backward()
    optimizer.step()
    return terms, codes


def forward(
    network: nn.Module, loss: Objective, batch: Any, *, use_bfloat16: bool
) -> tuple[Terms, Tensor]:
    """Encode, decode if the loss looks at decoded images, and the terms of the loss; and the codes.

    The decoder of a loss that does not shape codes learns from codes as they are.
    """
    with torch.autocast(batch.images.device.type, torch.bfloat16, enabled=use_bfloat16):
        if loss.uses_rectified and not loss.shapes_codes:
            codes = network.encode(batch.images)  # type: ignore[operator]
            rectified = network.decode(codes.detach())  # type: ignore[operator]
        elif loss.uses_rectified:
            codes, rectified = network(batch.images)
        else:
            codes, rectified = network.encode(batch.images), None  # type: ignore[operator]
    terms = loss(codes, batch, rectified)
    check_terms(loss, terms)
    return terms, codes


def check_terms(loss: Objective, terms: Any) -> None:
    """Refuse what is not a dict of numbers with `loss` among them, and name the function that gave it."""
    wrong = f"the terms {', '.join(map(str, terms))}" if isinstance(terms, Mapping) else repr(terms)
    if isinstance(terms, Mapping) and "loss" in terms:
        bad = [term for term in terms.values() if not is_number(term)]
        if not bad:
            return
        shape = f"a tensor of shape {tuple(bad[0].shape)}" if isinstance(bad[0], Tensor) else None
        wrong = shape or f"{bad[0]!r}, which is no tensor"
    raise ConfigError(
        f"the loss {name_of(loss)} gave {wrong}; give one number, or a dict of numbers with 'loss'"
    )


def is_number(term: Any) -> bool:
    return isinstance(term, Tensor) and term.dim() == 0


@dataclass
class Steps:
    """Training steps by number, in plain torch code but for what is `accelerated`."""

    network: nn.Module
    loss: Objective
    optimizer: torch.optim.Optimizer
    batches: Any
    monitor: Monitor
    use_bfloat16: bool

    def __call__(self, index: int) -> Terms:
        """Take step number `index` and give the terms of its loss, which the next step may overwrite."""
        terms, codes = self.take(self.batches.batch(index))
        self.monitor.count(codes)
        return terms

    def take(self, batch: Any) -> tuple[Terms, Tensor]:
        """One step on a batch, which the monitor watches: its terms and codes, without gradients."""
        terms, codes = train_step(
            self.network, self.loss, self.optimizer, batch, use_bfloat16=self.use_bfloat16
        )
        self.monitor.watch(terms)
        return {name: term.detach() for name, term in terms.items()}, codes.detach()


class ReferenceSteps(Steps):
    """The same in plain torch code throughout."""

    def __call__(self, index: int) -> Terms:
        with disabled():
            return super().__call__(index)


class SettlingSteps:
    """Plain steps as long as the weights that learn change, then the fastest there are."""

    def __init__(self, steps: Steps, last_change: int, note: Callable[[str], None]) -> None:
        self.steps, self.last_change, self.note = steps, last_change, note
        self.settled: Callable[[int], Terms] | None = None

    def __call__(self, index: int) -> Terms:
        if index < self.last_change:
            return self.steps(index)
        if self.settled is None:
            fast, word = fast_steps(self.steps, required=False, note=self.note)
            self.settled = fast or self.steps
            if fast is not None:
                self.note(f"all that learns does so from step {index:,} on: {word}")
        return self.settled(index)


def choose_steps(
    engine: Engine,
    network: nn.Module,
    loss: Objective,
    optimizer: torch.optim.Optimizer,
    batches: Any,
    monitor: Monitor,
    *,
    use_bfloat16: bool,
    last_change: int = 0,
    note: Callable[[str], None] = lambda message: None,
) -> tuple[Callable[[int], Terms], str]:
    """The fastest way to take the steps of this training, and a word on which it is.

    Which weights learn changes until step `last_change`, and until then steps are plain. What turns out
    later, such as that a step cannot be taken the fast way, goes to `note`.
    """
    parts = (network, loss, optimizer, batches, monitor, use_bfloat16)
    if engine == "reference":
        return ReferenceSteps(*parts), "reference"
    steps = Steps(*parts)
    if last_change and engine == "auto":
        return SettlingSteps(steps, last_change, note), f"reference until step {last_change:,}"
    fast, word = None, "which weights learn changes on the way (train.head_first, train.unfreeze)"
    if not last_change:
        fast, word = fast_steps(steps, required=engine == "fast", note=note)
    if fast is not None:
        return fast, word
    if engine == "fast":
        raise ConfigError(
            f"this training cannot take the fast way: {word}",
            hint="train.engine=auto uses what it can of it",
        )
    return steps, "reference"
