"""What an evaluation gives: one number per repetition, and what they say together."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Accuracy:
    """Accuracy over repeated draws of the labelled examples.

    Draws share one trained model and one set of queries, so their spread says how much the choice of
    labelled examples matters, not how much training does.
    """

    per_draw: Tensor
    """(R,) float64"""
    per_query: Tensor
    """(Q,) float64: in which part of the draws each query was right; NaN for one that was always left out"""

    @property
    def mean(self) -> float:
        return float(self.per_draw.mean())

    @property
    def sd(self) -> float | None:
        """Standard deviation over draws; None for a single one."""
        return float(self.per_draw.std()) if len(self.per_draw) > 1 else None

    @property
    def interval(self) -> tuple[float, float]:
        """The 2.5th and 97.5th percentiles over draws."""
        levels = torch.tensor([0.025, 0.975], dtype=self.per_draw.dtype)
        low, high = torch.quantile(self.per_draw, levels).tolist()
        return low, high

    def summary(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "mean": self.mean,
            "sd": self.sd,
            "low": low,
            "high": high,
            "n": len(self.per_draw),
            "repeated": "draws",
        }
