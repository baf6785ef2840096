"""Look at a trained run again, with whatever numbers are asked for.

Runs on computed orbits: few-shot recognition, k-NN and a linear probe. Runs on observed ones: verification,
retrieval and clustering.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch

from orbitset.datasets.table import named
from orbitset.errors import ConfigError, DataError
from orbitset.evaluation.clustering import cluster_scores
from orbitset.evaluation.labelled import Labelled, Metric
from orbitset.evaluation.one_shot import knn_accuracy, linear_probe_accuracy
from orbitset.evaluation.verification import verify
from orbitset.experiments.computed import ComputedTask, build_one_shot
from orbitset.experiments.config import ExperimentConfig
from orbitset.experiments.observed import ObservedTask
from orbitset.experiments.rows import row
from orbitset.experiments.single import data_change, load_run
from orbitset.experiments.task import Encode, OneShotTask, encode_members, encoding_with
from orbitset.runs import Run
from orbitset.seeds import stream

_SUFFIX: dict[Metric, str] = {"euclidean": "", "cosine": "_cosine"}
_FARS = (0.001, 0.01, 0.1)
_TOP = 5
Say = Callable[[str], None]


def evaluate_run(
    run: Run,
    *,
    shots: tuple[int, ...] | None = None,
    neighbours: int | None = None,
    draws: int | None = None,
    gallery_images: int | None = None,
    test_images: int | None = None,
    device: str = "cpu",
    say: Say = lambda message: None,
) -> list[dict[str, Any]]:
    """Rows for a trained encoder. Few-shot sets are drawn as in training, so one shot gives its numbers;
    k-NN and the probe label a random part of the validation images."""
    config, model, task = load_run(run, device=device)
    if isinstance(task, ComputedTask) and task.splits.test.labels is None:
        raise DataError("few-shot evaluation needs class labels, and these images have none")
    if change := data_change(task, run):
        say(f"warning: {change}; figures are of what is there now")
    if task.left_out:
        say(f"left out: {named(task.left_out)}")
    encode = encoding_with(model, precision=config.train.precision)
    if isinstance(config, ExperimentConfig):
        assert isinstance(task, ComputedTask)
        asked = replace(
            config.evaluation,
            draws=draws or 100,
            test_images=test_images or config.evaluation.test_images,
        )
        return _recognition(
            replace(config, evaluation=asked),
            task,
            encode,
            shots=shots or (1, 5),
            neighbours=neighbours or 5,
            gallery_images=gallery_images or 5_000,
            say=say,
        )
    assert isinstance(task, ObservedTask)
    if any(value is not None for value in (shots, neighbours, draws, gallery_images, test_images)):
        raise ConfigError(
            "numbers of labelled and test images are for runs on computed orbits; "
            f"{run.path} is evaluated on all pairs of its test images"
        )
    return _all_pairs(config.method, task, encode, say)


def _recognition(
    config: ExperimentConfig,
    task: ComputedTask,
    encode: Encode,
    *,
    shots: tuple[int, ...],
    neighbours: int,
    gallery_images: int,
    say: Say,
) -> list[dict[str, Any]]:
    try:
        by_shots = {
            count: build_one_shot(config, task.splits, task.test, shots=count) for count in shots
        }
    except ValueError as error:
        raise ConfigError(str(error)) from None
    first = next(iter(by_shots.values()))
    say(f"encoding {len(first.query_orbit):,} queries and labelled images")
    queries = first.encode_queries(encode)
    rows = []
    for count, one_shot in by_shots.items():
        name = "accuracy" if count == 1 else f"accuracy_{count}shot"
        for metric, accuracy in one_shot.scores_of(queries, encode, get_args(Metric)).items():
            rows.append(row(config.method, name + _SUFFIX[metric], accuracy.summary()))
    gallery = _gallery(first, encode, gallery_images, config.evaluation.seed)
    if neighbours > len(gallery):
        raise ConfigError(f"k is {neighbours} but only {len(gallery)} images are labelled")
    for metric in get_args(Metric):
        nearest = knn_accuracy(gallery, queries, k=neighbours, metric=metric)
        name = f"knn{neighbours}_accuracy{_SUFFIX[metric]}"
        rows.append(row(config.method, name, nearest.summary()))
    if len(gallery.labels.unique()) > 1:
        say("fitting the linear probe")
        probe = linear_probe_accuracy(gallery, queries)
        rows.append(row(config.method, "probe_accuracy", probe.summary()))
    return rows


def _all_pairs(method: str, task: ObservedTask, encode: Encode, say: Say) -> list[dict[str, Any]]:
    """Verification over all pairs, retrieval with the experiment's exclusions, and k-means."""
    seen = task.sides["te"]
    say(f"encoding {len(seen):,} test images and comparing all pairs")
    codes = task.encode(encode, seen)
    scores: dict[str, float] = {}
    for metric in get_args(Metric):
        suffix = _SUFFIX[metric]
        verified = verify(codes, metric=metric, fars=_FARS)
        scores[f"auc{suffix}"] = verified.auc
        scores[f"eer{suffix}"] = verified.eer
        for far in _FARS:
            scores[f"tar_at_far_{far}{suffix}"] = verified.tar_at(far)
        found = task.retrieved(codes, seen, k=_TOP, metric=metric, whole_ranking=True)
        scores[f"top1{suffix}"] = found.precision_at(1)
        scores[f"top{_TOP}{suffix}"] = found.precision_at(_TOP)
        scores[f"map{suffix}"] = found.mean_average_precision
    if found.num_unanswerable:
        say(f"{found.num_unanswerable:,} queries have nothing to find and are not scored")
    say("clustering")
    clusters = cluster_scores(codes)
    scores |= {"nmi": clusters.nmi, "ari": clusters.ari}
    once = {"sd": None, "n": 1, "repeated": "runs"}
    return [row(method, name, {"mean": value, **once}) for name, value in scores.items()]


def _gallery(task: OneShotTask, encode: Encode, num: int, seed: int) -> Labelled:
    """A random part of the transformed validation images, for what needs many labels."""
    members = task.validation.num_members
    total = len(task.validation) * members
    chosen = torch.randperm(total, generator=stream("gallery", seed))[:num]
    chosen = chosen.to(task.validation.device)
    orbit, member = chosen // members, chosen % members
    assert task.validation.labels_N is not None
    codes = encode_members(encode, task.validation, orbit, member)
    return Labelled(codes, task.validation.labels_N[orbit])
