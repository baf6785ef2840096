"""Training, as one loop to be read from top to bottom."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from orbitset.config import replacing
from orbitset.errors import ConfigError, RunError, TrainingError, check_choice
from orbitset.precision import Precision, in_bfloat16
from orbitset.run_folder import Run
from orbitset.training.checkpoint import load_checkpoint, save_checkpoint
from orbitset.training.monitors import Monitor, collapse_warning
from orbitset.training.optimizer import adam, groups_of, set_rate
from orbitset.training.progress import Progress, Silent
from orbitset.training.schedule import Schedule, learning_rate
from orbitset.training.steps import Engine, choose_steps

Keep = Literal["last", "best"]
_LOOK_EVERY = 20
"""Steps between looks at the terms on a GPU, each of which waits for it."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how fast."""

    epochs: float = 1.0
    """An epoch shows every member of every orbit once."""
    learning_rate: float = 1e-3
    transformer_rate: float = 1.0
    """Of a spatial transformer, as a share of that: rates that the encoder bears may freeze it."""
    backbone_rate: float = 1.0
    """Of a backbone other than the paper's, as a share too: a small one for weights that are good already"""
    classifier_rate: float = 1.0
    """Of the classifier learned beside the codes by EX or for class labels: a slow one leaves them work"""
    adam_eps: float = 1e-12
    """Below torch's 1e-8: the equation's 1/d makes gradients so small that it would slow them down."""
    schedule: Schedule = "cosine"
    warmup_steps: int = 100
    """At most a tenth of the training."""
    evaluations: int = replacing("evaluate_at", 10, empty=())
    """Evaluations during training, evenly spaced, besides the one before it."""
    evaluate_at: tuple[float, ...] = ()
    """If any, evaluate at these epochs and at the end instead."""
    keep: Keep = "last"
    """The weights at the end, or where there are validation images of observed orbits those that were best on
    them"""
    checkpoint_every_s: float = 60.0
    precision: Precision = "auto"
    """auto: bfloat16 convolutions where the hardware has them, GPU or CPU, else float32"""
    engine: Engine = "auto"
    """auto: the fastest way a GPU has; reference: plain torch code; fast: an error where there is none"""

    def __post_init__(self) -> None:
        if not self.epochs > 0:
            raise ConfigError(f"train.epochs is {self.epochs}; give a number above 0")
        if not self.learning_rate > 0:
            raise ConfigError(f"train.learning_rate is {self.learning_rate}; give a number above 0")
        for name in ("transformer_rate", "backbone_rate", "classifier_rate"):
            if not 0 <= (share := getattr(self, name)) < math.inf:
                raise ConfigError(f"train.{name} is {share}; give a share of the learning rate")
        check_choice("train.schedule", self.schedule, get_args(Schedule))
        check_choice("train.precision", self.precision, get_args(Precision))
        check_choice("train.keep", self.keep, get_args(Keep))
        check_choice("train.engine", self.engine, get_args(Engine))
        for name in ("warmup_steps", "checkpoint_every_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"train.{name} is {getattr(self, name)}; give at least 0")
        if self.evaluations < 1:
            raise ConfigError(f"train.evaluations is {self.evaluations}; give at least 1")
        if any(not epoch > 0 for epoch in self.evaluate_at):
            raise ConfigError(f"train.evaluate_at is {self.evaluate_at}; give epochs above 0")
        if not self.adam_eps > 0:
            raise ConfigError(f"train.adam_eps is {self.adam_eps}; give a number above 0")


class Objective(Protocol):
    """What is minimised: see `orbitset.losses.methods`."""

    uses_rectified: bool

    def __call__(
        self, codes: Tensor, batch: Any, rectified: Tensor | None
    ) -> Mapping[str, Tensor]: ...


class Batches(Protocol):
    """What `fit` asks of batches: `orbitset.orbits.OrbitBatches` is one kind."""

    position: int

    @property
    def epoch(self) -> float: ...
    def images_before(self, position: int) -> int: ...
    def batch(self, index: int) -> Any: ...


def fit(
    model: nn.Module,
    loss: nn.Module,
    batches: Batches,
    *,
    steps: int,
    peak_learning_rate: float = 1e-3,
    rate_shares: Mapping[str, float] | None = None,
    adam_eps: float = 1e-12,
    schedule: Schedule = "cosine",
    warmup_steps: int = 100,
    precision: Precision = "auto",
    engine: Engine = "auto",
    evaluate: Callable[[nn.Module], dict[str, Any]] | None = None,
    evaluate_at: Collection[int] = (),
    run: Run | None = None,
    resume: bool = False,
    checkpoint_every_s: float = 60.0,
    keep_state: bool = True,
    progress: Progress | None = None,
    label: str = "training",
) -> None:
    """Minimise the objective over `steps` batches with Adam.

    The learning rate is `learning_rate(step, …)` with at most a tenth of the steps for warming up;
    `rate_shares` gives parts of the model and of the loss a share of it: see `orbitset.training.optimizer`.
    `evaluate` is called with the model at the steps in `evaluate_at` (0 is before training) and its
    numbers go to the run's metrics with the mean terms since the last evaluation. With a run, state is
    saved at evaluations and every so often; `resume` goes on from there, and on a CPU what follows is
    bit for bit what would have followed; without `keep_state` no weights are written, and it starts anew.
    `engine` chooses how a step is carried out, not what it does:
    see `orbitset.training.steps`.
    """
    if steps < 0 or steps != int(steps):
        raise ValueError(f"steps is {steps}; give a whole number of at least 0")
    progress = progress or Silent()
    device = next(model.parameters()).device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    use_bfloat16 = in_bfloat16(precision, device)
    optimizer = adam(
        groups_of(model, loss, rate_shares=rate_shares), rate=peak_learning_rate, eps=adam_eps
    )
    step, monitor, elapsed_s = 0, Monitor(), 0.0

    if run is not None and resume and run.checkpoint.exists():
        saved = load_checkpoint(run.checkpoint, model=model, loss=loss, optimizer=optimizer)
        step = saved["step"]
        monitor = Monitor(saved["sums"], saved["steps_summed"], step)
        elapsed_s = saved["elapsed_s"]
        run.rewind("metrics.jsonl", saved["evaluated"])
        run.rewind("timing.jsonl", saved["evaluated"])
        if max((record["step"] for record in run.records()), default=-1) != saved["evaluated"]:
            raise RunError(
                f"{run.path} does not hold the metrics that belong to its checkpoint",
                hint="start anew with --overwrite",
            )
    elif run is not None:
        run.rewind("metrics.jsonl", -1)
        run.rewind("timing.jsonl", -1)
    evaluated = max((r["step"] for r in run.records()), default=-1) if run is not None else step - 1
    saved_at = time.monotonic()
    evaluated_at = saved_at - elapsed_s

    def save() -> None:
        nonlocal saved_at
        if run is None or not keep_state:
            return
        monitor.check()
        sums, steps_summed = monitor.state
        state = {
            "step": step,
            "evaluated": evaluated,
            "sums": sums,
            "steps_summed": steps_summed,
            "elapsed_s": time.monotonic() - evaluated_at,
        }
        save_checkpoint(run.checkpoint, model=model, loss=loss, optimizer=optimizer, progress=state)
        saved_at = time.monotonic()

    do_step, how = choose_steps(
        engine,
        model,
        loss,
        optimizer,
        batches,
        monitor,
        use_bfloat16=use_bfloat16,
        note=lambda message: progress.note(f"{label}: {message}"),
    )
    if device.type == "cuda":
        progress.note(f"{label}: {how}")
    images_at_start, times_collapsed = batches.images_before(step), 0
    model.train()
    progress.start(label, steps, step)
    try:
        while True:
            if step in evaluate_at and step > evaluated and evaluate is not None:
                monitor.check()
                means = monitor.flush()
                warning = collapse_warning(means)
                times_collapsed = times_collapsed + 1 if warning else 0
                # codes often begin on a line and leave it: said once, when they stay
                if times_collapsed == 2 or (times_collapsed == 1 and step == steps):
                    progress.note(f"warning: {label}, step {step}: {warning}")
                with progress.pause(f"{label}: evaluating at step {step}"):
                    metrics = _evaluate(evaluate, model, step)
                batches.position = step
                record = {
                    "step": step,
                    "images": batches.images_before(step),
                    "epoch": batches.epoch,
                    **metrics,
                    "terms": means,
                }
                if run is not None:
                    run.append("metrics.jsonl", record)
                    elapsed_s = time.monotonic() - evaluated_at
                    run.append("timing.jsonl", {"step": step, "elapsed_s": round(elapsed_s, 3)})
                evaluated, evaluated_at = step, time.monotonic()
                save()
            if step == steps:
                break

            rate = learning_rate(
                step,
                peak=peak_learning_rate,
                total_steps=steps,
                warmup_steps=min(warmup_steps, steps // 10),
                schedule=schedule,
            )
            set_rate(optimizer, rate)
            terms = do_step(step)
            step += 1

            if device.type == "cpu" or step % _LOOK_EVERY == 0 or step == steps:
                monitor.check()
                images = batches.images_before(step) - images_at_start
                progress.update(step, images, {k: float(v) for k, v in terms.items()})
            # at an evaluation what was watched is still needed; it saves itself when done
            if time.monotonic() - saved_at > checkpoint_every_s and step not in evaluate_at:
                save()
    finally:
        progress.stop()
    batches.position = step


def _evaluate(
    evaluate: Callable[[nn.Module], dict[str, Any]], model: nn.Module, step: int
) -> dict[str, Any]:
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
