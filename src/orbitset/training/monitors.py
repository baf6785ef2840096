"""Watching training without slowing it: sums kept on the device, read only now and then.

A collapsed embedding makes a semi-hard loss look perfect and an average hides a NaN, so the spread of
the codes is watched beside the loss, and the first non-finite term is remembered with its step.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from orbitset.errors import TrainingError

_COLLAPSED, _COLLAPSED_RANK = 1e-4, 1.1


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
    """Means of the terms since the last `flush`, and the first step at which a term was not finite."""

    def __init__(self, state: Mapping[str, float] | None = None, steps: int = 0) -> None:
        self._sums: dict[str, Tensor] = {k: torch.tensor(v) for k, v in (state or {}).items()}
        self._steps = steps
        self._bad: dict[str, Tensor] = {}
        self._last_codes: Tensor | None = None

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
        self._last_codes = codes.detach()

    def check(self) -> None:
        """Stop if any term was not finite, naming the first step and the term."""
        if not self._bad:
            return
        steps = torch.stack(list(self._bad.values())).tolist()
        firsts = dict(zip(self._bad, steps, strict=True))
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
        values = torch.stack(list(self._sums.values())).tolist() if self._sums else []
        return dict(zip(self._sums, values, strict=True)), self._steps

    def means(self) -> dict[str, float]:
        """The mean of each term since the last flush, and the effective rank of the last codes."""
        sums, steps = self.state
        means = {name: value / max(1, steps) for name, value in sums.items()}
        if self._last_codes is not None:
            means["rank"] = float(effective_rank(self._last_codes.float()))
        return means

    def flush(self) -> dict[str, float]:
        means = self.means()
        self._sums, self._steps, self._last_codes = {}, 0, None
        return means


def collapse_warning(means: Mapping[str, float]) -> str | None:
    """A sentence when the codes have all but become one."""
    advice = "distances between them say little; try another margin, code_norm or mining"
    if means.get("spread", 1.0) < _COLLAPSED:
        return (
            f"the codes have collapsed to nearly one point (spread {means['spread']:.1e}): {advice}"
        )
    if means.get("rank", 2.0) < _COLLAPSED_RANK:
        return f"the codes have collapsed to nearly a line (rank {means['rank']:.2f}): {advice}"
    return None
