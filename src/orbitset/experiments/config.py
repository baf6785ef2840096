"""One experiment, described whole: what config.json holds."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from orbitset.encoders.rectifying import EncoderConfig
from orbitset.errors import ConfigError, check_choice
from orbitset.experiments.methods import Method, has_transformer, objective_of
from orbitset.losses.methods import LossConfig
from orbitset.losses.methods import Method as Objective
from orbitset.orbits.computed import OrbitConfig
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
class ExperimentConfig:
    """One method trained once on computed orbits and evaluated by one-shot recognition."""

    name: str
    data: str
    """mnist, digits, or the path of images"""
    method: Method = "OJ"
    seed: int = 0
    orbits: OrbitConfig = field(default_factory=OrbitConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
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
    def uses_margin(self) -> bool:
        return self.objective in ("OJ", "OT", "ST")

    @property
    def objective(self) -> Objective:
        return objective_of(self.method)

    @property
    def has_transformer(self) -> bool:
        return has_transformer(self.method)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; give at least 0")
        if self.objective in ("OJ", "OT") and self.orbits.members_per_batch < 2:
            raise ConfigError(
                f"orbits.members_per_batch is {self.orbits.members_per_batch}, but {self.method} compares "
                "members of one orbit; give at least 2"
            )
        if self.uses_margin and self.orbits.orbits_per_batch < 2:
            raise ConfigError(
                f"orbits.orbits_per_batch is {self.orbits.orbits_per_batch}, but {self.method} compares "
                "orbits: a batch with one orbit has no negatives; give at least 2"
            )
