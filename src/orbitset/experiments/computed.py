"""Computed orbits, evaluated by one-shot recognition: the paper's affine experiments."""

from typing import Any

import torch
from torch import nn

from orbitset.datasets.images import ImageSet, Splits, fingerprint
from orbitset.datasets.named import load_splits
from orbitset.encoders import Encoder
from orbitset.errors import ConfigError
from orbitset.evaluation.early_stopping import orbit_splits
from orbitset.evaluation.labelled import Metric
from orbitset.experiments.arrays import figure_arrays
from orbitset.experiments.config import ExperimentConfig
from orbitset.experiments.rows import best, row, without_splits
from orbitset.experiments.task import (
    Encode,
    FindingTask,
    OneShotTask,
    encoding_with,
    orbit_curve,
    raw_pixels,
)
from orbitset.orbits.batches import OrbitBatches
from orbitset.orbits.computed import AffineOrbits, Mode
from orbitset.seeds import stable_seed

MEASURES: dict[Metric, str] = {"euclidean": "accuracy", "cosine": "accuracy_cosine"}


class ComputedTask:
    """What a training on computed orbits learns from, and how it is scored."""

    def __init__(self, config: ExperimentConfig, device: str) -> None:
        self.config = config
        self.splits = load_data(config)
        train = self.splits.train
        if config.objective == "ST" and train.labels is None:
            raise ConfigError(
                f"{config.method} learns from class labels, and these images have none"
            )
        self.image_shape = (train.images.shape[1], config.orbits.canvas_px)
        self.test = _orbits(
            config,
            self.splits.test.to(device),
            "fixed",
            stable_seed("test", config.evaluation.seed),
        )
        has_labels = self.splits.test.labels is not None
        self.one_shot = build_one_shot(config, self.splits, self.test) if has_labels else None
        if has_labels and config.keeps_best:
            raise ConfigError(
                "train.keep is best, which is told by finding images without labels; these have labels"
            )
        self.left_out = self.splits.left_out
        self._finding = {} if has_labels else self._build_finding(device)
        self.batches = OrbitBatches(
            _orbits(
                config, train.to(device), config.orbits.mode, stable_seed("train", config.seed)
            ),
            orbits_per_batch=config.orbits.orbits_per_batch,
            members_per_batch=config.orbits.members_per_batch,
            seed=config.seed,
        )
        self._halves = None
        count, one_shot = config.evaluation.splits, self.one_shot
        if one_shot is not None and count and len(one_shot.query_orbit.unique()) > 1:
            seed = config.evaluation.seed
            self._halves = orbit_splits(one_shot.query_orbit, splits=count, seed=seed)

    @property
    def about_data(self) -> dict[str, Any]:
        """To be told apart from others: how many images, and what they hold."""
        parts = (self.splits.train, self.splits.validation, self.splits.test)
        labels = [part.labels for part in parts if part.labels is not None]
        images = [part.images for part in parts]
        return {"images": sum(map(len, parts)), "sha256": fingerprint(*images, *labels)}

    def _build_finding(self, device: str) -> dict[str, FindingTask]:
        """To stop by, and to test with."""
        asked = self.config.evaluation
        if self.config.orbits.members < 2:
            if self.config.keeps_best:
                raise ConfigError(
                    "train.keep is best, which is told by finding images by their other members, and "
                    f"orbits.members is {self.config.orbits.members}; set train.keep=last"
                )
            return {}
        seed = stable_seed("validation", asked.seed)
        validation = _orbits(self.config, self.splits.validation.to(device), "fixed", seed)
        sides = {"va": validation, "te": self.test}
        return {
            side: FindingTask(orbits, queries=asked.test_images, seed=asked.seed)
            for side, orbits in sides.items()
        }

    def _found(self, encode: Encode) -> dict[str, Any]:
        scores = {side: [task.score(encode)] for side, task in self._finding.items()}
        return {"mean": scores["te"][0], "sd": None, "n": 1, "repeated": "runs", **scores}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """What a record of metrics.jsonl says."""
        config = self.config
        encode = encoding_with(model, precision=config.train.precision)
        metrics: dict[str, Any] = {}
        if self.one_shot is not None:
            for name, score in self.one_shot.scores(encode).items():
                metrics[MEASURES[name]] = score.summary()
                if self._halves is not None:
                    validation, test = self._halves.scores(score.per_query)
                    metrics[MEASURES[name]] |= {"va": validation, "te": test}
        if self._finding:
            metrics["top1"] = self._found(encode)
        if config.uses_margin:
            margin = torch.tensor([config.margin], dtype=torch.float64)
            at_margin = orbit_curve(encode, self.test, margin)
            metrics["invariance"] = float(at_margin.invariance)
            metrics["selectivity"] = float(at_margin.selectivity)
        return metrics

    def rows(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Raw pixels, the encoder before training, and the encoder after it."""
        config = self.config
        rows = []
        if self.one_shot is not None:
            for metric, pixels in self.one_shot.scores(raw_pixels).items():
                name = MEASURES[metric]
                rows.append(row("pixels", name, pixels.summary()))
                rows.append(row(config.start, name, without_splits(records[0][name])))
                rows.append(row(config.method, name, without_splits(records[-1][name])))
        is_begun = config.init is not None
        last = best(records, is_begun=is_begun) if config.keeps_best else records[-1]
        if self._finding and "top1" in records[0]:  # which earlier versions did not measure
            found = {"pixels": self._found(raw_pixels), config.start: records[0]["top1"]}
            found[config.method] = last["top1"]
            rows += [row(name, "top1", without_splits(each)) for name, each in found.items()]
        for name in ("invariance", "selectivity") if config.uses_margin else ():
            once = {"mean": last[name], "sd": None, "n": 1, "repeated": "runs"}
            rows.append(row(config.method, name, once))
        suffix = "" if config.evaluation.on == "test" else "_validation"
        return [{**one, "metric": one["metric"] + suffix} for one in rows]

    def arrays(self, model: Encoder) -> bytes:
        """What the figures are drawn from."""
        return figure_arrays(self.config, model, self.one_shot, self.test)


def load_data(config: ExperimentConfig) -> Splits:
    """The images an experiment may look at: the test images only if it is evaluated on them."""
    orbits = config.orbits
    splits = load_splits(config.data, size_px=orbits.canvas_px, is_colour=orbits.is_colour)
    return splits if config.evaluation.on == "test" else splits.without_test()


def build_one_shot(
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


def _orbits(config: ExperimentConfig, images: ImageSet, mode: Mode, seed: int) -> AffineOrbits:
    return AffineOrbits(
        images.images,
        images.labels,
        canvas_px=config.orbits.canvas_px,
        members=config.orbits.members,
        ranges=config.orbits.affine,
        photometric=config.orbits.photometric,
        mode=mode,
        seed=seed,
    )
