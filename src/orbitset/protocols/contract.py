"""How codes are judged: the contract of every protocol.

A protocol gets the images that were held out, and a function `encode` from images to codes. It encodes what
it needs and gives scores. A protocol from outside the package is a class `package.module:Name` that
implements `Protocol`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from orbitset.encoders import Encoder
from orbitset.errors import ConfigError
from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.score import Score

Encode = Callable[[Tensor], Tensor]
Measure = Callable[[Tensor, Tensor], float]
"""A measure from outside: of the codes (N, D) and the labels (N,) of held-out images"""
Scores = Mapping[str, Score | float]
"""Scores by the name of their measure; a plain number is noted beside them and has no baselines"""
Say = Callable[[str], None]
OVER_SEEDS = (
    "Every seed is a training of its own on the same images. "
    "What other images would change, the test does not say."
)


@dataclass(frozen=True, kw_only=True)
class About:
    """What a reader of results needs to know about a protocol. It is kept with them."""

    how: str
    """How it is measured: a paragraph for the page"""
    measures: Mapping[str, str] = field(default_factory=dict)
    """Each measure in words, the most important one first"""
    curves: tuple[str, ...] = ()
    """Measures that are drawn against epochs"""
    kept_by: str | None = None
    """The measure by which `train.keep=best` chooses weights, on validation images; the first one if None"""
    label: str = "class"
    """What the labels of held-out images are"""
    paired_over: Literal["splits", "seeds"] = "seeds"
    """What tests between trained methods are paired over"""
    fewest_splits: int = 1
    """A training needs scores on so many splits to be tested"""
    tested_share: float | None = None
    """The size of a split's test part over that of what it is independent of; None if there are no splits"""
    about_tests: str = OVER_SEEDS
    """What tests between two groups of trainings can say"""
    about_study: str = OVER_SEEDS
    """What tests in a study can say"""
    has_swapped_sides: bool = False
    """Whether the validation side and the test side may change places"""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "curves": list(self.curves)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "About":
        known = {name.name for name in fields(About)}
        values = {name: value for name, value in values.items() if name in known}
        return About(**{**values, "curves": tuple(values.get("curves", ()))})


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What `orbitset evaluate` may be asked for; None leaves the protocol's own number."""

    shots: tuple[int, ...] | None = None
    neighbours: int | None = None
    draws: int | None = None
    gallery_images: int | None = None
    test_images: int | None = None


class Protocol(ABC):
    """Judges one training. Every implementation is final."""

    orbits: ClassVar[Literal["computed", "observed"]]
    """Which orbits it judges"""
    about: About
    Settings: ClassVar[type]
    """A frozen dataclass: what `evaluation.…` may set"""

    @abstractmethod
    def __init__(self, images: Any, settings: Any, *, margin: float | None = None) -> None:
        """`images` are ComputedImages or ObservedImages; the margin is that of the objective, if it has
        one."""

    @abstractmethod
    def held_out(self, encode: Encode) -> dict[str, Labelled]:
        """Codes and labels of the test images, `te`, and of validation images, `va`, if there are any."""

    @abstractmethod
    def scores(self, codes: Mapping[str, Labelled], encode: Encode) -> Scores:
        """What a record of metrics.jsonl says. Scores lie between 0 and 1, and more is better."""

    def figures(self, model: Encoder, encode: Encode) -> dict[str, Tensor]:
        """What figures are drawn from; see report/ for the names that it knows."""
        return {}

    def pairs(self, encode: Encode) -> tuple[Labelled, str] | None:
        """Codes to measure verification thresholds on, and what their labels mean; None if there are none."""
        return None

    def rows(self, records: list[dict[str, Any]]) -> dict[str, Score]:
        """Further scores of the trained model, from all records of its training."""
        return {}

    def evaluate_anew(self, encode: Encode, numbers: Numbers, say: Say) -> dict[str, Score]:
        """What `orbitset evaluate` prints."""
        if numbers != Numbers():
            raise ConfigError("this protocol has no numbers of labelled or test images to choose")
        scores = evaluate(self, encode, {})
        return {name: score for name, score in scores.items() if isinstance(score, Score)}


def evaluate(protocol: Protocol, encode: Encode, measures: Mapping[str, Measure]) -> Scores:
    """The protocol's scores, and those of measures from outside on the same held-out codes."""
    codes = protocol.held_out(encode)
    return {**protocol.scores(codes, encode), **measured(codes, measures)}


def measured(codes: Mapping[str, Labelled], measures: Mapping[str, Measure]) -> dict[str, Score]:
    """The scores of measures from outside on held-out codes."""
    scores = {}
    for name, measure in measures.items():
        values = {side: float(measure(held.codes, held.labels)) for side, held in codes.items()}
        sides = {side: [value] for side, value in values.items()} if "va" in values else {}
        scores[name] = Score(mean=values["te"], sides=sides)
    return scores
