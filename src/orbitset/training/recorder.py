"""What is written of a training while it runs: metrics, times and checkpoints, in the folder of its run."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from orbitset.errors import RunError, TrainingError
from orbitset.run_folder import Run
from orbitset.training.checkpoint import (
    Learner,
    Weights,
    has_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from orbitset.training.monitors import Monitor
from orbitset.training.notes import TermWatch, explained
from orbitset.training.progress import Progress

Evaluate = Callable[[nn.Module], dict[str, Any]]
_FILES = ("metrics.jsonl", "timing.jsonl")
NOTES = "notes.jsonl"
_LAST_PART = 10
"""A training that ends early takes a tenth of its steps so far to let the learning rate fall to zero"""


class Batches(Protocol):
    """What training needs of batches: `orbitset.orbits.OrbitBatches` is one kind."""

    position: int

    @property
    def epoch(self) -> float: ...
    def images_before(self, position: int) -> int: ...
    def batch(self, index: int) -> Any: ...


@dataclass
class Training:
    """A training under way."""

    learner: Learner
    batches: Batches
    steps: int
    """The number of steps after which it ends"""
    progress: Progress
    label: str
    step: int = 0
    """The number of steps that are done"""
    is_stopped: bool = False
    """Whether it ends now, although not all steps are done"""
    slowing_from: int | None = None
    """The step from which the learning rate falls to zero, where the end was brought forward"""
    monitor: Monitor = field(default_factory=Monitor)

    @property
    def rate_share(self) -> float:
        """The share of the scheduled learning rate that the next step takes."""
        if self.slowing_from is None:
            return 1.0
        return (self.steps - self.step) / (self.steps - self.slowing_from)

    def end_early(self) -> bool:
        """Bring the end forward, unless it is as near; gives whether it was brought forward."""
        end = self.step + math.ceil(self.step / _LAST_PART)
        if self.slowing_from is not None or end >= self.steps:
            return False
        self.slowing_from, self.steps = self.step, end
        self.progress.shorten(end)
        return True


class Recorder(Protocol):
    """What `fit` tells of a training, and where it begins."""

    def begin(self, training: Training) -> None:
        """Set the step, the monitor and the weights, if the training goes on from a checkpoint."""

    def is_due(self, step: int) -> bool:
        """Whether an evaluation is due after so many steps; 0 is before training."""

    def evaluate(self, training: Training) -> None:
        """Evaluate the model and write what comes of it."""

    def save(self, training: Training) -> None:
        """Write a checkpoint, if it is time for one."""


class Unrecorded:
    """A recorder that evaluates and writes nothing."""

    def begin(self, training: Training) -> None: ...
    def is_due(self, step: int) -> bool:
        return False

    def evaluate(self, training: Training) -> None: ...
    def save(self, training: Training) -> None: ...


class RunRecorder:
    """Evaluates at certain steps, and writes metrics, times and checkpoints into the folder of a run.

    `evaluate` is called with the model; its numbers go to `metrics.jsonl` with the mean terms since the last
    evaluation. A checkpoint is written at every evaluation, and every so often between them. With `resume`
    the training goes on from the latest: on a CPU what follows is bit for bit what would have followed.
    Without `keeps_weights` no checkpoint is written, and a resumed training starts anew. What the terms show
    (`orbitset.training.notes`) is said once and written to `notes.jsonl`.

    `ends_at` is a time of the monotonic clock by which the training should have ended: it ends early if it
    would not.

    `is_interrupted` is asked after every step. If it says so, the training ends there, with a checkpoint from
    which it can go on; `stopped_at` is the step.

    `why_end` is called with all records after an evaluation. If it gives a reason, the training ends soon:
    see `Training.end_early`.

    `is_best` is called with all records after an evaluation. If it says so, the weights are kept as
    `best_weights`. They lie in the checkpoints, so that they always belong to the records that a resumed
    training goes on from.
    """

    def __init__(
        self,
        run: Run,
        *,
        evaluate: Evaluate | None = None,
        evaluate_at: Collection[int] = (),
        is_best: Callable[[Sequence[dict[str, Any]]], bool] | None = None,
        resume: bool = False,
        why_end: Callable[[Sequence[dict[str, Any]]], str | None] = lambda records: None,
        is_interrupted: Callable[[], bool] = lambda: False,
        ends_at: float = math.inf,
        keeps_weights: bool = True,
        checkpoint_every_s: float = 60.0,
    ) -> None:
        self.run = run
        self.best_weights: Weights | None = None
        self.stopped_at: int | None = None
        self._is_interrupted, self._ends_at = is_interrupted, ends_at
        self._evaluate, self._evaluate_at, self._is_best = evaluate, {*evaluate_at}, is_best
        self._why_end = why_end
        self._resume, self._keeps_weights = resume, keeps_weights
        self._checkpoint_every_s = checkpoint_every_s
        self._evaluated = -1
        """The step of the last evaluation"""
        self._saved_at = self._evaluated_at = time.monotonic()

    def begin(self, training: Training) -> None:
        planned, elapsed_s, watched = training.steps, 0.0, None
        if self._resume and has_checkpoint(self.run.checkpoints):
            saved, self.best_weights = load_checkpoint(
                self.run.checkpoints, training.learner, training.progress.note
            )
            training.step, self._evaluated = saved["step"], saved["evaluated"]
            training.monitor = Monitor(saved["sums"], saved["steps_summed"], training.step)
            elapsed_s, watched = saved["elapsed_s"], saved.get("watched")
            training.steps = saved.get("steps", training.steps)
            training.slowing_from = saved.get("slowing_from")
            self._evaluate_at.add(training.steps)
        for name in _FILES:
            self.run.rewind(name, self._evaluated)
        if max((record["step"] for record in self.run.records()), default=-1) != self._evaluated:
            raise RunError(
                f"{self.run.path} does not hold the metrics that belong to its checkpoint",
                hint="start anew with --overwrite",
            )
        if (self.run / NOTES).exists():
            self.run.rewind(NOTES, training.step)
        self._said = {record["kind"] for record in self.run.records(NOTES)}
        about = training.learner.loss.about_terms
        self._watch = TermWatch(planned, about, watched)
        if words := explained(about):
            training.progress.note(f"note: {training.label}, terms of the loss: {words}")
        self._begun_at, self._begun_step = time.monotonic(), training.step
        self._saved_at = self._begun_at
        self._evaluated_at = self._saved_at - elapsed_s
        if training.step:
            self._stop_if_interrupted(training)

    def is_due(self, step: int) -> bool:
        return self._evaluate is not None and step in self._evaluate_at and step > self._evaluated

    def evaluate(self, training: Training) -> None:
        assert self._evaluate is not None
        model, step, batches = training.learner.model, training.step, training.batches
        training.monitor.check()
        self._look(training)
        means = training.monitor.flush()
        self._watch.flush()
        pause = training.progress.pause(f"{training.label}: evaluating at step {step}")
        with pause, training.learner.kept():
            record = evaluated(self._evaluate, model, batches, step) | {"terms": means}
        records = [*self.run.records(), record]
        self.run.append("metrics.jsonl", record)
        elapsed_s = round(time.monotonic() - self._evaluated_at, 3)
        self.run.append("timing.jsonl", {"step": step, "elapsed_s": elapsed_s})
        self._evaluated, self._evaluated_at = step, time.monotonic()
        if self._is_best is not None and self._is_best(records):
            with training.learner.kept():
                self.best_weights = training.learner.weights()
        if reason := self._why_end(records):
            self._end_early(training, reason)
        self._write(training)

    def save(self, training: Training) -> None:
        self._stop_if_interrupted(training)
        if self._is_time_up(training.step):
            self._end_early(training, "the time is nearly up")
        if training.step in self._evaluate_at:
            return  # which needs the sums, and writes a checkpoint
        if self._watch.is_due(training.step):
            self._look(training)
        is_time = time.monotonic() - self._saved_at > self._checkpoint_every_s
        if is_time or training.is_stopped:
            self._write(training)

    def _stop_if_interrupted(self, training: Training) -> None:
        if training.step < training.steps and self._is_interrupted():
            training.is_stopped, self.stopped_at = True, training.step

    def _write(self, training: Training) -> None:
        if not self._keeps_weights:
            return
        training.monitor.check()
        sums, steps_summed = training.monitor.state
        progress = {
            "step": training.step,
            "steps": training.steps,
            "slowing_from": training.slowing_from,
            "evaluated": self._evaluated,
            "sums": sums,
            "steps_summed": steps_summed,
            "elapsed_s": time.monotonic() - self._evaluated_at,
            "watched": self._watch.state,
        }
        save_checkpoint(self.run.checkpoints, training.learner, progress, best=self.best_weights)
        self._saved_at = time.monotonic()

    def _look(self, training: Training) -> None:
        """Say and write what the terms show, each kind of it once."""
        step, is_last = training.step, training.step == training.steps
        for kind, text in self._watch.look(step, training.monitor, is_last=is_last).items():
            self._say(training, kind, text)

    def _is_time_up(self, step: int) -> bool:
        """Whether the time left is what an early end takes."""
        if self._ends_at == math.inf:
            return False
        now = time.monotonic()
        step_s = (now - self._begun_at) / (step - self._begun_step)
        return now + step_s * step / _LAST_PART > self._ends_at

    def _end_early(self, training: Training, reason: str) -> None:
        planned = training.steps
        if training.end_early():
            self._evaluate_at.add(training.steps)
            text = f"{reason}; the training ends after {training.steps:,} of {planned:,} steps"
            self._say(training, "early end", text)

    def _say(self, training: Training, kind: str, text: str) -> None:
        """Say and write something, once."""
        step = training.step
        if kind not in self._said:
            self._said.add(kind)
            self.run.append(NOTES, {"step": step, "kind": kind, "text": text})
            training.progress.note(f"note: {training.label}, step {step:,}: {text}")


def evaluated(evaluate: Evaluate, model: nn.Module, batches: Batches, step: int) -> dict[str, Any]:
    """The record of an evaluation: how much was trained, and the scores of the model."""
    model.eval()
    try:
        scores = evaluate(model)
    except ValueError as error:
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        if weights.isfinite().all():
            raise
        raise TrainingError(
            f"the weights were not finite after step {step}; training stopped",
            hint="lower the learning rate with --set train.learning_rate=…",
        ) from error
    finally:
        model.train()
    batches.position = step
    images = batches.images_before(step)
    return {"step": step, "images": images, "epoch": batches.epoch, **scores}
