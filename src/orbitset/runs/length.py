"""How long a training is: its steps and evaluations, and how many of them fit into a given time here."""

import math
import statistics
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from orbitset.datasets.source import TableSource
from orbitset.encoders.config import HF
from orbitset.errors import ConfigError
from orbitset.orbits.batches import OrbitBatches
from orbitset.orbits.observed import ObservedOrbits
from orbitset.protocols.images import Opened
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.own_images import usable
from orbitset.runs.begin import built
from orbitset.runs.judge import Judge
from orbitset.runs.prepare import Images, build_model, build_objective, open_images
from orbitset.training.fit import fit
from orbitset.training.recorder import Batches, Training, Unrecorded

_TIMED_S = 2.0
"""How long steps are timed"""
_STEPS_AT_ONCE = {"cpu": 1, "cuda": 10}
"""Steps that are timed together: to look at each would slow a GPU down"""
_EVALUATED_SHARE = 0.25
"""The most of the time that evaluations take where a training is shortened"""
_AFTER_S, _AFTER_EVALUATIONS = 10.0, 2
"""What comes after the last evaluation: raw pixels, figures, thresholds and the report"""
_CAREFUL = 0.95
"""The share of the time that is planned: not every step takes as long as those that were timed"""


def num_steps(config: Experiment, images: Images) -> int:
    """The steps of a training as it is planned."""
    return max(1, images.batches.position_at(config.train.epochs))


def evaluation_steps(config: Experiment, images: Images) -> set[int]:
    """The steps after which a training is evaluated as it is planned."""
    steps, count = num_steps(config, images), config.train.evaluations
    if not config.train.evaluate_at:
        return {round(steps * i / count) for i in range(count + 1)}
    requested = {images.batches.position_at(epochs) for epochs in config.train.evaluate_at}
    return {0, steps} | {step for step in requested if step < steps}


@dataclass(frozen=True)
class Pace:
    """How long a step and an evaluation take here."""

    step_s: float
    evaluation_s: float

    @property
    def after_s(self) -> float:
        """How long it takes to make a model and a report of a training."""
        return _AFTER_S + _AFTER_EVALUATIONS * self.evaluation_s

    def __str__(self) -> str:
        return f"a step takes {self.step_s:.2g} s here and an evaluation {self.evaluation_s:.2g} s"


def measure(
    config: Experiment, model: nn.Module, loss: nn.Module, images: Images, judge: Judge
) -> Pace:
    """Time a few steps of copies, and an evaluation; twice if it is short, since the first is slower."""
    step_s = step_seconds(config, model, loss, images.batches)
    model.eval()
    durations: list[float] = []
    while not durations or (len(durations) < 2 and durations[0] < _TIMED_S):
        began_at = time.monotonic()
        judge.scores(judge.encoding(model))
        durations.append(time.monotonic() - began_at)
    return Pace(step_s, min(durations))


def step_seconds(config: Experiment, model: nn.Module, loss: nn.Module, batches: Batches) -> float:
    """How long a training step takes here, as measured on copies."""
    device = next(model.parameters()).device
    timed, position = _Timed(device), batches.position
    is_frozen = config.train.head_first == 1  # else all weights learn in the end
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        fit(
            *(deepcopy(model), deepcopy(loss), batches),
            steps=1_000_000,
            config=replace(config.train, head_first=float(is_frozen), unfreeze=0.0),
            rate_shares=config.rate_shares,
            recorder=timed,
        )
    batches.position = position
    return timed.step_s


class _Timed(Unrecorded):
    """A recorder that times steps, and stops the training after a few seconds."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._ends = device, [time.monotonic()]
        self._at_once = _STEPS_AT_ONCE[device.type]

    def save(self, training: Training) -> None:
        if training.step % self._at_once:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._ends.append(time.monotonic())
        training.is_stopped = (
            self._ends[-1] - self._ends[1] > _TIMED_S
        )  # one step more than the first

    @property
    def step_s(self) -> float:
        """The median without the first steps, which are slower."""
        durations = [end - start for start, end in zip(self._ends, self._ends[1:], strict=False)]
        return statistics.median(durations[1:]) / self._at_once


def shortened(config: Experiment, images: Images, pace: Pace, seconds: float) -> Experiment:
    """The experiment, with as many steps and evaluations as there is time for; itself if it is short enough.

    Its evaluations are evenly spaced then.
    """
    steps, num = num_steps(config, images), len(evaluation_steps(config, images))
    left = seconds - pace.after_s - pace.evaluation_s  # one is before the first step
    if steps * pace.step_s + (num - 1) * pace.evaluation_s <= left:
        return config
    num = max(1, min(num - 1, int(_EVALUATED_SHARE * left / pace.evaluation_s)))
    steps = int(_CAREFUL * (left - num * pace.evaluation_s) / pace.step_s)
    if steps < 1:
        needed = pace.after_s + 2 * pace.evaluation_s + pace.step_s / _CAREFUL - seconds
        raise ConfigError(
            f"the time is too short: {pace}, a model and a report {pace.after_s:.2g} s; give at least "
            f"{math.ceil(needed / 6) / 10:g} minutes more"
        )
    epochs = images.batches.images_before(steps) / images.batches.images_per_epoch
    train = replace(config.train, epochs=epochs, evaluations=num, evaluate_at=())
    return replace(config, train=train)


def estimated(config: Experiment, source: Opened, device: str) -> tuple[int, float] | None:
    """How many images a training would show, and how many seconds its steps would take here.

    The images of a table are not decoded for it. None for a network that would have to be fetched.
    """
    if config.encoder.backbone.startswith(HF):
        return None
    config = replace(config, encoder=replace(config.encoder, is_pretrained=False))
    if isinstance(source.source, TableSource):
        parts = config.evaluation
        table = usable(source.source.table(), config.observed)
        num_images = len(table.where(parts.split_by, parts.train)) * config.train.epochs
        images: Any = _imagined(config, device)
    else:
        images = open_images(config, device, source=source)
        num_images = images.batches.images_before(num_steps(config, images))
    model = build_model(config, images).to(device)
    config = built(config, model)
    loss = build_objective(config, images).to(device)
    step_s = step_seconds(config, model, loss, images.batches)
    per_step = config.orbits.orbits_per_batch * config.orbits.members_per_batch
    return round(num_images), step_s * num_images / per_step


def _imagined(config: Experiment, device: str) -> Any:
    """Images of noise, as many as a batch has."""
    orbits = config.observed
    count, members, size_px = orbits.orbits_per_batch, orbits.members_per_batch, orbits.size_px
    assert size_px is not None
    shape = (3 if orbits.is_colour else 1, size_px)
    pixels = torch.randint(0, 256, (count * members, *shape, size_px), dtype=torch.uint8)
    orbit_N = torch.arange(count).repeat_interleave(members)
    first_O = torch.arange(count) * members
    batches = OrbitBatches(
        ObservedOrbits(pixels, orbit_N, first_O, torch.arange(count), device=device),
        orbits_per_batch=count,
        members_per_batch=members,
        augmentation=orbits.augmentation,
    )
    return SimpleNamespace(image_shape=shape, batches=batches)
