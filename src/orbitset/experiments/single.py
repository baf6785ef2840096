"""One method, trained once: from a configuration to a finished run folder."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from orbitset.config import differences, from_dict, to_dict
from orbitset.datasets.arrays import load_array, split
from orbitset.datasets.digits import load_digits
from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.mnist import is_mnist_folder, load_mnist
from orbitset.encoders.rectifying import RectifyingEncoder, build_encoder
from orbitset.errors import ConfigError, DataError
from orbitset.experiments.config import ExperimentConfig
from orbitset.experiments.task import OneShotTask, encoding_with, orbit_curve, raw_pixels
from orbitset.losses.methods import build_loss
from orbitset.orbits.batches import OrbitBatches
from orbitset.orbits.computed import AffineOrbits
from orbitset.runs import Run, describe_environment, write_atomically
from orbitset.seeds import stable_seed
from orbitset.training.checkpoint import load_model, save_model
from orbitset.training.fit import fit
from orbitset.training.progress import Progress, Silent

PAPER_ACCURACY = {"OJ": 0.66, "EX": 0.45, "OT": 0.35, "OE": 0.49}
"""One-shot accuracy on affine MNIST in the paper's table."""
T = TypeVar("T")
_GRID_COLUMNS, _STRIP_ROWS, _STRIP_COLUMNS = 12, 4, 12


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
    if resume and run.exists:
        _check_same(config, run)
        if run.is_finished:
            results: dict[str, Any] = run.read_json("results.json")
            return results
    splits = load_splits(config.data)
    test = test_orbits(config, splits, device)
    task = build_task(config, splits, test) if splits.test.labels is not None else None
    batches = _batches(config, splits.train.to(device))
    model = build_model(config, splits).to(device)
    loss = _seeded(
        "loss",
        config.seed,
        lambda: build_loss(
            config.method,
            config.loss,
            code_size=config.encoder.code_size,
            num_orbits=len(batches.orbits),
        ),
    ).to(device)
    if config.method == "ST" and splits.train.labels is None:
        raise ConfigError("ST learns from class labels, and these images have none")

    if not (resume and run.exists):
        run.create(to_dict(config), overwrite=overwrite)
        run.write_json("environment.json", describe_environment(device=device, seed=config.seed))
    steps = max(1, batches.position_at(config.train.epochs))
    evaluations = max(1, config.train.evaluations)
    fit(
        model,
        loss,
        batches,
        steps=steps,
        peak_learning_rate=config.train.learning_rate,
        schedule=config.train.schedule,
        warmup_steps=config.train.warmup_steps,
        precision=config.train.precision,
        evaluate=_evaluation(config, task, test),
        evaluate_at={round(steps * i / evaluations) for i in range(evaluations + 1)},
        run=run,
        resume=resume,
        checkpoint_every_s=config.train.checkpoint_every_s,
        progress=progress or Silent(),
        label=f"{config.method} {config.name}",
    )
    save_model(run / "model.safetensors", model, {"method": config.method, "name": config.name})
    model.eval()
    write_atomically(run / "arrays.npz", _arrays(config, model, task, test))
    results = {"rows": _rows(config, run, task)}
    run.write_json("results.json", results)
    return results


def load_splits(data: str) -> Splits:
    """Images by name or by path."""
    match data:
        case "mnist":
            return load_mnist()
        case "digits":
            return load_digits()
    path = Path(data)
    if path.suffix in (".npy", ".npz"):
        return split(load_array(path))
    if path.is_dir() and is_mnist_folder(path):
        return load_mnist(path, download=False)
    raise DataError(
        f"{path} is not data that can be read; give a folder with MNIST's idx files, "
        "or a .npy or .npz file of images"
    )


def load_run(
    run: Run, *, device: str = "cpu"
) -> tuple[ExperimentConfig, RectifyingEncoder, Splits]:
    """A finished run's configuration, its trained model and its data."""
    config = from_dict(ExperimentConfig, run.require().config)
    splits = load_splits(config.data)
    model = build_model(config, splits)
    load_model(run / "model.safetensors", model)
    return config, model.to(device).eval(), splits


def build_model(config: ExperimentConfig, splits: Splits) -> RectifyingEncoder:
    """The untrained network: its weights depend on the seed alone."""
    return _seeded(
        "model",
        config.seed,
        lambda: build_encoder(
            config.encoder,
            in_channels=splits.train.images.shape[1],
            size_px=config.orbits.canvas_px,
        ),
    )


def test_orbits(config: ExperimentConfig, splits: Splits, device: str) -> AffineOrbits:
    """Orbits of the test images: the same for every method and training seed."""
    seed = stable_seed("test", config.evaluation.seed)
    return _orbits(config, splits.test.to(device), "fixed", seed)


def build_task(config: ExperimentConfig, splits: Splits, test: AffineOrbits) -> OneShotTask:
    """The one-shot evaluation: the same for every method and training seed."""
    seed = stable_seed("validation", config.evaluation.seed)
    return OneShotTask(
        _orbits(config, splits.validation.to(test.device), "fixed", seed),
        test,
        test_images=config.evaluation.test_images,
        draws=config.evaluation.draws,
        seed=config.evaluation.seed,
    )


def row(method: str, metric: str, summary: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One line of a table of figures, in the one shape they all have."""
    return {
        "method": method,
        "metric": metric,
        **summary,
        "seeds": 1,
        "paper": None,
        "p_corrected": None,
        **more,
    }


def _batches(config: ExperimentConfig, train: ImageSet) -> OrbitBatches:
    return OrbitBatches(
        _orbits(config, train, config.orbits.mode, stable_seed("train", config.seed)),
        orbits_per_batch=config.orbits.orbits_per_batch,
        members_per_batch=config.orbits.members_per_batch,
        seed=config.seed,
    )


def _orbits(config: ExperimentConfig, images: ImageSet, mode: Any, seed: int) -> AffineOrbits:
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
    def evaluate(model: nn.Module) -> dict[str, Any]:
        encode = encoding_with(model, precision=config.train.precision)
        metrics: dict[str, Any] = {}
        if task is not None:
            scores = task.scores(encode, ("euclidean", "cosine"))
            metrics["accuracy"] = scores["euclidean"].summary()
            metrics["accuracy_cosine"] = scores["cosine"].summary()
        margin = torch.tensor([config.loss.margin], dtype=torch.float64)
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
        pixels = task.scores(raw_pixels, ("euclidean", "cosine"))
        paper = PAPER_ACCURACY.get(config.method) if config.name == "affine-mnist" else None
        for metric, name in (("euclidean", "accuracy"), ("cosine", "accuracy_cosine")):
            rows.append(row("pixels", name, pixels[metric].summary()))
            rows.append(row("untrained", name, records[0][name]))
            rows.append(
                row(
                    config.method,
                    name,
                    records[-1][name],
                    paper=paper if name == "accuracy" else None,
                )
            )
    for name in ("invariance", "selectivity"):
        once = {"mean": records[-1][name], "sd": None, "n": 1, "repeated": "runs"}
        rows.append(row(config.method, name, once))
    return rows


@torch.inference_mode()
def _arrays(
    config: ExperimentConfig, model: RectifyingEncoder, task: OneShotTask | None, test: AffineOrbits
) -> bytes:
    """What the figures are drawn from, as the content of an .npz file."""
    encode = encoding_with(model, precision=config.train.precision)
    curve = orbit_curve(encode, test)
    shown = _shown_orbits(test)
    member = torch.arange(1, len(shown) + 1, device=test.device) % test.num_members
    transformed = test.members(shown, member)
    strips = shown[:_STRIP_ROWS].repeat_interleave(_STRIP_COLUMNS)
    strip_member = torch.arange(_STRIP_COLUMNS, device=test.device) % test.num_members
    arrays = {
        "epsilons": curve.epsilons,
        "invariance": curve.invariance,
        "selectivity": curve.selectivity,
        "canonical": _to_uint8(test.canonical(shown)),
        "transformed": _to_uint8(transformed),
        "rectified": _to_uint8(model.rectify(transformed)),
        "members": _to_uint8(test.members(strips, strip_member.repeat(_STRIP_ROWS))).unflatten(
            0, (_STRIP_ROWS, _STRIP_COLUMNS)
        ),
    }
    if task is not None and config.evaluation.tsne_points:
        queries = task.encode_queries(encode, limit=config.evaluation.tsne_points)
        arrays["tsne"] = _tsne(queries.codes, config.evaluation.seed)
        arrays["tsne_labels"] = queries.labels
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{k: v.cpu().numpy() for k, v in arrays.items()})
    return buffer.getvalue()


def _shown_orbits(test: AffineOrbits) -> Tensor:
    """The first test image of every class, then the next ones, up to the width of a figure."""
    if test.labels_N is None:
        return torch.arange(min(_GRID_COLUMNS, len(test)), device=test.device)
    labels = test.labels_N.cpu()
    firsts = [int((labels == label).nonzero()[0]) for label in labels.unique()]
    rest = [row for row in range(len(labels)) if row not in firsts]
    return torch.tensor((firsts + rest)[:_GRID_COLUMNS], device=test.device)


def _to_uint8(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def _tsne(codes: Tensor, seed: int) -> Tensor:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(codes) - 1) / 3)
    projection = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    return torch.as_tensor(projection.fit_transform(codes.float().cpu().numpy()))
