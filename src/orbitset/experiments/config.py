"""One training, described whole: what config.json holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from orbitset.config import from_dict
from orbitset.datasets.segments import SegmentConfig
from orbitset.encoders.rectifying import PAPERS, EncoderConfig
from orbitset.errors import ConfigError, check_choice
from orbitset.experiments.methods import Method, has_transformer, objective_of
from orbitset.losses.methods import LossConfig
from orbitset.losses.methods import Method as Objective
from orbitset.orbits.computed import OrbitConfig
from orbitset.orbits.observed import ObservedConfig
from orbitset.training.fit import TrainConfig

On = Literal["test", "validation"]


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The one-shot task: labelled examples from validation images, queries from test images."""

    on: On = "test"
    """validation: queries from validation images too, none of them labelled; for choosing settings"""
    test_images: int = 25_000
    draws: int = 100
    seed: int = 0
    """Of test members, labelled sets and splits: the same for every method and every training seed."""
    splits: int = 10
    """Random halves of the test orbits, one to choose a stopping time on, the other to score it on"""
    tsne_points: int = 1_000

    def __post_init__(self) -> None:
        check_choice("evaluation.on", self.on, get_args(On))
        for name in ("test_images", "draws"):
            if getattr(self, name) < 1:
                raise ConfigError(f"evaluation.{name} is {getattr(self, name)}; give at least 1")
        if self.splits < 0:
            raise ConfigError(f"evaluation.splits is {self.splits}; give 0 for none, or more")
        if self.tsne_points != 0 and self.tsne_points < 50:
            raise ConfigError(
                f"evaluation.tsne_points is {self.tsne_points}; give 0 for none, or at least 50"
            )


@dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """Verification and retrieval on observed images that were not trained on."""

    split_by: str
    """The factor whose values tell what is trained on and what is tested on"""
    train: tuple[str, ...]
    test: tuple[str, ...]
    validation: tuple[str, ...] = ()
    """To choose a stopping time on; if there are none, the end of training counts"""
    exclude: tuple[str, ...] = ()
    """In retrieval, images of the query's label that share one of these factors with it are left out"""
    apart: int = 0
    """In retrieval, frames of one video are left out that are fewer frames than this away from the query"""
    seed: int = 0
    """Of what the figures show"""
    pictures: int = 40
    """Queries kept for the figures, with what was found; 0 for none"""
    tsne_labels: int = 10
    """Labels whose test images are drawn in the plane; 0 for none"""

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            if not getattr(self, name):
                raise ConfigError(f"evaluation.{name} is empty; give values of {self.split_by}")
        parts = [*self.train, *self.validation, *self.test]
        twice = sorted({value for value in parts if parts.count(value) > 1})
        if twice:
            raise ConfigError(
                f"{self.split_by} {', '.join(twice)} is in two of evaluation.train, validation and test; "
                "what is tested on must not be trained on"
            )
        for name in ("apart", "pictures", "tsne_labels"):
            if getattr(self, name) < 0:
                raise ConfigError(f"evaluation.{name} is {getattr(self, name)}; give at least 0")

    @property
    def splits(self) -> int:
        """How many pairs of a validation and a test side a run has scores of."""
        return 1 if self.validation else 0


@dataclass(frozen=True, kw_only=True)
class VideoConfig:
    """How videos become orbits."""

    segments: SegmentConfig = field(default_factory=lambda: SegmentConfig(gap=8))
    """With a gap: nothing tells the end of a segment from the start of one that follows at once"""
    trained_share: float = 0.6
    """Of each video, from its start; the rest is tested on"""

    def __post_init__(self) -> None:
        if not 0 < self.trained_share < 1:
            raise ConfigError(
                f"video.trained_share is {self.trained_share}; give more than 0 and less than 1"
            )


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """One method trained once: what all experiments have."""

    name: str
    data: str
    """The name of a data set, or the path of images"""
    method: Method = "OJ"
    seed: int = 0
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    init: str | None = None
    """The folder of a model whose weights are begun with"""
    cut_down: str | None = None
    """In words, what makes it smaller than what it stands for; said wherever its figures appear"""

    @property
    def margin(self) -> float:
        """The margin asked for, or a fraction of the usual squared distance of two codes: 2k where their
        k entries have unit variance, 2 where they have unit length. Codes without a norm have none."""
        if self.loss.margin is not None:
            return self.loss.margin
        match self.encoder.code_norm:
            case "batch" | "sphere":
                return self.loss.margin_fraction * 2 * self.encoder.code_size
            case "unit":
                return self.loss.margin_fraction * 2
            case "none":
                return 0.2

    @property
    def start(self) -> str:
        """What the network before training is called in tables."""
        return "untrained" if self.init is None else "begun with"

    @property
    def keeps_weights(self) -> bool:
        return True

    @property
    def keeps_best(self) -> bool:
        """Not the weights at the end of training, but those that were best on validation images."""
        return False

    @property
    def uses_margin(self) -> bool:
        return self.objective in ("OJ", "OT", "ST")

    @property
    def objective(self) -> Objective:
        return objective_of(self.method)

    @property
    def has_transformer(self) -> bool:
        return has_transformer(self.method)

    @property
    def rate_shares(self) -> dict[str, float]:
        """What `fit` calls so."""
        inner = "encoder." if self.has_transformer else ""
        shares = {
            "transformer.": self.train.transformer_rate,
            f"{inner}backbone.": self.train.backbone_rate,
        }
        shares |= dict.fromkeys(self._classifiers, self.train.classifier_rate)
        return {part: share for part, share in shares.items() if share != 1}

    @property
    def _classifiers(self) -> list[str]:
        """Where in the loss they are."""
        has_classes = self.loss.classify_weight > 0
        of_orbits = ["loss.objective.classifier." if has_classes else "loss.classifier."]
        return ["loss.classifier."] * has_classes + of_orbits * (self.objective == "EX")

    def _check(self, orbits: OrbitConfig | ObservedConfig) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; give at least 0")
        if self.train.transformer_rate != 1 and not self.has_transformer:
            raise ConfigError(
                f"train.transformer_rate is for a transformer; {self.method} has none"
            )
        if self.train.backbone_rate != 1 and self.encoder.backbone == PAPERS:
            raise ConfigError("train.backbone_rate is for another network than the paper's")
        if self.train.classifier_rate != 1 and not self._classifiers:
            raise ConfigError(
                f"train.classifier_rate is for EX, or for classes beside the orbits; {self.method} has none"
            )
        if self.loss.classify_weight and self.objective == "ST":
            raise ConfigError(f"{self.method} learns from classes as it is; leave out the classes")
        if self.objective in ("OJ", "OT") and orbits.members_per_batch < 2:
            raise ConfigError(
                f"orbits.members_per_batch is {orbits.members_per_batch}, but {self.method} compares "
                "members of one orbit; give at least 2"
            )
        if self.uses_margin and orbits.orbits_per_batch < 2:
            raise ConfigError(
                f"orbits.orbits_per_batch is {orbits.orbits_per_batch}, but {self.method} compares "
                "orbits: a batch with one orbit has no negatives; give at least 2"
            )


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(MethodConfig):
    """Computed orbits, evaluated by one-shot recognition."""

    orbits: OrbitConfig = field(default_factory=OrbitConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)

    def __post_init__(self) -> None:
        self._check(self.orbits)

    @property
    def keeps_best(self) -> bool:
        return self.train.keep == "best"


@dataclass(frozen=True, kw_only=True)
class ObservedExperiment(MethodConfig):
    """Observed orbits, evaluated by verification and retrieval."""

    orbits: ObservedConfig
    evaluation: PairsConfig
    video: VideoConfig | None = None
    """If the data are videos"""
    is_private: bool = False
    """Where the terms of the images ask for it: nothing is kept from which one could be seen, neither images
    nor weights"""

    def __post_init__(self) -> None:
        self._check(self.orbits)
        if self.orbits.label is None:
            raise ConfigError("orbits.label is not given; name the factor that is to be recognised")
        if (self.orbits.classes is None) != (self.loss.classify_weight == 0):
            raise ConfigError(
                "orbits.classes names the factor that has classes, loss.classify_weight says how much they "
                "count; give both or none"
            )
        if self.orbits.orbit == (self.orbits.classes,):
            raise ConfigError(
                f"{self.orbits.classes} is what tells the orbits apart; classes are shared by several"
            )
        if self.objective == "ST" and self.orbits.label not in self.orbits.orbit:
            raise ConfigError(
                f"{self.method} learns from {self.orbits.label}, which the members of an orbit need not "
                f"share; put it into orbits.orbit ({', '.join(self.orbits.orbit)})"
            )

    @property
    def keeps_weights(self) -> bool:
        return not self.is_private

    @property
    def keeps_best(self) -> bool:
        return self.train.keep == "best" and bool(self.evaluation.validation)


Experiment = ExperimentConfig | ObservedExperiment


def with_method(config: Experiment, method: Method) -> Experiment:
    """The same with another method, and without what only the old one has a use for."""
    train = config.train
    if not has_transformer(method):
        train = replace(train, transformer_rate=1.0)
    if objective_of(method) != "EX" and not config.loss.classify_weight:
        train = replace(train, classifier_rate=1.0)
    return replace(config, method=method, train=train)


def read_experiment(values: Mapping[str, Any]) -> Experiment:
    """The configuration that config.json holds, of either kind."""
    orbits = values.get("orbits")
    if isinstance(orbits, Mapping) and "orbit" in orbits:
        return from_dict(ObservedExperiment, values)
    return from_dict(ExperimentConfig, values)
