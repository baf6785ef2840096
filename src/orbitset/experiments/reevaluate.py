"""Look at a trained run again: few-shot, k-NN and linear probe, with whatever numbers are asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch

from orbitset.errors import ConfigError, DataError
from orbitset.evaluation.labelled import Labelled, Metric
from orbitset.evaluation.one_shot import knn_accuracy, linear_probe_accuracy
from orbitset.experiments.single import build_task, load_run, orbits_of_test, row
from orbitset.experiments.task import Encode, OneShotTask, encode_members, encoding_with
from orbitset.runs import Run
from orbitset.seeds import stream

_SUFFIX: dict[Metric, str] = {"euclidean": "", "cosine": "_cosine"}


def evaluate_run(
    run: Run,
    *,
    shots: tuple[int, ...] = (1, 5),
    neighbours: int = 5,
    draws: int = 100,
    gallery_images: int = 5_000,
    test_images: int | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Rows for a trained encoder. Few-shot sets are drawn as in training, so one shot gives its numbers;
    k-NN and the probe label a random part of the validation images."""
    config, model, splits = load_run(run, device=device)
    if splits.test.labels is None:
        raise DataError("few-shot evaluation needs class labels, and these images have none")
    evaluation = replace(
        config.evaluation,
        draws=draws,
        test_images=test_images or config.evaluation.test_images,
    )
    config = replace(config, evaluation=evaluation)
    test = orbits_of_test(config, splits, device)
    encode = encoding_with(model, precision=config.train.precision)
    try:
        tasks = {count: build_task(config, splits, test, shots=count) for count in shots}
    except ValueError as error:
        raise ConfigError(str(error)) from None
    first = next(iter(tasks.values()))
    say(f"encoding {len(first.query_orbit):,} queries and labelled images")
    queries = first.encode_queries(encode)
    rows = []
    for count, task in tasks.items():
        name = "accuracy" if count == 1 else f"accuracy_{count}shot"
        for metric, accuracy in task.scores_of(queries, encode, get_args(Metric)).items():
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
