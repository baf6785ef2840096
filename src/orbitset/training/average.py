"""A running average of the weights, which is evaluated and kept instead of the latest weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """The average a of what a model learns: a <- d a + (1 - d) w after each step.

    d = min(decay, (1 + step) / (10 + step)), so that a short training soon forgets the weights it began with.
    Means and variances of normalisation layers are averaged as well; counts are the latest ones. Without a
    `decay` there is no average. (torch's AveragedModel has no such warm-up, and waits for the GPU to count.)

    >>> net = nn.Linear(1, 1, bias=False)
    >>> average = Average(net, 0.5)
    >>> before = net.weight.item()
    >>> with torch.no_grad():
    ...     _ = net.weight.add_(1)
    >>> average.update(step=100)
    >>> with average.shown():
    ...     round(net.weight.item() - before, 4)
    0.5
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._decay = decay
        learned = [weight for weight in model.parameters() if weight.requires_grad]
        self._latest = [] if decay is None else [*learned, *model.buffers()]
        self._averages = [tensor.detach().clone() for tensor in self._latest]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step` steps."""
        if self._decay is None:
            return
        average = get_ema_multi_avg_fn(min(self._decay, (1 + step) / (10 + step)))
        pairs = list(zip(self._averages, self._latest, strict=True))
        floats = [(mine, latest) for mine, latest in pairs if mine.is_floating_point()]
        average(*map(list, zip(*floats, strict=True)), 0)
        for mine, latest in pairs:
            if not mine.is_floating_point():
                mine.copy_(latest)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Inside, the model has the average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def end(self) -> None:
        """Leave the average in the model for good."""
        self._swap()
        self._latest, self._averages, self._decay = [], [], None

    @property
    def state(self) -> dict[str, Tensor]:
        """What a checkpoint has of it."""
        return {str(index): tensor for index, tensor in enumerate(self._averages)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        for index, tensor in enumerate(self._averages):
            tensor.copy_(state[str(index)])

    @torch.no_grad()
    def _swap(self) -> None:
        """In place, since a recorded step of a GPU knows where weights lie."""
        for mine, latest in zip(self._averages, self._latest, strict=True):
            before = latest.clone()
            latest.copy_(mine)
            mine.copy_(before)
