"""The contract of protocols, which evaluate codes on held-out images.

A protocol gets the held-out images and a function `encode` from images to codes, and gives scores. A protocol
of your own is a class `package.module:Name` that implements `Protocol`.
"""

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from orbitset.encoders import Encoder
from orbitset.errors import ConfigError
from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.score import Score

On = Literal["test", "validation"]
"""The images that are scored; validation images if settings are chosen by the scores"""
Encode = Callable[[Tensor], Tensor]
Measure = Callable[[Tensor, Tensor], float]
"""A measure of your own: a number from codes (N, D) and labels (N,) of held-out images"""
Scores = Mapping[str, Score | float]
"""Scores by measure; a plain number is recorded without baselines"""
Say = Callable[[str], None]
FARS = (0.001, 0.01, 0.1)
"""False accept rates at which `evaluate` gives the true accept rate"""
MEASURES = {
    "accuracy": "one-shot accuracy",
    "accuracy_cosine": "one-shot accuracy, cosine",
    "auc": "verification AUC",
    "top1": "top-1 retrieval",
    "top5": "precision among the nearest five",
    "map": "mean average precision",
    "eer": "equal error rate",
    **{f"tar_at_far_{far}": f"true accept rate at {far:.1%} false accepts" for far in FARS},
    "nmi": "k-means NMI",
    "ari": "k-means ARI",
    "invariance": "invariance at ε = α",
    "selectivity": "selectivity at ε = α",
}
"""The measures of the package's own protocols, in words"""
OVER_SEEDS = (
    "Every seed is a training of its own on the same images. "
    "What other images would change, the test does not say."
)


@dataclass(frozen=True, kw_only=True)
class About:
    """What a reader of results needs to know about a protocol; stored with the results."""

    how: str
    """A paragraph for the report: how the scores are measured"""
    measures: Mapping[str, str] = field(default_factory=dict)
    """Each measure in words, the most important first"""
    curves: tuple[str, ...] = ()
    """Measures that are drawn against epochs"""
    kept_by: str | None = None
    """The measure by which `train.keep=best` chooses weights, on validation images; the first one if None"""
    label: str = "class"
    """What the labels of held-out images are"""
    paired_over: Literal["splits", "seeds"] = "seeds"
    """What tests between trained methods are paired over"""
    fewest_splits: int = 1
    """Splits that a test of significance needs at least"""
    tested_share: float | None = None
    """The size of a split's test part over that of what it is independent of; None if there are no splits"""
    about_tests: str = OVER_SEEDS
    """What tests between two groups of trainings can say"""
    about_study: str = OVER_SEEDS
    """What tests in a study can say"""
    has_swapped_sides: bool = False
    """Whether the validation side and the test side may change places"""

    @property
    def chosen_by(self) -> str:
        """The measure by which weights are chosen."""
        return self.kept_by or next(iter(self.measures), "")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "curves": list(self.curves)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "About":
        known = {name.name for name in fields(About)}
        values = {name: value for name, value in values.items() if name in known}
        return About(**{**values, "curves": tuple(values.get("curves", ()))})


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Options of `orbitset evaluate`; None means the protocol's default."""

    shots: tuple[int, ...] | None = None
    neighbours: int | None = None
    draws: int | None = None
    gallery_images: int | None = None
    test_images: int | None = None


class ProtocolSettings:
    """The settings of a protocol, a frozen dataclass. What its fields do not name is as it is here."""

    on: On = "test"
    """The images that are scored"""
    seed: int = 0
    """Random seed of what is drawn for an evaluation"""
    exclude: tuple[str, ...] = ()
    """What retrieval leaves out: see `orbitset.protocols.exclusions`"""
    splits: int | None = None
    """How many splits of the test orbits have scores of their own, if the protocol says so"""

    @property
    def can_keep_best(self) -> bool:
        """Whether there are scores on validation images, by which weights can be chosen."""
        return False

    def without_figures(self) -> dict[str, Any]:
        """Settings with which nothing is computed for figures alone."""
        return {}


class Parts(typing.Protocol):
    """The settings that every protocol on observed orbits has."""

    @property
    def split_by(self) -> str:
        """The factor whose values say in which part of the split an image is"""

    @property
    def train(self) -> tuple[str, ...]: ...
    @property
    def validation(self) -> tuple[str, ...]: ...
    @property
    def test(self) -> tuple[str, ...]: ...
    @property
    def exclude(self) -> tuple[str, ...]:
        """Further factors that the protocol looks at; images must have them"""

    @property
    def on(self) -> On: ...


class Protocol(ABC):
    """Evaluates one training. Every implementation is final."""

    orbits: ClassVar[Literal["computed", "observed"]]
    """The kind of orbits that it evaluates"""
    about: About
    Settings: ClassVar[type]
    """A frozen dataclass with the settings `evaluation.…`, derived from `ProtocolSettings`; for observed
    orbits it has the fields of `Parts`, which say what is held out"""

    def __init_subclass__(cls) -> None:
        """A dataclass that does not derive from `ProtocolSettings` is made to."""
        settings = cls.__dict__.get("Settings", ProtocolSettings)
        if not issubclass(settings, ProtocolSettings):
            named = {"__module__": settings.__module__, "__qualname__": settings.__qualname__}
            cls.Settings = type(settings.__name__, (settings, ProtocolSettings), named)

    @abstractmethod
    def __init__(self, images: Any, settings: Any, *, margin: float | None = None) -> None:
        """`images` is a ComputedImages or an ObservedSplit (`orbitset.protocols.images`), as `orbits` says.

        `margin` is the margin of the objective, if it has one.
        """

    @abstractmethod
    def held_out(self, encode: Encode) -> dict[str, Labelled]:
        """Codes and labels of the test images, `te`, and of validation images, `va`, if there are any."""

    @abstractmethod
    def scores(self, codes: Mapping[str, Labelled], encode: Encode) -> Scores:
        """The scores of one evaluation, a line of metrics.jsonl: between 0 and 1, more is better."""

    def figures(self, model: Encoder, encode: Encode) -> Mapping[str, Tensor | np.ndarray]:
        """Arrays for the figures, by the names that report/ knows."""
        return {}

    def pairs(self, encode: Encode) -> tuple[Labelled, str] | None:
        """Codes on which verification thresholds are measured, and what their labels mean; None for none."""
        return None

    def rows(self, records: list[dict[str, Any]]) -> dict[str, Score]:
        """Further scores, from all evaluations during the training."""
        return {}

    def evaluate_anew(self, encode: Encode, numbers: Numbers, say: Say) -> dict[str, Score]:
        """The scores that `orbitset evaluate` prints."""
        if numbers != Numbers():
            raise ConfigError("this protocol has no numbers of labelled or test images to choose")
        scores = evaluate(self, encode, {})
        return {name: score for name, score in scores.items() if isinstance(score, Score)}


def evaluate(protocol: Protocol, encode: Encode, measures: Mapping[str, Measure]) -> Scores:
    """The protocol's scores, and those of measures from outside on the same held-out codes."""
    codes = protocol.held_out(encode)
    return {**protocol.scores(codes, encode), **measured(codes, measures)}


def measures_in_words(*measures: str) -> dict[str, str]:
    """The measures of one of the package's own protocols, for its `About`."""
    return {name: MEASURES[name] for name in measures}


def measured(codes: Mapping[str, Labelled], measures: Mapping[str, Measure]) -> dict[str, Score]:
    """The scores of measures from outside on held-out codes."""
    scores = {}
    for name, measure in measures.items():
        values = {
            side: _number(measure, measure(held.codes, held.labels)) for side, held in codes.items()
        }
        sides = {side: [value] for side, value in values.items()} if "va" in values else {}
        scores[name] = Score(mean=values["te"], sides=sides)
    return scores


def _number(measure: Measure, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        text = repr(value) if shape is None else f"a tensor of shape {tuple(shape)}"
        name = getattr(measure, "__qualname__", type(measure).__name__)
        raise ConfigError(
            f"the measure {measure.__module__}:{name} gave {text}; give a number"
        ) from None
