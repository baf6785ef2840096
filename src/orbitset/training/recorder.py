"""What is written of a training while it runs: metrics, times and checkpoints, in the folder of its run."""

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
    progress: Progress
    label: str
    step: int = 0
    """The number of steps that are done"""
    monitor: Monitor = field(default_factory=Monitor)


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
        keeps_weights: bool = True,
        checkpoint_every_s: float = 60.0,
    ) -> None:
        self.run = run
        self.best_weights: Weights | None = None
        self._evaluate, self._evaluate_at, self._is_best = evaluate, evaluate_at, is_best
        self._resume, self._keeps_weights = resume, keeps_weights
        self._checkpoint_every_s = checkpoint_every_s
        self._evaluated = -1
        """The step of the last evaluation"""
        self._saved_at = self._evaluated_at = time.monotonic()

    def begin(self, training: Training) -> None:
        elapsed_s, watched = 0.0, None
        if self._resume and has_checkpoint(self.run.checkpoints):
            saved, self.best_weights = load_checkpoint(
                self.run.checkpoints, training.learner, training.progress.note
            )
            training.step, self._evaluated = saved["step"], saved["evaluated"]
            training.monitor = Monitor(saved["sums"], saved["steps_summed"], training.step)
            elapsed_s, watched = saved["elapsed_s"], saved.get("watched")
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
        about = getattr(training.learner.loss, "about_terms", {})
        self._watch = TermWatch(training.steps, about, watched)
        if words := explained(about):
            training.progress.note(f"note: {training.label}, terms of the loss: {words}")
        self._saved_at = time.monotonic()
        self._evaluated_at = self._saved_at - elapsed_s

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
        with pause, training.learner.average.shown():
            metrics = _evaluated(self._evaluate, model, step)
        batches.position = step
        record: dict[str, Any] = {
            "step": step,
            "images": batches.images_before(step),
            "epoch": batches.epoch,
        }
        record |= {**metrics, "terms": means}
        records = [*self.run.records(), record] if self._is_best is not None else []
        self.run.append("metrics.jsonl", record)
        elapsed_s = round(time.monotonic() - self._evaluated_at, 3)
        self.run.append("timing.jsonl", {"step": step, "elapsed_s": elapsed_s})
        self._evaluated, self._evaluated_at = step, time.monotonic()
        if self._is_best is not None and self._is_best(records):
            with training.learner.average.shown():
                state = model.state_dict()
                self.best_weights = {
                    name: value.to("cpu", copy=True) for name, value in state.items()
                }
        self._write(training)

    def save(self, training: Training) -> None:
        if training.step in self._evaluate_at:
            return  # which needs the sums, and writes a checkpoint
        if self._watch.is_due(training.step):
            self._look(training)
        if time.monotonic() - self._saved_at > self._checkpoint_every_s:
            self._write(training)

    def _write(self, training: Training) -> None:
        if not self._keeps_weights:
            return
        training.monitor.check()
        sums, steps_summed = training.monitor.state
        progress = {
            "step": training.step,
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
            if kind not in self._said:
                self._said.add(kind)
                self.run.append(NOTES, {"step": step, "kind": kind, "text": text})
                training.progress.note(f"note: {training.label}, step {step:,}: {text}")


def _evaluated(evaluate: Evaluate, model: nn.Module, step: int) -> dict[str, Any]:
    model.eval()
    try:
        return evaluate(model)
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
