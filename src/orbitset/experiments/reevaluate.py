"""Look at a trained run again: few-shot, k-NN and linear probe, with whatever numbers are asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch

from orbitset.errors import ConfigError, DataError
from orbitset.evaluation.labelled import Labelled, Metric
from orbitset.evaluation.one_shot import knn_accuracy, linear_probe_accuracy
from orbitset.experiments.single import build_task, load_run, row, test_orbits
from orbitset.experiments.task import encode_members, encoding_with
from orbitset.runs import Run
from orbitset.seeds import stream


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
    """Rows for a trained encoder; labelled images are transformed validation images, as in training."""
    config, model, splits = load_run(run, device=device)
    if splits.test.labels is None:
        raise DataError("few-shot evaluation needs class labels, and these images have none")
    queries_wanted = test_images or config.evaluation.test_images
    config = replace(config, evaluation=replace(config.evaluation, test_images=queries_wanted))
    task = build_task(config, splits, test_orbits(config, splits, device))
    encode = encoding_with(model, precision=config.train.precision)
    say(f"encoding {len(task.query_orbit):,} queries and up to {gallery_images:,} labelled images")
    queries = task.encode_queries(encode)
    total = len(task.validation) * task.validation.num_members
    rows_drawn = torch.randperm(total, generator=stream("gallery", config.evaluation.seed))
    chosen = rows_drawn[:gallery_images].to(device)
    orbit, member = chosen // task.validation.num_members, chosen % task.validation.num_members
    labels = task.validation.labels_N
    assert labels is not None
    gallery = Labelled(encode_members(encode, task.validation, orbit, member), labels[orbit])

    rows = []
    for metric in get_args(Metric):
        suffix = "" if metric == "euclidean" else "_cosine"
        for count in shots:
            try:
                few = knn_accuracy(gallery, queries, k=1, shots=count, draws=draws, metric=metric)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            name = "accuracy" if count == 1 else f"accuracy_{count}shot"
            rows.append(row(config.method, name + suffix, few.summary()))
        nearest = knn_accuracy(gallery, queries, k=min(neighbours, len(gallery)), metric=metric)
        rows.append(row(config.method, f"knn{neighbours}_accuracy{suffix}", nearest.summary()))
    say("fitting the linear probe")
    probe = linear_probe_accuracy(gallery, queries)
    rows.append(row(config.method, "probe_accuracy", probe.summary()))
    return rows
