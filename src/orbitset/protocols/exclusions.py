"""What retrieval leaves out, as settings name it: `light` for images that share a factor, `angle:30:360` or
`view:2steps:circular` for neighbours in one.

Numbers are the values of a factor, or what these end in: test_003 is image 3 of the series `test_`.

Shapes: N images, G series of a label.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from orbitset.datasets.observed import ObservedImages
from orbitset.errors import ConfigError, DataError, count_of
from orbitset.evaluation.exclusion import Near, Rule, Same

_NUMBER = r"\d+(?:\.\d+)?"
_NEIGHBOURS = re.compile(
    rf"(?P<factor>.+?):(?:(?P<within>{_NUMBER})|(?P<steps>\d+)steps?)(?::(?P<around>circular|{_NUMBER}))?"
)
_WHOLE = re.compile(rf"[+-]?{_NUMBER}")
_AT_END = re.compile(rf"(?P<series>.*?)(?P<number>{_NUMBER})")
_DEGREES = 360.0


@dataclass(frozen=True)
class Exclusion:
    """Images of one label that are too easy to retrieve because of one factor."""

    factor: str
    within: float | None = None
    """Numbers that differ by less than this are neighbours"""
    steps: int | None = None
    """Images up to so many steps apart in the order of their label are neighbours"""
    around: str | None = None
    """circular, if the last is a neighbour of the first; or the difference after which numbers begin anew"""

    @staticmethod
    def parse(text: str) -> "Exclusion":
        """
        >>> Exclusion.parse("light"), Exclusion.parse("view:2steps:circular").steps
        (Exclusion(factor='light', within=None, steps=None, around=None), 2)
        """
        parts = _NEIGHBOURS.fullmatch(text)
        if parts is None:
            return Exclusion(text)
        factor, within, steps, around = parts.groups()
        if not float(within or steps):
            raise ConfigError(
                f"{text} leaves out nothing; give a number above 0, or --exclude none"
            )
        if steps and around not in (None, "circular"):
            raise ConfigError(
                f"{text} has steps and a period; write {factor}:{steps}steps:circular"
            )
        return Exclusion(
            factor, float(within) if within else None, int(steps) if steps else None, around
        )

    def __str__(self) -> str:
        """As it is written in settings."""
        near = f":{self.steps}step{'s' * (self.steps != 1)}" if self.steps else ""
        near = near or (f":{self.within:g}" if self.within else "")
        return f"{self.factor}{near}" + (f":{self.around}" if self.around else "")

    @property
    def has_neighbours(self) -> bool:
        """Whether it leaves out neighbours, and not images with an equal value."""
        return self.within is not None or self.steps is not None

    def as_circle(self) -> "Exclusion":
        """The same, with the last of those that are counted in steps as a neighbour of the first.

        >>> str(Exclusion.parse("view:2steps").as_circle()), str(Exclusion.parse("light").as_circle())
        ('view:2steps:circular', 'light')
        """
        return replace(self, around="circular") if self.steps else self

    @property
    def rule(self) -> Rule:
        """The condition on two images of one label; `numbers` has the factors that it reads."""
        if not self.has_neighbours:
            return Same(self.factor)
        within = self.steps + 0.5 if self.steps else self.within
        assert within is not None
        period = f"period of {self.factor}" if self.around else None
        return Same(f"series of {self.factor}") & Near(f"number of {self.factor}", within, period)

    def numbers(self, images: ObservedImages, label: str) -> dict[str, Tensor]:
        """The series, the number and the period of each image, (N,), where neighbours are left out."""
        if not self.has_neighbours:
            return {}
        numbered = [series_and_number(value) for value in images.values[self.factor]]
        if all(number is None for _, number in numbered):
            raise DataError(
                f"no value of {self.factor} is a number or ends in one, so that it has no neighbours",
                hint=f"leave out equal values with --exclude {self.factor}",
            )
        names = sorted({series for series, _ in numbered})
        value_N = images.factors[self.factor].cpu()
        label_N = images.factors[label].cpu()
        series_N = torch.tensor([names.index(series) for series, _ in numbered])[value_N]
        number = torch.tensor([number or 0.0 for _, number in numbered], dtype=torch.float64)
        number_N = number[value_N]
        period_N = torch.full_like(number_N, torch.inf)
        if self.steps:
            series_N, number_N, period_N = _places(label_N * len(names) + series_N, number_N)
        elif self.around:
            is_given = self.around != "circular"
            period_N = number_N.new_full(
                number_N.shape, float(self.around) if is_given else _period(number)
            )
        parts = {"series": series_N, "number": number_N, "period": period_N}
        return {f"{name} of {self.factor}": values for name, values in parts.items()}


def left_out_in_words(exclude: Sequence[str]) -> str:
    """What is left out, after "images of the same thing".

    >>> left_out_in_words(["light", "tilt", "pan:30", "frame:1step:circular"])
    'with the same light or tilt, or nearer than 30 in pan, or up to 1 step away in frame (circular)'
    """
    exclusions = [Exclusion.parse(text) for text in exclude]
    shared = [exclusion.factor for exclusion in exclusions if not exclusion.has_neighbours]
    parts = [f"with the same {' or '.join(shared)}"] if shared else []
    for near in exclusions:
        if not near.has_neighbours:
            continue
        how = (
            f"up to {count_of(near.steps, 'step')} away"
            if near.steps
            else f"nearer than {near.within:g}"
        )
        around = near.around if near.around in (None, "circular") else f"period {near.around}"
        parts.append(f"{how} in {near.factor}" + (f" ({around})" if around else ""))
    return ", or ".join(parts)


def series_and_number(value: str) -> tuple[str, float | None]:
    """
    >>> series_and_number("-15"), series_and_number("test_003"), series_and_number("front")
    (('', -15.0), ('test_', 3.0), ('front', None))
    """
    if _WHOLE.fullmatch(value):
        return "", float(value)
    parts = _AT_END.fullmatch(value)
    return (value, None) if parts is None else (parts["series"], float(parts["number"]))


def _places(series_N: Tensor, number_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The series, the place of each image among the numbers of its series, and how many these are."""
    rank_N = number_N.unique(return_inverse=True)[1]
    pairs, pair_N = torch.stack([series_N, rank_N], 1).unique(dim=0, return_inverse=True)
    group_N = series_N.unique(return_inverse=True)[1]
    size_G = pairs[:, 0].unique(return_counts=True)[1]
    first_G = size_G.cumsum(0) - size_G
    return group_N, (pair_N - first_G[group_N]).double(), size_G[group_N].double()


def _period(numbers: Tensor) -> float:
    """The difference after which evenly spaced numbers begin anew: one step beyond the last, or 360 if that
    is the difference between the last and the first."""
    number = numbers.unique()
    span = float(number[-1] - number[0])
    return span if span == _DEGREES or len(number) < 2 else span + float(number.diff().median())
