"""Watching training without slowing it: sums kept on the device, read only now and then.

A collapsed embedding makes a semi-hard loss look perfect and an average hides a NaN, so the spread of
the codes is watched beside the loss, and the first non-finite term is remembered with its step.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from orbitset.errors import TrainingError

_COLLAPSED = 1e-4


def code_spread(codes_ND: Tensor) -> Tensor:
    """How much of the codes' squared length differs between images: 0 when all codes are one.

    >>> code_spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).item(), code_spread(torch.ones(3, 2)).item()
    (1.0, 0.0)
    """
    squared = codes_ND.square().sum(1).mean()
    varied = codes_ND.var(0, unbiased=False).sum()
    return varied / squared.clamp(min=torch.finfo(codes_ND.dtype).tiny)


class Monitor:
    """Means of the terms since the last `flush`, and the first step at which a term was not finite."""

    def __init__(self, state: Mapping[str, float] | None = None, steps: int = 0) -> None:
        self._sums: dict[str, Tensor] = {k: torch.tensor(v) for k, v in (state or {}).items()}
        self._steps = steps
        self._bad: dict[str, Tensor] = {}

    @torch.no_grad()
    def watch(self, step: int, terms: Mapping[str, Tensor], codes: Tensor) -> None:
        for name, value in {**terms, "spread": code_spread(codes.detach())}.items():
            value = value.detach().float()
            sum_ = self._sums.get(name, torch.zeros((), device=value.device)).to(value.device)
            self._sums[name] = sum_ + value
            never = torch.full((), torch.iinfo(torch.int64).max, device=value.device)
            first = self._bad.get(name, never)
            self._bad[name] = torch.where(value.isfinite(), first, first.clamp(max=step))
        self._steps += 1

    def check(self) -> None:
        """Stop if any term was not finite, naming the first step and the term."""
        firsts = {name: int(step) for name, step in self._bad.items()}
        if not firsts:
            return
        # of terms that went bad together, name a part before the sum of them
        name, step = min(firsts.items(), key=lambda item: (item[1], item[0] in ("loss", "spread")))
        if step != torch.iinfo(torch.int64).max:
            raise TrainingError(
                f"the term '{name}' was not finite at step {step}; training stopped",
                hint="lower the learning rate with --set train.learning_rate=…, and look for NaN in the data",
            )

    @property
    def state(self) -> tuple[dict[str, float], int]:
        """Sums and the number of steps, to go into a checkpoint."""
        return {name: float(value) for name, value in self._sums.items()}, self._steps

    def means(self) -> dict[str, float]:
        """The mean of each term since the last flush."""
        sums, steps = self.state
        return {name: value / max(1, steps) for name, value in sums.items()}

    def flush(self) -> dict[str, float]:
        means = self.means()
        self._sums, self._steps = {}, 0
        return means


def collapse_warning(means: Mapping[str, float]) -> str | None:
    """A sentence when the codes have all but become one."""
    if means.get("spread", 1.0) < _COLLAPSED:
        return (
            f"the codes have collapsed to nearly one point (spread {means['spread']:.1e}): "
            "a small loss means nothing now; try another margin, code_norm or mining"
        )
    return None
