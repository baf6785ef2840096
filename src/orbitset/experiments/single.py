"""One method, trained once: from a configuration to a finished run folder."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from orbitset.config import differences, from_dict, to_dict
from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.named import load_splits
from orbitset.encoders import Encoder, build_encoder
from orbitset.errors import ConfigError, RunError
from orbitset.evaluation.early_stopping import orbit_splits
from orbitset.evaluation.labelled import Metric
from orbitset.experiments.arrays import figure_arrays
from orbitset.experiments.config import ExperimentConfig
from orbitset.experiments.task import OneShotTask, encoding_with, orbit_curve, raw_pixels
from orbitset.files import write_atomically
from orbitset.losses.methods import build_loss
from orbitset.orbits.batches import OrbitBatches
from orbitset.orbits.computed import AffineOrbits, Mode
from orbitset.runs import Run
from orbitset.seeds import stable_seed
from orbitset.training.checkpoint import load_model, save_model
from orbitset.training.fit import fit
from orbitset.training.progress import Progress, Silent

MEASURES: dict[Metric, str] = {"euclidean": "accuracy", "cosine": "accuracy_cosine"}
T = TypeVar("T")


def train(
    config: ExperimentConfig,
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
    splits = load_data(config)
    if config.objective == "ST" and splits.train.labels is None:
        raise ConfigError(f"{config.method} learns from class labels, and these images have none")
    test = orbits_of_test(config, splits, device)
    task = build_task(config, splits, test) if splits.test.labels is not None else None
    batches = _batches(config, splits.train.to(device))
    model = build_model(config, splits).to(device)
    loss = _seeded(
        "loss",
        config.seed,
        lambda: build_loss(
            config.objective,
            config.loss,
            default_margin=config.margin,
            code_size=config.encoder.code_size,
            num_orbits=len(batches.orbits),
        ),
    ).to(device)
    with run.locked():
        if _is_finished(config, run, resume=resume, overwrite=overwrite, device=device):
            results: dict[str, Any] = run.read_json("results.json")
            return results
        steps = max(1, batches.position_at(config.train.epochs))
        fit(
            model,
            loss,
            batches,
            steps=steps,
            peak_learning_rate=config.train.learning_rate,
            adam_eps=config.train.adam_eps,
            schedule=config.train.schedule,
            warmup_steps=config.train.warmup_steps,
            precision=config.train.precision,
            engine=config.train.engine,
            evaluate=_evaluation(config, task, test),
            evaluate_at=_evaluation_steps(config, batches, steps),
            run=run,
            resume=resume,
            checkpoint_every_s=config.train.checkpoint_every_s,
            progress=progress,
            label=f"{config.method} {config.name}",
        )
        progress.note(f"{config.method} {config.name}: raw pixels and figures")
        about = {"method": config.method, "name": config.name}
        save_model(run / "model.safetensors", model, about)
        model.eval()
        write_atomically(run / "arrays.npz", figure_arrays(config, model, task, test))
        results = {"rows": _rows(config, run, task)}
        run.write_json("results.json", results)
    return results


def _is_finished(
    config: ExperimentConfig, run: Run, *, resume: bool, overwrite: bool, device: str
) -> bool:
    """Make the folder ready to be trained into; whether there is nothing left to do."""
    if not (resume and run.exists):
        run.create(to_dict(config), overwrite=overwrite)
    else:
        _check_same(config, run)
        if run.is_finished:
            return True
    run.note_environment(device=device, seed=config.seed)
    return False


def load_run(run: Run, *, device: str = "cpu") -> tuple[ExperimentConfig, Encoder, Splits]:
    """A finished run's configuration, its trained model and its data."""
    run.require().refuse_search("loaded")
    if run.kind != "run":
        raise RunError(
            f"{run.path} holds the runs {', '.join(run.config['runs'])}; name one of them"
        )
    config = from_dict(ExperimentConfig, run.config)
    splits = load_data(config)
    model = build_model(config, splits)
    load_model(run / "model.safetensors", model)
    return config, model.to(device).eval(), splits


def load_data(config: ExperimentConfig) -> Splits:
    """The images an experiment may look at: the test images only if it is evaluated on them."""
    splits = load_splits(config.data)
    return splits if config.evaluation.on == "test" else splits.without_test()


def build_model(config: ExperimentConfig, splits: Splits) -> Encoder:
    """The untrained network: its weights depend on the seed alone."""
    return _seeded(
        "model",
        config.seed,
        lambda: build_encoder(
            config.encoder,
            in_channels=splits.train.images.shape[1],
            size_px=config.orbits.canvas_px,
            has_transformer=config.has_transformer,
        ),
    )


def orbits_of_test(config: ExperimentConfig, splits: Splits, device: str) -> AffineOrbits:
    """Orbits of the test images: the same for every method and training seed."""
    seed = stable_seed("test", config.evaluation.seed)
    return _orbits(config, splits.test.to(device), "fixed", seed)


def build_task(
    config: ExperimentConfig, splits: Splits, test: AffineOrbits, *, shots: int = 1
) -> OneShotTask:
    """The few-shot evaluation: the same for every method and training seed."""
    seed = stable_seed("validation", config.evaluation.seed)
    return OneShotTask(
        _orbits(config, splits.validation.to(test.device), "fixed", seed),
        test,
        test_images=config.evaluation.test_images,
        draws=config.evaluation.draws,
        seed=config.evaluation.seed,
        shots=shots,
    )


def row(method: str, metric: str, summary: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One line of a table of figures, in the one shape they all have: what is not known is None.

    `low` and `high` are percentiles over draws, `seeds_low` and `seeds_high` bound the mean over seeds,
    `epoch` is when training was stopped for it, `p_corrected` of a test of the reference against this.
    """
    unknown = (
        *("low", "high", "seeds_low", "seeds_high", "epoch"),
        *("paper", "paper_sd", "paper_p", "p_corrected", "test", "correction", "cut_down"),
    )
    return {
        "method": method,
        "metric": metric,
        **summary,
        "seeds": 1,
        **{name: None for name in unknown if name not in summary},
        **more,
    }


def _evaluation_steps(config: ExperimentConfig, batches: OrbitBatches, steps: int) -> set[int]:
    count = config.train.evaluations
    if not config.train.evaluate_at:
        return {round(steps * i / count) for i in range(count + 1)}
    asked = {batches.position_at(epochs) for epochs in config.train.evaluate_at}
    return {0, steps} | {step for step in asked if step < steps}


def without_splits(summary: dict[str, Any]) -> dict[str, Any]:
    """What a record says of all test images, without the scores by split."""
    return {name: value for name, value in summary.items() if name not in ("va", "te")}


def _batches(config: ExperimentConfig, train: ImageSet) -> OrbitBatches:
    return OrbitBatches(
        _orbits(config, train, config.orbits.mode, stable_seed("train", config.seed)),
        orbits_per_batch=config.orbits.orbits_per_batch,
        members_per_batch=config.orbits.members_per_batch,
        seed=config.seed,
    )


def _orbits(config: ExperimentConfig, images: ImageSet, mode: Mode, seed: int) -> AffineOrbits:
    return AffineOrbits(
        images.images,
        images.labels,
        canvas_px=config.orbits.canvas_px,
        members=config.orbits.members,
        ranges=config.orbits.affine,
        mode=mode,
        seed=seed,
    )


def _seeded(purpose: str, seed: int, build: Callable[[], T]) -> T:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(purpose, seed))
        return build()


def _check_same(config: ExperimentConfig, run: Run) -> None:
    changed = differences(from_dict(ExperimentConfig, run.config), config)
    if changed:
        raise ConfigError(
            f"{run.path} was started with other settings ({'; '.join(changed)})",
            hint="resume with the settings it was started with, or choose another folder with --out",
        )


def _evaluation(
    config: ExperimentConfig, task: OneShotTask | None, test: AffineOrbits
) -> Callable[[nn.Module], dict[str, Any]]:
    splits = None
    if task is not None and config.evaluation.splits and len(task.query_orbit.unique()) > 1:
        seed = config.evaluation.seed
        splits = orbit_splits(task.query_orbit, splits=config.evaluation.splits, seed=seed)

    def evaluate(model: nn.Module) -> dict[str, Any]:
        encode = encoding_with(model, precision=config.train.precision)
        metrics: dict[str, Any] = {}
        if task is not None:
            for name, score in task.scores(encode).items():
                metrics[MEASURES[name]] = score.summary()
                if splits is not None:
                    validation, test_side = splits.scores(score.per_query)
                    metrics[MEASURES[name]] |= {"va": validation, "te": test_side}
        if config.uses_margin:
            margin = torch.tensor([config.margin], dtype=torch.float64)
            at_margin = orbit_curve(encode, test, margin)
            metrics["invariance"] = float(at_margin.invariance)
            metrics["selectivity"] = float(at_margin.selectivity)
        return metrics

    return evaluate


def _rows(config: ExperimentConfig, run: Run, task: OneShotTask | None) -> list[dict[str, Any]]:
    """Raw pixels, the encoder before training, and the encoder after it."""
    records = run.records()
    rows = []
    if task is not None:
        for metric, pixels in task.scores(raw_pixels).items():
            name = MEASURES[metric]
            rows.append(row("pixels", name, pixels.summary()))
            rows.append(row("untrained", name, without_splits(records[0][name])))
            rows.append(row(config.method, name, without_splits(records[-1][name])))
    for name in ("invariance", "selectivity") if config.uses_margin else ():
        once = {"mean": records[-1][name], "sd": None, "n": 1, "repeated": "runs"}
        rows.append(row(config.method, name, once))
    suffix = "" if config.evaluation.on == "test" else "_validation"
    return [{**one, "metric": one["metric"] + suffix, "cut_down": config.cut_down} for one in rows]
