"""One-shot recognition on computed orbits: the paper's affine experiments.

A labelled set has one transformed validation image of each class. Labelled sets are drawn first, so that only
their images need encoding. Queries are transformed test images; a random seed chooses them once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from orbitset.config import bounded, check_fields
from orbitset.encoders import Encoder
from orbitset.errors import ConfigError, DataError
from orbitset.evaluation.early_stopping import orbit_splits
from orbitset.evaluation.labelled import Labelled, Metric, draw_labelled_sets
from orbitset.evaluation.one_shot import Accuracy, knn_accuracy, linear_probe_accuracy
from orbitset.evaluation.score import Score
from orbitset.orbits.computed import AffineOrbits
from orbitset.protocols.contract import (
    About,
    Encode,
    Numbers,
    On,
    Protocol,
    ProtocolSettings,
    Say,
    Scores,
    measures_in_words,
)
from orbitset.protocols.encoding import encode_members, random_members
from orbitset.protocols.figures import at_margin, computed_figures, tsne_points
from orbitset.protocols.images import ComputedImages

MEASURES: dict[Metric, str] = {"euclidean": "accuracy", "cosine": "accuracy_cosine"}
_SUFFIX: dict[Metric, str] = {"euclidean": "", "cosine": "_cosine"}
_CALIBRATED_ORBITS, _CALIBRATED_MEMBERS = 300, 4


@dataclass(frozen=True, kw_only=True)
class OneShotSettings(ProtocolSettings):
    """How one-shot recognition is evaluated: labelled validation images, and test images as queries."""

    on: On = "test"
    """validation: queries are validation images without a label, too; use this to choose settings"""
    test_images: int = bounded(25_000, at_least=1)
    draws: int = bounded(100, at_least=1)
    seed: int = 0
    """Seed of test members, labelled sets and splits: the same for every method and every training seed"""
    splits: int = bounded(10, at_least=0)
    """Random halves of the test orbits: a stopping time is chosen on one and scored on the other"""
    tsne_points: int = 1_000

    def __post_init__(self) -> None:
        check_fields(self, "evaluation")
        if self.tsne_points != 0 and self.tsne_points < 50:
            raise ConfigError(
                f"evaluation.tsne_points is {self.tsne_points}; give 0 for none, or at least 50"
            )

    def without_figures(self) -> dict[str, Any]:
        return {"tsne_points": 0}


class OneShotTask:
    """Labelled sets and queries, which a random seed fixes; `scores` evaluates any encoder on them."""

    def __init__(
        self,
        validation: AffineOrbits,
        test: AffineOrbits,
        *,
        test_images: int,
        draws: int,
        seed: int,
        shots: int = 1,
    ) -> None:
        if validation.labels_N is None or test.labels_N is None:
            raise DataError("one-shot evaluation needs class labels, and these images have none")
        missing = set(test.labels_N.tolist()) - set(validation.labels_N.tolist())
        if missing:
            raise DataError(
                f"classes {sorted(missing)[:5]} of the test images have no validation image to label",
                hint="give every class at least three images",
            )
        self.validation, self.test = validation, test
        self.query_orbit, self.query_member = random_members(test, test_images, seed)
        members = validation.num_members
        pool_labels = validation.labels_N.repeat_interleave(members)
        sets = draw_labelled_sets(pool_labels.cpu(), shots=shots, draws=draws, seed=seed)
        drawn, places = sets.unique(return_inverse=True)
        drawn = drawn.to(validation.device)
        self.labelled_sets = places.view(sets.shape).to(validation.device)
        self.gallery_orbit, self.gallery_member = drawn // members, drawn % members

    def scores(
        self,
        encode: Encode,
        metrics: tuple[Metric, ...] = ("euclidean", "cosine"),
        queries: Labelled | None = None,
    ) -> dict[Metric, Accuracy]:
        """Accuracy by metric; pass `queries` if you have encoded them already."""
        queries = queries or self.encode_queries(encode)
        gallery = self.encode_gallery(encode)
        return {
            metric: knn_accuracy(gallery, queries, metric=metric, labelled_sets=self.labelled_sets)
            for metric in metrics
        }

    def encode_gallery(self, encode: Encode) -> Labelled:
        codes = encode_members(encode, self.validation, self.gallery_orbit, self.gallery_member)
        assert self.validation.labels_N is not None
        return Labelled(codes, self.validation.labels_N[self.gallery_orbit])

    def encode_queries(self, encode: Encode, limit: int | None = None) -> Labelled:
        orbit, member = self.query_orbit[:limit], self.query_member[:limit]
        codes = encode_members(encode, self.test, orbit, member)
        assert self.test.labels_N is not None
        return Labelled(codes, self.test.labels_N[orbit])


class OneShot(Protocol):
    """One labelled image per class, nearest neighbour in code space."""

    orbits = "computed"
    Settings = OneShotSettings
    about = About(
        how="One labelled image per class; a test image gets the class of its nearest neighbour in code "
        "space. The s.d. is over draws of the labelled images with one trained model, so it does not say how "
        "much another training would differ.",
        measures=measures_in_words("accuracy", "accuracy_cosine", "invariance", "selectivity"),
        curves=("accuracy",),
        paired_over="splits",
        fewest_splits=2,
        tested_share=1.0,
        about_tests="Splits overlap and share a training, so the paired t-test is too sure of itself;\n"
        "how much another training would change, only the spread over seeds says.",
        about_study="Splits overlap and share one training per seed, so that the paired t-test is too sure "
        "of itself; how much another training would change, only the spread over seeds says. The corrected "
        "one widens its variance after Nadeau and Bengio, for halves; Wilcoxon's asks nothing of the "
        "distribution but symmetry.",
    )

    def __init__(
        self, images: ComputedImages, settings: OneShotSettings, *, margin: float | None = None
    ) -> None:
        if not images.has_labels:
            raise DataError(
                "one-shot evaluation needs class labels, and these images have none",
                hint="--protocol finding judges images without labels",
            )
        self.images, self.settings, self.margin = images, settings, margin
        self.task = self._task(1, settings.test_images, settings.draws)
        self._halves = None
        if settings.splits and len(self.task.query_orbit.unique()) > 1:
            self._halves = orbit_splits(
                self.task.query_orbit, splits=settings.splits, seed=settings.seed
            )

    def _task(self, shots: int, test_images: int, draws: int) -> OneShotTask:
        return OneShotTask(
            self.images.validation,
            self.images.test,
            test_images=test_images,
            draws=draws,
            seed=self.settings.seed,
            shots=shots,
        )

    def held_out(self, encode: Encode) -> dict[str, Labelled]:
        return {"te": self.task.encode_queries(encode)}

    def scores(self, codes: Mapping[str, Labelled], encode: Encode) -> Scores:
        scores: dict[str, Score | float] = {}
        for metric, accuracy in self.task.scores(encode, queries=codes["te"]).items():
            sides: dict[str, list[float]] = {}
            if self._halves is not None:
                validation, test = self._halves.scores(accuracy.per_query)
                sides = {"va": validation, "te": test}
            scores[MEASURES[metric]] = accuracy.score(sides)
        return scores | at_margin(encode, self.images.test, self.margin)

    def figures(self, model: Encoder, encode: Encode) -> dict[str, Tensor]:
        arrays = computed_figures(model, encode, self.images.test, self.margin)
        if self.settings.tsne_points:
            queries = self.task.encode_queries(encode, limit=self.settings.tsne_points)
            arrays["tsne"] = tsne_points(queries.codes, self.settings.seed)
            arrays["tsne_labels"] = queries.labels
        return arrays

    def pairs(self, encode: Encode) -> tuple[Labelled, str]:
        return transformed_pairs(self.images.test, encode)

    def evaluate_anew(self, encode: Encode, numbers: Numbers, say: Say) -> dict[str, Score]:
        """Few-shot recognition, k-NN and a linear probe. Labelled sets are drawn as in training; k-NN and the
        probe use a random part of the validation images, with all their labels."""
        neighbours = numbers.neighbours or 5
        test_images = numbers.test_images or self.settings.test_images
        try:
            tasks = {
                shots: self._task(shots, test_images, numbers.draws or 100)
                for shots in numbers.shots or (1, 5)
            }
        except ValueError as error:
            raise ConfigError(str(error)) from None
        first = next(iter(tasks.values()))
        say(f"encoding {len(first.query_orbit):,} queries and labelled images")
        queries = first.encode_queries(encode)
        scores = {}
        for shots, task in tasks.items():
            name = "accuracy" if shots == 1 else f"accuracy_{shots}shot"
            for metric, accuracy in task.scores(encode, get_args(Metric), queries).items():
                scores[name + _SUFFIX[metric]] = accuracy.score()
        gallery = self._gallery(encode, numbers.gallery_images or 5_000)
        if neighbours > len(gallery):
            raise ConfigError(f"k is {neighbours} but only {len(gallery)} images are labelled")
        for metric in get_args(Metric):
            nearest = knn_accuracy(gallery, queries, k=neighbours, metric=metric)
            scores[f"knn{neighbours}_accuracy{_SUFFIX[metric]}"] = nearest.score()
        if len(gallery.labels.unique()) > 1:
            say("fitting the linear probe")
            scores["probe_accuracy"] = linear_probe_accuracy(gallery, queries).score()
        return scores

    def _gallery(self, encode: Encode, num: int) -> Labelled:
        """Codes of random transformed validation images, for measures that need many labels."""
        validation = self.images.validation
        orbit, member = random_members(validation, num, self.settings.seed, "gallery")
        assert validation.labels_N is not None
        codes = encode_members(encode, validation, orbit, member)
        return Labelled(codes, validation.labels_N[orbit])


def transformed_pairs(test: AffineOrbits, encode: Encode) -> tuple[Labelled, str]:
    """A few members of the first test orbits: two of one orbit show the same thing."""
    count = min(_CALIBRATED_ORBITS, len(test))
    members = min(_CALIBRATED_MEMBERS, test.num_members)
    orbit: Tensor = torch.arange(count, device=test.device).repeat_interleave(members)
    member = torch.arange(members, device=test.device).repeat(count)
    codes = encode_members(encode, test, orbit, member)
    return Labelled(
        codes, orbit
    ), "transformed test images, where versions of one image are the same thing"
