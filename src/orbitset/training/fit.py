"""Training, as one loop to be read from top to bottom."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from orbitset.errors import ConfigError
from orbitset.runs import Run
from orbitset.training.checkpoint import load_checkpoint, save_checkpoint
from orbitset.training.monitors import Monitor, collapse_warning
from orbitset.training.progress import Progress, Silent
from orbitset.training.schedule import Schedule, learning_rate

_LOOK_EVERY = 20
"""Steps between looks at the terms on a GPU, each of which waits for it."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how fast."""

    epochs: float = 1.0
    """An epoch shows every member of every orbit once."""
    learning_rate: float = 1e-3
    schedule: Schedule = "cosine"
    warmup_steps: int = 100
    evaluations: int = 10
    """Evaluations during training, evenly spaced, besides the one before it."""
    checkpoint_every_s: float = 60.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 convolutions on a GPU, float32 on a CPU"""

    def __post_init__(self) -> None:
        if not self.epochs > 0:
            raise ConfigError(f"train.epochs is {self.epochs}; give a number above 0")
        if not self.learning_rate > 0:
            raise ConfigError(f"train.learning_rate is {self.learning_rate}; give a number above 0")
        if self.schedule not in ("constant", "linear", "cosine"):
            raise ConfigError(
                f"train.schedule is {self.schedule!r}; choose 'constant', 'linear' or 'cosine'"
            )
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ConfigError(
                f"train.precision is {self.precision!r}; choose 'auto', 'float32' or 'bfloat16'"
            )
        for name in ("warmup_steps", "evaluations", "checkpoint_every_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"train.{name} is {getattr(self, name)}; give at least 0")


class Encoder(Protocol):
    """What `fit` asks of a model."""

    def encode(self, images: Tensor) -> Tensor: ...


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
    schedule: Schedule = "cosine",
    warmup_steps: int = 100,
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    evaluate: Callable[[nn.Module], dict[str, Any]] | None = None,
    evaluate_at: Collection[int] = (),
    run: Run | None = None,
    resume: bool = False,
    checkpoint_every_s: float = 60.0,
    progress: Progress | None = None,
    label: str = "training",
) -> None:
    """Minimise the objective over `steps` batches with Adam.

    `evaluate` is called with the model at the steps in `evaluate_at` (0 is before training) and its
    numbers go to the run's metrics with the mean terms since the last evaluation. With a run, state is
    saved at evaluations and every so often; `resume` goes on from there, and on a CPU what follows is
    bit for bit what would have followed.
    """
    progress = progress or Silent()
    device = next(model.parameters()).device
    use_bfloat16 = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
    # The equation's 1/d makes gradients small; the usual eps of 1e-8 would slow them down further.
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], eps=1e-12)
    step, monitor = 0, Monitor()

    if run is not None and resume and run.checkpoint.exists():
        saved = load_checkpoint(run.checkpoint, model=model, loss=loss, optimizer=optimizer)
        step, monitor = saved["step"], Monitor(saved["sums"], saved["steps_summed"])
        run.rewind("metrics.jsonl", saved["evaluated"])
        run.rewind("timing.jsonl", saved["evaluated"])
    elif run is not None:
        run.rewind("metrics.jsonl", -1)
        run.rewind("timing.jsonl", -1)
    evaluated = max((r["step"] for r in run.records()), default=-1) if run is not None else step - 1
    saved_at = evaluated_at = time.monotonic()

    def save() -> None:
        nonlocal saved_at
        if run is None:
            return
        monitor.check()
        sums, steps_summed = monitor.state
        state = {
            "step": step,
            "evaluated": evaluated,
            "sums": sums,
            "steps_summed": steps_summed,
        }
        save_checkpoint(run.checkpoint, model=model, loss=loss, optimizer=optimizer, progress=state)
        saved_at = time.monotonic()

    model.train()
    progress.start(label, steps, step)
    try:
        while True:
            if step in evaluate_at and step > evaluated and evaluate is not None:
                monitor.check()
                means = monitor.flush()
                if warning := collapse_warning(means):
                    progress.note(f"warning: {label}, step {step}: {warning}")
                model.eval()
                metrics = evaluate(model)
                model.train()
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

            batch = batches.batch(step)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(
                    step,
                    peak=peak_learning_rate,
                    total_steps=steps,
                    warmup_steps=min(warmup_steps, steps // 10),
                    schedule=schedule,
                )
            with torch.autocast(device.type, torch.bfloat16, enabled=use_bfloat16):
                if loss.uses_rectified:
                    codes, rectified = model(batch.images)
                else:
                    codes, rectified = model.encode(batch.images), None  # type: ignore[operator]
            terms = loss(codes, batch, rectified)
            optimizer.zero_grad(set_to_none=True)
            terms["loss"].backward()
            optimizer.step()
            monitor.watch(step, terms, codes)
            step += 1

            if device.type == "cpu" or step % _LOOK_EVERY == 0 or step == steps:
                monitor.check()
                first = max(0, step - (1 if device.type == "cpu" else _LOOK_EVERY))
                images = batches.images_before(step) - batches.images_before(first)
                progress.update(step, images, {k: float(v.detach()) for k, v in terms.items()})
            if time.monotonic() - saved_at > checkpoint_every_s:
                save()
    except KeyboardInterrupt:
        save()
        raise
    finally:
        progress.stop()
    batches.position = step
