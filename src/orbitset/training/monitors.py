"""Watching training without slowing it: sums kept on the device, read only now and then.

A collapsed embedding makes a semi-hard loss look perfect and an average hides a NaN, so the spread of
the latest codes is reported beside the loss, and the first non-finite term is remembered with its step.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from orbitset.errors import ConfigError, TrainingError

_NEVER = torch.iinfo(torch.int64).max


def code_spread(codes_ND: Tensor) -> Tensor:
    """How much of the codes' squared length differs between images: 0 when all codes are one.

    >>> code_spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).item(), code_spread(torch.ones(3, 2)).item()
    (1.0, 0.0)
    """
    squared = codes_ND.square().sum(1).mean()
    varied = codes_ND.var(0, unbiased=False).sum()
    return varied / squared.clamp(min=torch.finfo(codes_ND.dtype).tiny)


def effective_rank(codes_ND: Tensor) -> Tensor:
    """In how many directions the codes vary: 1 when they lie on a line, whatever their scale.

    (sum of variances)^2 / sum of squared variances, over the principal directions. Batch norm on the code
    hides a collapse from the spread; this it cannot hide.

    >>> round(effective_rank(torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])).item(), 4)
    1.0
    """
    centred = codes_ND - codes_ND.mean(0)
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    tiny = torch.finfo(codes_ND.dtype).tiny
    return gram.trace().square() / gram.square().sum().clamp(min=tiny)


class Monitor:
    """Means of the terms since the last `flush`, and the first step at which a term was not finite.

    `watch` works on the device alone and adds to tensors that stay where they are; `count` is the part that
    happens on the host.
    """

    def __init__(
        self, state: Mapping[str, float] | None = None, steps: int = 0, step: int = 0
    ) -> None:
        self._before = dict(state or {})
        self._steps, self._first_step = steps, step
        self._names: list[str] = []
        self._sums = self._bad = self._step = torch.empty(0)
        self._last_codes: Tensor | None = None
        self.loss_name = ""

    @torch.no_grad()
    def watch(self, terms: Mapping[str, Tensor]) -> None:
        if not self._names:
            self._start(list(terms), terms["loss"].device)
        if terms.keys() != set(self._names):
            raise ConfigError(
                f"the objective gave the terms {', '.join(terms)} after {', '.join(self._names)}; "
                "give the same ones at every step"
            )
        values = torch.stack([terms[name].detach().float() for name in self._names])
        self._sums.add_(values)
        now = torch.where(values.isfinite(), _NEVER, self._step)
        torch.minimum(self._bad, now, out=self._bad)
        self._step.add_(1)

    def count(self, codes: Tensor) -> None:
        """A step was watched, and these were its codes."""
        self._steps += 1
        self._last_codes = codes.detach()

    def _start(self, names: list[str], device: torch.device) -> None:
        self._names = names
        self._sums = torch.tensor([self._before.get(name, 0.0) for name in names], device=device)
        self._bad = torch.full((len(names),), _NEVER, device=device)
        self._step = torch.tensor(self._first_step, device=device)

    def check(self) -> None:
        """Stop if any term was not finite, naming the first step and the term."""
        firsts = dict(zip(self._names, self._bad.tolist(), strict=True))
        if not firsts:
            return
        # of terms that went bad together, name a part before the sum of them
        name, step = min(firsts.items(), key=lambda item: (item[1], item[0] == "loss"))
        if step != _NEVER:
            hint = "lower the learning rate with --set train.learning_rate=…, and look for NaN in the data"
            if step == 0:  # before the first update
                hint = f"look for NaN in the data or in the loss {self.loss_name}".rstrip()
            raise TrainingError(
                f"the term '{name}' was not finite at step {step}; training stopped", hint=hint
            )

    @property
    def state(self) -> tuple[dict[str, float], int]:
        """Sums and the number of steps, to go into a checkpoint."""
        if not self._names:
            return dict(self._before), self._steps
        return dict(zip(self._names, self._sums.tolist(), strict=True)), self._steps

    def means(self) -> dict[str, float]:
        """The mean of each term since the last flush, and spread and effective rank of the last codes."""
        sums, steps = self.state
        means = {name: value / steps for name, value in sums.items()} if steps else {}
        return means | self.about_codes()

    def about_codes(self) -> dict[str, float]:
        """Spread and effective rank of the last codes."""
        if self._last_codes is None:
            return {}
        codes = self._last_codes.float()
        return {"spread": float(code_spread(codes)), "rank": float(effective_rank(codes))}

    def flush(self) -> dict[str, float]:
        means = self.means()
        self._before, self._steps, self._last_codes = {}, 0, None
        self._sums.zero_()
        return means
