"""What a finished run says of its model, so that it can be used without the run: model.json and a card."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitset.encoders import Encoder
from orbitset.errors import DataError
from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.verification import verify
from orbitset.experiments.computed import ComputedTask
from orbitset.experiments.config import Experiment
from orbitset.experiments.observed import ObservedTask
from orbitset.experiments.task import encode_members, encoding_with
from orbitset.files import write_atomically
from orbitset.models import (
    Calibration,
    Description,
    Input,
    Network,
    Point,
    Trained,
    describe_card,
)
from orbitset.models.description import identify
from orbitset.models.folder import write_description
from orbitset.runs import Run
from orbitset.seeds import stream

_FARS = (0.001, 0.01, 0.05)
_MOST_IMAGES = 4_000
"""Compared with one another; more would say the same"""
_ORBITS, _MEMBERS = 300, 4
_MOST_NAMED = 4
_SCORES = ("auc", "top1", "accuracy", "accuracy_cosine")


def describe_model(
    config: Experiment,
    task: ComputedTask | ObservedTask,
    run: Run,
    model: Encoder,
    rows: list[dict[str, Any]],
) -> None:
    """Write model.json and model-card.md beside the weights."""
    channels, size_px = task.image_shape
    records = run.records()
    environment = run.read_json("environment.json")
    shown = Input(size_px=size_px, channels=channels, image_px=_image_px(task))
    network = Network(encoder=config.encoder, has_transformer=config.has_transformer)
    description = Description(
        id=identify(model.state_dict(), network, shown),
        input=shown,
        network=network,
        trained=Trained(
            name=config.name,
            data=Path(config.data).name,
            method=config.method,
            seed=config.seed,
            images=records[-1]["images"],
            init=environment.get("init"),
            commit=environment["commit"],
            versions=environment["versions"],
            scores=_means(rows, config.method),
            baselines=_means(rows, "pixels"),
        ),
        calibration=_calibrated(task, model),
    )
    write_atomically(run / "model-card.md", describe_card(description).encode())
    write_description(run.path, description)


def _image_px(task: ComputedTask | ObservedTask) -> int | None:
    if isinstance(task, ObservedTask):
        return None
    return max(task.splits.train.images.shape[-2:])


def _means(rows: list[dict[str, Any]], method: str) -> dict[str, float]:
    return {
        row["metric"]: row["mean"]
        for row in rows
        if row["method"] == method and row["metric"] in _SCORES and math.isfinite(row["mean"])
    }


def _calibrated(task: ComputedTask | ObservedTask, model: Encoder) -> Calibration | None:
    """Distances of pairs that were not trained on; None where there are none of both kinds."""
    codes, on = _observed(task, model) if isinstance(task, ObservedTask) else _computed(task, model)
    try:
        found = verify(codes, fars=_FARS)
    except (ValueError, DataError):
        return None
    return Calibration(
        auc=found.auc,
        equal_error_rate=found.eer,
        pairs=found.num_same + found.num_different,
        on=on,
        points=tuple(
            Point(far=point.asked_far, tar=point.tar, threshold=point.threshold)
            for point in found.points
            if point.threshold > -torch.inf
        ),
    )


def _observed(task: ObservedTask, model: Encoder) -> tuple[Labelled, str]:
    side = "va" if "va" in task.sides else "te"
    seen = task.sides[side]
    label = task.config.orbits.label
    assert label is not None
    if len(seen) > _MOST_IMAGES:  # whole labels, since members of one lie next to each other
        count = seen.factors[label].bincount()
        order = torch.randperm(len(count), generator=stream("calibration"))
        kept = order[count[order].cumsum(0) <= _MOST_IMAGES]
        kept = kept if len(kept) > 1 else order[:2]
        seen = seen[torch.isin(seen.factors[label], kept.to(seen.factors[label].device))]
    evaluation = task.config.evaluation
    values = evaluation.validation if side == "va" else evaluation.test
    held_out = f"{evaluation.split_by} {', '.join(values)}"
    if len(values) > _MOST_NAMED:
        held_out = f"{len(values):,} values of {evaluation.split_by}"
    on = f"images with {held_out}, where the same {label} is the same thing"
    return task.encode(encoding_with(model), seen), on


def _computed(task: ComputedTask, model: Encoder) -> tuple[Labelled, str]:
    count = min(_ORBITS, len(task.test))
    members = min(_MEMBERS, task.test.num_members)
    orbit: Tensor = torch.arange(count, device=task.test.device).repeat_interleave(members)
    member = torch.arange(members, device=task.test.device).repeat(count)
    codes = encode_members(encoding_with(model), task.test, orbit, member)
    return Labelled(
        codes, orbit
    ), "transformed test images, where versions of one are the same thing"
