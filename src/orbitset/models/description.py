"""What model.json says: all that is needed to use a model, and where it came from. Nothing of how it was
configured to be trained."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from orbitset.config import to_dict
from orbitset.encoders import EncoderConfig
from orbitset.encoders.config import PAPERS
from orbitset.errors import ConfigError, check_choice

FORMAT = 1
"""The version of the file; raised when older versions of orbitset cannot read it."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """The encoder's input."""

    size_px: int
    """The side of the square"""
    channels: int = 1
    """1 for grey, 3 for colour"""
    image_px: int | None = None
    """If set, images are fitted into a square of this size in the middle of a black one of `size_px`"""

    def __post_init__(self) -> None:
        if self.size_px < 2 or self.channels not in (1, 3):
            raise ConfigError(
                f"input is {self.size_px} px with {self.channels} channels; give at least 2 px, and 1 or 3"
            )
        if self.image_px is not None and not 1 < self.image_px <= self.size_px:
            raise ConfigError(f"input.image_px is {self.image_px}; give at most {self.size_px}")

    @property
    def is_colour(self) -> bool:
        return self.channels == 3


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network of the weights."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    has_transformer: bool = False
    architecture: dict[str, Any] = field(default_factory=dict)
    """What a network of transformers is built from"""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A threshold: two images within this distance are taken to show the same thing."""

    far: float
    """The largest false accept rate: the share of pairs of different things that are accepted"""
    tar: float
    """The true accept rate: the share of pairs of the same thing that are accepted"""
    threshold: float
    """The squared Euclidean distance of the codes"""
    accepted: int | None = None
    """The number of pairs of different things that were accepted; None where it is not known"""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What distances mean, measured on test images, which were neither trained on nor used to choose the
    weights."""

    auc: float
    equal_error_rate: float
    pairs: int
    on: str
    """Which images these were, in words, and what counts as the same"""
    points: tuple[Point, ...] = ()
    different: int | None = None
    """The number of pairs of different things among the pairs; None where it is not known"""

    def rate(self, point: Point) -> str:
        """The false accept rate of a threshold, or `0 of N` where no pair was accepted."""
        return f"0 of {self.different:,}" if point.accepted == 0 else f"{point.far:.1%}"

    def describe(self, point: Point) -> str:
        """The rates of a threshold, and how many pairs they rest on."""
        rates = f"false accept rate {self.rate(point)}, true accept rate {point.tar:.1%}"
        if self.different is None:
            return rates
        return (
            f"{rates}; measured on {self.different:,} pairs of different things, of which a rate of "
            f"{point.far:.1%} needs at least {round(1 / point.far):,}"
        )

    @property
    def about_pairs(self) -> str:
        """How many pairs of different things the thresholds rest on, and how many they need."""
        if self.different is None:
            return ""
        needed = ", ".join(f"{round(1 / p.far):,} for {p.far:.1%}" for p in self.points)
        return (
            f"The thresholds rest on {self.different:,} pairs of different things. To measure a false "
            f"accept rate takes at least its inverse in pairs: {needed}."
        )

    def at(self, far: float) -> Point:
        """The threshold for a false accept rate that was measured."""
        for point in self.points:
            if point.far == far:
                return point
        known = ", ".join(f"{point.far:g}" for point in self.points) or "none"
        raise ConfigError(
            f"no threshold was measured for a false accept rate of {far:g}, only {known}"
        )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How the model was trained."""

    name: str
    data: str
    method: str
    seed: int
    images: int
    """How many images training showed, repeats included"""
    init: str | None = None
    """The id of the model whose weights it began with"""
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    """By measure, on test images"""
    measures: dict[str, str] = field(default_factory=dict)
    """The measures in the words of the protocol"""
    baselines: dict[str, float] = field(default_factory=dict)
    """The scores of raw pixels"""
    start: str | None = None
    """What training began with, if that was trained already: frozen or begun with"""
    start_scores: dict[str, float] = field(default_factory=dict)
    """Its scores"""
    precision: str | None = None
    """In which the network ran for the scores, float32 or bfloat16; None where it is not known"""
    kept_codes: str | None = None
    """Which codes are kept, in words, if they are those before training or of its first half"""


@dataclass(frozen=True, kw_only=True)
class Description:
    """model.json"""

    id: str
    """Two models of one id give the same codes: see `identify`"""
    input: Input
    network: Network
    trained: Trained
    calibration: Calibration | None = None
    format: int = FORMAT
    kind: Literal["orbitset-model"] = "orbitset-model"

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(Literal["orbitset-model"]))


_ADDED_LATER = {"backbone": PAPERS, "contrast": "given", "features": "auto", "decoder": None}
"""Settings of encoders that older models lack, with the values that they imply; ids leave these out"""


def identify(weights: Mapping[str, Tensor], network: Network, input_: Input) -> str:
    """A hash of all that decides which codes an image gets."""
    described = to_dict(network)
    for name in ("is_pretrained", "head", "norm_statistics"):
        del described["encoder"][name]
    if not network.architecture:
        del described["architecture"]
    for name, before in _ADDED_LATER.items():
        if described["encoder"][name] == before:
            del described["encoder"][name]
    digest = hashlib.sha256(repr((described, to_dict(input_))).encode())
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
