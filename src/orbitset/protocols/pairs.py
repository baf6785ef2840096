"""Verification and retrieval on observed orbits: the paper's experiment on faces.

Verification is the AUC over all pairs of held-out images. Retrieval is top-1: how often the nearest image has
the query's label, after exclusions of images that would be too easy to find. For one-shot accuracy one image
of each label is a labelled example, with the same exclusions.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from orbitset.config import bounded, check_fields
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.video import frames_of
from orbitset.encoders import Encoder
from orbitset.errors import ConfigError, DataError, OrbitsetError
from orbitset.evaluation.clustering import cluster_scores
from orbitset.evaluation.exclusion import Near, Rule, Same
from orbitset.evaluation.labelled import Labelled, Metric
from orbitset.evaluation.one_shot import Accuracy, one_shot_accuracy
from orbitset.evaluation.retrieval import Retrieval, retrieve
from orbitset.evaluation.score import Score
from orbitset.evaluation.verification import verify
from orbitset.orbits.observed import group_orbits
from orbitset.protocols.contract import (
    FARS,
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
from orbitset.protocols.exclusions import Exclusion, left_out_in_words
from orbitset.protocols.figures import to_uint8, tsne_points
from orbitset.protocols.images import GroupedImages
from orbitset.seeds import stream

MEASURES = ("auc", "top1", "accuracy")
_STRIP_ROWS = 4
_MISTAKES = 2
_MOST_TSNE_POINTS = 2_600
_TOP = 5
_MOST_CALIBRATED = 4_000
"""Images on which thresholds are measured, at most"""
_MOST_NAMED = 4
"""Values that are named one by one, at most"""
_DRAWS, _FEWEST_DRAWS, _MOST_COMPARISONS = 100, 10, 2**27
"""Draws of labelled images; fewer, where queries are compared with very many of them"""


@dataclass(frozen=True, kw_only=True)
class PairsSettings(ProtocolSettings):
    """Verification and retrieval on observed images that were not trained on."""

    split_by: str
    """The factor whose values tell what is trained on and what is tested on"""
    train: tuple[str, ...]
    test: tuple[str, ...]
    validation: tuple[str, ...] = ()
    """For early stopping; without them, the end of training is evaluated"""
    on: On = "test"
    """validation: validation images take the place of test images; use this to choose settings"""
    exclude: tuple[str, ...] = ()
    """Retrieval excludes images of the query's label that share one of these factors with it, or that are
    its neighbours in one: light, view:2steps, view:2steps:circular, angle:30 or angle:30:360"""
    apart: int = bounded(0, at_least=0)
    """Retrieval excludes frames of the query's video that are nearer to it than this many frames"""
    seed: int = 0
    """Random seed of the figures and of the labelled images"""
    pictures: int = bounded(40, at_least=0)
    """Number of queries in the figures; 0 for none"""
    tsne_labels: int = bounded(10, at_least=0)
    """Number of labels in the t-SNE figure; 0 for none"""

    def __post_init__(self) -> None:
        check_fields(self, "evaluation")
        for text in self.exclude:
            Exclusion.parse(text)
        for name in ("train", "test"):
            if not getattr(self, name):
                raise ConfigError(f"evaluation.{name} is empty; give values of {self.split_by}")
        if self.on == "validation" and not self.validation:
            raise ConfigError("evaluation.on is validation, and evaluation.validation is empty")
        parts = [*self.train, *self.validation, *self.test]
        twice = sorted({value for value in parts if parts.count(value) > 1})
        if twice:
            raise ConfigError(
                f"{self.split_by} {', '.join(twice)} is in two of evaluation.train, validation and test; "
                "what is tested on must not be trained on"
            )

    @property
    def exclusions(self) -> list[Exclusion]:
        return [Exclusion.parse(text) for text in self.exclude]

    @property
    def scored(self) -> tuple[str, ...]:
        """The values of the images that are scored."""
        return self.test if self.on == "test" else self.validation

    @property
    def can_keep_best(self) -> bool:
        return bool(self.validation)

    def without_figures(self) -> dict[str, Any]:
        return {"pictures": 0, "tsne_labels": 0}


class Pairs(Protocol):
    """All pairs of test images, and for each its nearest other image."""

    orbits = "observed"
    Settings = PairsSettings
    about = About(
        how="Verification: AUC over all pairs of held-out images, by their squared distance. Retrieval: "
        "top-1, how often the nearest held-out image shows the same, after exclusions of images that would "
        "be too easy to find. One-shot: one random image of each thing is labelled, and the others get the "
        "label of the nearest, after the same exclusions.",
        measures=measures_in_words(*MEASURES),
        curves=MEASURES,
        kept_by="accuracy",  # where top-1 of a few validation things is 1.0 long before the end
        about_tests="Every seed is a training of its own on the same images: what other images would\n"
        "change, it does not say.",
        about_study="Every split is trained anew, but where splits share images they are trained on, the "
        "paired t-test is too sure of itself. The corrected one widens its variance after Nadeau and Bengio, "
        "by the size of the part that is scored over that of the part that is trained on; Wilcoxon's asks "
        "nothing of the distribution but symmetry.",
    )

    def __init__(
        self, images: GroupedImages, settings: PairsSettings, *, margin: float | None = None
    ) -> None:
        self.images, self.settings = images, settings
        self.about = replace(
            self.about,
            label=images.label,
            tested_share=len(settings.scored) / len(settings.train),
            has_swapped_sides=bool(settings.validation),
        )
        self._compared(images.sides["te"])  # refuses neighbours in a factor without numbers

    @property
    def rule(self) -> Rule | None:
        """The exclusions of retrieval: images of the query's label that share a factor with it or are its
        neighbours in one, and frames near to it."""
        shared: Rule | None = None
        for exclusion in self.settings.exclusions:
            shared = exclusion.rule if shared is None else shared | exclusion.rule
        rule = None if shared is None else Same(self.images.label) & shared
        if not self.settings.apart:
            return rule
        moment = Same("video") & Near("frame", self.settings.apart)
        return moment if rule is None else rule | moment

    def _compared(self, images: ObservedImages) -> dict[str, Tensor]:
        """The factors by which images are excluded."""
        factors = dict(images.factors)
        for exclusion in self.settings.exclusions:
            factors |= exclusion.numbers(images, self.images.label)
        if self.settings.apart:
            factors["frame"] = frames_of(images)
        return factors

    def held_out(self, encode: Encode) -> dict[str, Labelled]:
        return {
            side: self.images.encode(encode, images) for side, images in self.images.sides.items()
        }

    def scores(self, codes: Mapping[str, Labelled], encode: Encode) -> Scores:
        by_side = {
            side: self.score(codes[side], images) for side, images in self.images.sides.items()
        }
        scores: dict[str, Score | float] = {}
        for name, score in by_side["te"][0].items():
            sides = {side: [values[name].mean] for side, (values, _) in by_side.items()}
            scores[name] = replace(score, sides=sides if "va" in sides else {})
        if unanswerable := by_side["te"][1]:
            scores["unanswerable"] = unanswerable
        return scores

    def score(self, codes: Labelled, images: ObservedImages) -> tuple[dict[str, Score], int]:
        """AUC, top-1 and one-shot accuracy, and the number of queries that have nothing to find."""
        retrieval = self.retrieved(codes, images)
        with _scorable():
            scores = {
                "auc": Score(mean=verify(codes, fars=()).auc),
                "top1": Score(mean=retrieval.precision_at(1)),
                "accuracy": self.one_shot(codes, images).score(),
            }
        return scores, retrieval.num_unanswerable

    def retrieved(self, codes: Labelled, images: ObservedImages, **options: Any) -> Retrieval:
        """Retrieval of every image among the others, with the experiment's exclusions."""
        factors = self._factors(codes, images)
        retrieval = retrieve(codes, factors=factors, exclude=self.rule, **options)
        if retrieval.num_unanswerable == len(codes):
            left_out = left_out_in_words(self.settings.exclude) or "near in time"
            raise DataError(
                f"no test image has another of its {self.images.label} to find, once those {left_out} "
                "are left out",
                hint="exclude less: --exclude none, or fewer factors in evaluation.exclude",
            )
        return retrieval

    def one_shot(
        self, codes: Labelled, images: ObservedImages, metric: Metric = "euclidean"
    ) -> Accuracy:
        """One-shot accuracy with the experiment's exclusions."""
        num_labels = len(codes.labels.unique())
        draws = _MOST_COMPARISONS // (len(codes) * num_labels)
        return one_shot_accuracy(
            codes,
            draws=min(_DRAWS, max(_FEWEST_DRAWS, draws)),
            seed=self.settings.seed,
            metric=metric,
            factors=self._factors(codes, images),
            exclude=self.rule,
        )

    def _factors(self, codes: Labelled, images: ObservedImages) -> dict[str, Tensor]:
        """The factors by which images are excluded, where their codes are."""
        compared = self._compared(images)
        return {name: ids.to(codes.codes.device) for name, ids in compared.items()}

    def rows(self, records: list[dict[str, Any]]) -> dict[str, Score]:
        """The scores by early stopping, if there are validation images."""
        if "va" not in self.images.sides or len(records) < 2:
            return {}
        stopped = {
            name: max(records[1:], key=lambda record: record[name]["va"][0])
            for name in MEASURES
            if name in records[0]
        }
        return {
            f"{name}_stopped": replace(
                Score.from_json(record[name]), sides={}, epoch=record["epoch"]
            )
            for name, record in stopped.items()
        }

    @torch.inference_mode()
    def figures(self, model: Encoder, encode: Encode) -> Mapping[str, Tensor | np.ndarray]:
        """Nothing for private images, which must not be shown."""
        arrays: dict[str, Tensor | np.ndarray] = {}
        if self.images.is_private:
            return arrays
        if self.settings.tsne_labels:
            arrays |= self._in_the_plane(encode)
        if self.settings.pictures:
            arrays |= self._pictures(model, encode)
        return arrays

    def _in_the_plane(self, encode: Encode) -> dict[str, Tensor | np.ndarray]:
        """The codes of the first few labels, thinned evenly if they are many."""
        test = self.images.sides["te"]
        ids = test.factors[self.images.label]
        first = ids.unique()[: self.settings.tsne_labels]
        chosen = torch.isin(ids, first).nonzero().squeeze(1)
        chosen = chosen[:: -(-len(chosen) // _MOST_TSNE_POINTS)]
        codes = self.images.encode(encode, test[chosen])
        if len(codes) < 10:
            return {}
        points = tsne_points(codes.codes, self.settings.seed)
        names = np.array(
            [test.values[self.images.label][i] for i in codes.labels.unique().tolist()]
        )
        return {"tsne": points, "tsne_labels": codes.labels, "tsne_names": names}

    def _pictures(self, model: Encoder, encode: Encode) -> dict[str, Tensor]:
        """Random queries with their targets, nearest and decoded images; and the first mistakes among all
        queries, since there may be none among those."""
        test = self.images.sides["te"]
        retrieval = self.retrieved(self.images.encode(encode, test), test)
        answerable = retrieval.answerable_Q.nonzero().squeeze(1).cpu()
        generator = stream("pictures", self.settings.seed)
        order = answerable[torch.randperm(len(answerable), generator=generator)]
        nearest_Q, is_hit_Q = retrieval.nearest_QK[:, 0].cpu(), retrieval.is_hit_QK[:, 0].cpu()
        orbits = self.images.orbits_of(test)
        orbit_N = group_orbits(dict(test.factors), self.images.config.orbit)[0]

        def pictures_of(queries: Tensor) -> dict[str, Tensor]:
            targets = orbits.canonical_row_N.cpu()[orbit_N[queries]]
            return {
                "query": test.images[queries],
                "canonical": test.images[targets],
                "nearest": test.images[nearest_Q[queries]],
                "rectified": to_uint8(self.images.rectify(model, test.images[queries])),
            }

        queries = order[: self.settings.pictures]
        mistakes = order[~is_hit_Q[order]][:_MISTAKES]
        strips = torch.arange(min(_STRIP_ROWS, len(orbits)))
        widest = int(orbits.size_N.min())
        device = self.images.device
        members = [
            orbits.members(strip.expand(widest).to(device), torch.arange(widest, device=device))
            for strip in strips
        ]
        arrays = pictures_of(queries) | {
            "is_hit": is_hit_Q[queries],
            "members": to_uint8(torch.stack(members)),
        }
        if len(mistakes):
            arrays |= {f"mistake_{name}": images for name, images in pictures_of(mistakes).items()}
        return arrays

    def pairs(self, encode: Encode) -> tuple[Labelled, str]:
        """The test images, or those of some labels if there are many. Validation images are none of them:
        weights may have been chosen by these."""
        images, label = self.images.sides["te"], self.images.label
        label_N = images.factors[label]
        if len(images) > _MOST_CALIBRATED:
            # whole labels, since images of one label lie next to each other
            count = label_N.bincount()
            order = torch.randperm(len(count), generator=stream("calibration"))
            chosen = order[count[order].cumsum(0) <= _MOST_CALIBRATED]
            chosen = chosen if len(chosen) > 1 else order[:2]
            images = images[torch.isin(label_N, chosen.to(label_N.device))]
        values = self.settings.scored
        held_out = f"{self.settings.split_by} {', '.join(values)}"
        if len(values) > _MOST_NAMED:
            held_out = f"{len(values):,} values of {self.settings.split_by}"
        words = f"images with {held_out}, where the same {label} is the same thing"
        return self.images.encode(encode, images), words

    def evaluate_anew(self, encode: Encode, numbers: Numbers, say: Say) -> dict[str, Score]:
        """Verification over all pairs, retrieval with the experiment's exclusions, and k-means."""
        if numbers != Numbers():
            raise ConfigError(
                "numbers of labelled and test images are for runs on computed orbits; "
                "this one is evaluated on all pairs of its test images"
            )
        images = self.images.sides["te"]
        say(f"encoding {len(images):,} test images and comparing all pairs")
        codes = self.images.encode(encode, images)
        scores: dict[str, Score | float] = {}
        with _scorable():
            for metric in get_args(Metric):
                suffix = "" if metric == "euclidean" else f"_{metric}"
                verified = verify(codes, metric=metric, fars=FARS)
                scores[f"auc{suffix}"] = verified.auc
                scores[f"eer{suffix}"] = verified.eer
                for far in FARS:
                    scores[f"tar_at_far_{far}{suffix}"] = verified.at(far).tar
                retrieval = self.retrieved(codes, images, k=_TOP, metric=metric, whole_ranking=True)
                scores[f"top1{suffix}"] = retrieval.precision_at(1)
                scores[f"top{_TOP}{suffix}"] = retrieval.precision_at(_TOP)
                scores[f"map{suffix}"] = retrieval.mean_average_precision
                scores[f"accuracy{suffix}"] = self.one_shot(codes, images, metric).score()
        if retrieval.num_unanswerable:
            say(f"{retrieval.num_unanswerable:,} queries have nothing to find and are not scored")
        say("clustering")
        clusters = cluster_scores(codes)
        scores |= {"nmi": clusters.nmi, "ari": clusters.ari}
        return {
            name: value if isinstance(value, Score) else Score(mean=value)
            for name, value in scores.items()
        }


@contextmanager
def _scorable() -> Iterator[None]:
    """Codes inside are those of test images, which may have too few labels."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, OrbitsetError):
            raise
        raise DataError(f"the test images cannot be scored: {error}") from None
