"""Retrieval of single images without labels: an augmented image is the query for its original."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.config import bounded, check_fields
from orbitset.encoders import Encoder
from orbitset.errors import ConfigError
from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.score import Score
from orbitset.losses.distances import distance_matrix
from orbitset.orbits.computed import AffineOrbits
from orbitset.protocols.contract import (
    About,
    Encode,
    On,
    Protocol,
    ProtocolSettings,
    Scores,
    measures_in_words,
)
from orbitset.protocols.encoding import ENCODE_BATCH, encode_members, random_members
from orbitset.protocols.figures import at_margin, computed_figures
from orbitset.protocols.images import ComputedImages
from orbitset.protocols.one_shot import transformed_pairs

_MOST_IMAGES = 2_000
"""Images in the gallery, at most"""


@dataclass(frozen=True, kw_only=True)
class FindingSettings(ProtocolSettings):
    """How retrieval is evaluated. Early stopping can choose weights by retrieval of validation images."""

    on: On = "test"
    """validation: validation images take the place of test images; use this to choose settings"""
    test_images: int = bounded(25_000, at_least=1)
    """Queries, at most"""
    seed: int = 0
    """Random seed of members and queries: the same for every method and every training seed"""

    def __post_init__(self) -> None:
        check_fields(self, "evaluation")

    @property
    def can_keep_best(self) -> bool:
        return True


class FindingTask:
    """A gallery of canonical images, and augmented images as queries."""

    def __init__(self, orbits: AffineOrbits, *, queries: int, seed: int) -> None:
        self.orbits, self.num_images = orbits, min(len(orbits), _MOST_IMAGES)
        orbit, member = random_members(orbits, len(orbits) * orbits.num_members, seed)
        chosen = ((member > 0) & (orbit < self.num_images)).nonzero().squeeze(1)[:queries]
        self.query_orbit, self.query_member = orbit[chosen], member[chosen]

    def encode_gallery(self, encode: Encode) -> Labelled:
        """Codes of the canonical images, with their orbits as labels."""
        orbit = torch.arange(self.num_images, device=self.orbits.device)
        return Labelled(encode_members(encode, self.orbits, orbit, torch.zeros_like(orbit)), orbit)

    def score(self, gallery: Labelled, encode: Encode) -> float:
        """The share of queries whose nearest canonical image is their own."""
        right = 0
        for orbit, member in zip(
            self.query_orbit.split(ENCODE_BATCH), self.query_member.split(ENCODE_BATCH), strict=True
        ):
            codes = encode(self.orbits.members(orbit, member))
            nearest = distance_matrix(codes.double(), gallery.codes.double()).argmin(1)
            right += int((nearest == orbit).sum())
        return right / max(1, len(self.query_orbit))


class Finding(Protocol):
    """Top-1 retrieval of held-out images: the query is an augmented image, the answer its original."""

    orbits = "computed"
    Settings = FindingSettings
    about = About(
        how="These images have no labels: each of those that were not trained on is to be found, among all "
        "of them, by a changed one of it.",
        measures=measures_in_words("top1", "invariance", "selectivity"),
        curves=("top1",),
        kept_by="top1",
    )

    def __init__(
        self, images: ComputedImages, settings: FindingSettings, *, margin: float | None = None
    ) -> None:
        if images.config.members < 2:
            raise ConfigError(
                "images are found by their other members, and "
                f"orbits.members is {images.config.members}; give at least 2"
            )
        self.images, self.settings, self.margin = images, settings, margin
        sides = {"va": images.validation, "te": images.test}
        self._tasks = {
            side: FindingTask(orbits, queries=settings.test_images, seed=settings.seed)
            for side, orbits in sides.items()
        }

    def held_out(self, encode: Encode) -> dict[str, Labelled]:
        return {side: task.encode_gallery(encode) for side, task in self._tasks.items()}

    def scores(self, codes: Mapping[str, Labelled], encode: Encode) -> Scores:
        sides = {side: [task.score(codes[side], encode)] for side, task in self._tasks.items()}
        top1 = Score(mean=sides["te"][0], sides=sides)
        return {"top1": top1, **at_margin(encode, self.images.test, self.margin)}

    def figures(self, model: Encoder, encode: Encode) -> dict[str, Tensor]:
        return computed_figures(model, encode, self.images.test, self.margin)

    def pairs(self, encode: Encode) -> tuple[Labelled, str]:
        return transformed_pairs(self.images.test, encode)
