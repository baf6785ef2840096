"""The score of one measure at one evaluation, in a form that all measures share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Repeated = Literal["runs", "draws", "splits", "seeds"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A mean with its spread.

    >>> Score(mean=0.5).to_json()
    {'mean': 0.5, 'sd': None, 'n': 1, 'repeated': 'runs'}
    """

    mean: float
    sd: float | None = None
    n: int = 1
    repeated: Repeated = "runs"
    """What the n scores behind the mean are"""
    interval: tuple[float, float] | None = None
    """The 2.5th and 97.5th percentiles over the repetitions"""
    sides: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Scores on the validation side `va` and the test side `te` of every split, for early stopping"""
    epoch: float | None = None
    """The epoch of the chosen checkpoint, if training was stopped early"""

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"mean": self.mean, "sd": self.sd}
        if self.interval is not None:
            values |= dict(zip(("low", "high"), self.interval, strict=True))
        values |= {"n": self.n, "repeated": self.repeated}
        return values | {name: list(side) for name, side in self.sides.items()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Score":
        """Read a recorded score; raises KeyError or TypeError where it is damaged."""
        low, high = values.get("low"), values.get("high")
        return Score(
            mean=values["mean"],
            sd=values["sd"],
            n=values["n"],
            repeated=values["repeated"],
            interval=None if low is None or high is None else (low, high),
            sides={name: values[name] for name in values if name in ("va", "te")},
        )
