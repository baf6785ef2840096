"""One method, trained once: from a configuration to a finished run folder."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from orbitset.config import differences, to_dict
from orbitset.encoders import Encoder, EncoderConfig, build_encoder
from orbitset.encoders.backbone import check_restorable
from orbitset.encoders.rectifying import PAPERS
from orbitset.errors import ConfigError, RunError
from orbitset.experiments.computed import ComputedTask
from orbitset.experiments.config import (
    Experiment,
    ExperimentConfig,
    read_experiment,
)
from orbitset.experiments.kept import describe_model
from orbitset.experiments.observed import ObservedTask
from orbitset.experiments.rows import criterion, eligible
from orbitset.files import write_atomically
from orbitset.losses.methods import build_loss
from orbitset.models import load_model_folder
from orbitset.models.folder import read_description
from orbitset.orbits.batches import OrbitBatches
from orbitset.runs import Run
from orbitset.seeds import stable_seed, stream
from orbitset.training.checkpoint import load_model, save_model
from orbitset.training.fit import fit
from orbitset.training.progress import Progress, Silent

T = TypeVar("T")
_TELL_EVERY_S = 5.0
_NAMED = 3
"""Of many runs in a folder, so many are named."""


class Task(Protocol):
    """What a kind of experiment brings: what is learned from, and how it is scored."""

    batches: OrbitBatches
    image_shape: tuple[int, int]
    """Channels, and pixels of a side"""

    def evaluate(self, model: nn.Module) -> dict[str, Any]: ...

    def rows(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]: ...

    def arrays(self, model: Encoder) -> bytes: ...


def build_task(
    config: Experiment, device: str, progress: Progress | None = None
) -> ComputedTask | ObservedTask:
    """Load the data and make everything ready."""
    if isinstance(config, ExperimentConfig):
        return ComputedTask(config, device)
    return ObservedTask(config, device, None if progress is None else _told(config.data, progress))


def _told(data: str, progress: Progress) -> Callable[[int, int], None]:
    """Says every few seconds how far the making of images has come."""
    said_at = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at > _TELL_EVERY_S and done < total:
            said_at = time.monotonic()
            progress.note(f"{data}: preparing images, {done / total:.0%}")

    return tell


def train(
    config: Experiment,
    run: Run,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train, evaluate and write the run folder; gives what results.json holds."""
    progress = progress or Silent()
    if not (resume and run.exists):
        run.check_free(overwrite=overwrite)
    task = build_task(config, device, progress)
    batches = task.batches
    model = build_model(config, task)
    if config.init is not None and not (resume and run.exists):
        _begin_with(model, config.encoder, config.init)
    model = model.to(device)
    loss = _seeded(
        "loss",
        config.seed,
        lambda: build_loss(
            config.objective,
            config.loss,
            default_margin=config.margin,
            code_size=config.encoder.code_size,
            num_orbits=len(batches.orbits),
            num_classes=_num_classes(batches.orbits.labels_N),
        ),
    ).to(device)
    keeps_best = config.keeps_best and config.keeps_weights
    with run.locked():
        if _is_finished(config, task, run, resume=resume, overwrite=overwrite, device=device):
            results: dict[str, Any] = run.read_json("results.json")
            return results
        _say_left_out(task, run, progress)
        steps = max(1, batches.position_at(config.train.epochs))
        with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
            torch.manual_seed(stable_seed("training", config.seed))
            fit(
                model,
                loss,
                batches,
                steps=steps,
                peak_learning_rate=config.train.learning_rate,
                rate_shares=config.rate_shares,
                adam_eps=config.train.adam_eps,
                schedule=config.train.schedule,
                warmup_steps=config.train.warmup_steps,
                precision=config.train.precision,
                engine=config.train.engine,
                evaluate=_evaluation(task, run) if keeps_best else task.evaluate,
                evaluate_at=_evaluation_steps(config, batches, steps),
                run=run,
                resume=resume,
                checkpoint_every_s=config.train.checkpoint_every_s,
                keep_state=config.keeps_weights,
                progress=progress,
                label=f"{config.method} {config.name}",
            )
        progress.note(f"{config.method} {config.name}: raw pixels and figures")
        about = {"method": config.method, "name": config.name}
        if keeps_best:
            load_model(run.best_weights, model)
        if config.keeps_weights:
            save_model(run / "model.safetensors", model, about)
        model.eval()
        write_atomically(run / "arrays.npz", task.arrays(model))
        rows = [{**one, "cut_down": config.cut_down} for one in task.rows(run.records())]
        if config.keeps_weights:
            describe_model(config, task, run, model, rows)
        results = {"rows": rows}
        run.write_json("results.json", results)
    return results


def _evaluation(
    task: ComputedTask | ObservedTask, run: Run
) -> Callable[[nn.Module], dict[str, Any]]:
    """Evaluates, and keeps the weights if no evaluation was better; the one before training is one only if it
    is of a model that was begun with."""
    is_begun = task.config.init is not None

    def evaluate(model: nn.Module) -> dict[str, Any]:
        found = task.evaluate(model)
        records = eligible([*run.records(), found], is_begun=is_begun)
        if records and all(criterion(found) > criterion(one) for one in records[:-1]):
            save_model(run.best_weights, model, {})
        return found

    return evaluate


def _say_left_out(task: ComputedTask | ObservedTask, run: Run, progress: Progress) -> None:
    """Rows that cannot be used are never left out silently."""
    if isinstance(task, ObservedTask) and task.unused:
        progress.note(
            f"{task.unused:,} images are in no part of the split and are not used "
            f"({task.config.evaluation.split_by} {', '.join(task.unused_values)})"
        )
    if task.left_out:
        rows = [
            {"row": one.row, "others": one.others, "reason": one.reason} for one in task.left_out
        ]
        run.write_json("left_out.json", {"rows": rows})
        progress.note(
            f"{len(task.left_out):,} problems with images, which are left out: see left_out.json"
        )


def _is_finished(
    config: Experiment,
    task: ComputedTask | ObservedTask,
    run: Run,
    *,
    resume: bool,
    overwrite: bool,
    device: str,
) -> bool:
    """Make the folder ready to be trained into; whether there is nothing left to do."""
    init = None
    if not (resume and run.exists):
        run.create(to_dict(config), overwrite=overwrite)
        init = None if config.init is None else read_description(Path(config.init)).id
    else:
        _check_same(config, run)
        if run.is_finished or (run.has_results and not config.keeps_weights):
            return True
        if change := data_change(task, run):
            raise RunError(
                f"{run.path} cannot go on: {change}",
                hint="bring the images back as they were, or start anew with --overwrite",
            )
    run.note_environment(device=device, seed=config.seed, init=init, data=task.about_data)
    return False


def data_change(task: ComputedTask | ObservedTask, run: Run) -> str | None:
    """In words, if the images are not those that the run was begun with."""
    path = run / "environment.json"
    before = run.read_json("environment.json").get("data") if path.exists() else None
    now = task.about_data
    if before is None or now is None or before == now:
        return None
    counts = (before["images"], now["images"])
    what = "{:,} images then, {:,} now".format(*counts) if counts[0] != counts[1] else "others now"
    return f"{task.config.data} has changed since it was begun, {what}"


def load_run(
    run: Run, *, device: str = "cpu"
) -> tuple[Experiment, Encoder, ComputedTask | ObservedTask]:
    """A finished run's configuration, its trained model, and what it learned from and is scored on."""
    run.require().refuse_search("loaded")
    if run.kind != "run":
        runs = run.config["runs"]
        more = f" and {len(runs) - _NAMED:,} more" if len(runs) > _NAMED else ""
        raise RunError(
            f"{run.path} holds the runs {', '.join(runs[:_NAMED])}{more}; name one of them",
            hint=f"{run / runs[0]}",
        )
    config = read_experiment(run.config)
    if not config.keeps_weights:
        raise RunError(f"{run.path} is of private images, so that its weights were not kept")
    if not (run / "model.safetensors").is_file():  # before images are decoded or rendered
        raise RunError(
            f"there are no weights at {run / 'model.safetensors'}: the run is not finished, or they were "
            "not kept"
        )
    if (run / "model.json").is_file():
        described = read_description(run.path).network.encoder
        if other := _other_network(described, config.encoder):
            raise RunError(
                f"model.json and config.json of {run.path} are of different networks: {other}"
            )
    task = build_task(config, device)
    model = build_model(config, task)
    load_model(run / "model.safetensors", model)
    return config, model.to(device).eval(), task


def build_model(config: Experiment, task: Task) -> Encoder:
    """The untrained network: its weights depend on the seed alone."""
    in_channels, size_px = task.image_shape

    def build(encoder: EncoderConfig) -> Encoder:
        return build_encoder(
            encoder,
            in_channels=in_channels,
            size_px=size_px,
            has_transformer=config.has_transformer,
        )

    model = _seeded("model", config.seed, lambda: build(config.encoder))
    if config.encoder.backbone != PAPERS:
        plain = replace(config.encoder, is_pretrained=False)
        again = _seeded("another model", config.seed, lambda: build(plain))
        shape = (2, in_channels, size_px, size_px)
        check_restorable(model, again, torch.rand(shape, generator=stream("restorable")))
    return model


def _num_classes(labels: Tensor | None) -> int:
    return 0 if labels is None else int(labels.max()) + 1


def _begin_with(model: Encoder, encoder: EncoderConfig, folder: str) -> None:
    given = load_model_folder(folder)
    begun, own = given.network.state_dict(), model.state_dict()
    other = _other_network(given.description.network.encoder, encoder)
    if other or {n: e.shape for n, e in begun.items()} != {n: e.shape for n, e in own.items()}:
        what = f" ({other})" if other else ""
        raise ConfigError(
            f"the model in {folder} is another network than the one that is to be trained{what}",
            hint="leave the encoder's settings and the size of the images as the model has them",
        )
    model.load_state_dict(begun)


def _other_network(one: EncoderConfig, other: EncoderConfig) -> str:
    """In which settings they differ, also in those that no weight tells of."""
    plain = (replace(each, is_pretrained=False) for each in (one, other))
    return "; ".join(f"encoder.{each}" for each in differences(*plain))


def _evaluation_steps(config: Experiment, batches: OrbitBatches, steps: int) -> set[int]:
    count = config.train.evaluations
    if not config.train.evaluate_at:
        return {round(steps * i / count) for i in range(count + 1)}
    asked = {batches.position_at(epochs) for epochs in config.train.evaluate_at}
    return {0, steps} | {step for step in asked if step < steps}


def _seeded(purpose: str, seed: int, build: Callable[[], T]) -> T:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(purpose, seed))
        return build()


def _check_same(config: Experiment, run: Run) -> None:
    changed = differences(read_experiment(run.config), config)
    if changed:
        raise ConfigError(
            f"{run.path} was started with other settings ({'; '.join(changed)})",
            hint="resume with the settings it was started with, or choose another folder with --out",
        )
