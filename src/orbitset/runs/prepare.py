"""Images, protocol, network and objective, built from a configuration."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from orbitset.datasets.source import open_source
from orbitset.encoders import Encoder, EncoderConfig, build_encoder
from orbitset.encoders.backbone import check_restorable
from orbitset.errors import ConfigError
from orbitset.evaluation.score import Score
from orbitset.outside import import_named
from orbitset.precision import in_bfloat16
from orbitset.protocols import ComputedImages, ObservedSplit, Protocol, encoding_with, raw_pixels
from orbitset.protocols.contract import Encode, Measure, Scores, evaluate
from orbitset.protocols.images import GroupedImages, Opened
from orbitset.recipes.experiment import Experiment, check_experiment, protocol_named
from orbitset.recipes.losses import build_loss
from orbitset.recipes.methods import built_in
from orbitset.results.row import Row, best, eligible
from orbitset.runs.ignoring import Ignoring
from orbitset.seeds import stable_seed, stream
from orbitset.training.progress import Progress
from orbitset.training.steps import forward

Images = ComputedImages | ObservedSplit
T = TypeVar("T")
_SAY_EVERY_S = 5.0
_LEAST_SHARE = 0.1
"""The share of a training before which it is not judged whether its scores still rise"""
CONFIGURATION = "the configuration"
"""What errors call a configuration whose folder or file has been checked before"""


def open_images(
    config: Experiment,
    device: str,
    progress: Progress | None = None,
    *,
    source: Opened | None = None,
) -> Images:
    """Load the images of an experiment and divide them into what is trained on and what is held out.

    What was opened and loaded to describe the experiment need not be read again.
    """
    check_experiment(config, CONFIGURATION)
    if source is None or source.source.spec != config.data:
        source = Opened(open_source(config.data))
    on_progress = None if progress is None else _saying(config.data, progress)
    if config.is_observed:
        return ObservedSplit(
            source,
            config.observed,
            config.evaluation,
            video=config.video,
            is_private=config.is_private,
            seed=config.seed,
            device=device,
            on_progress=on_progress,
        )
    return ComputedImages(
        source,
        config.computed,
        on=getattr(config.evaluation, "on", "test"),
        seed=config.seed,
        evaluation_seed=getattr(config.evaluation, "seed", 0),
        is_private=config.is_private,
        device=device,
    )


def _saying(data: str, progress: Progress) -> Callable[[int, int], None]:
    """A function that says every few seconds how many images are ready."""
    said_at = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at > _SAY_EVERY_S and done < total:
            said_at = time.monotonic()
            progress.note(f"{data}: preparing images, {done / total:.0%}")

    return say


def build_protocol(config: Experiment, images: Images | GroupedImages) -> Protocol:
    """The protocol that judges the experiment on its held-out images."""
    protocol = protocol_named(config.protocol)
    if protocol.orbits != images.config.kind:
        raise ConfigError(
            f"the protocol {config.protocol} is for {protocol.orbits} orbits, and those of {config.data} are "
            f"{images.config.kind}"
        )
    return protocol(images, config.evaluation, margin=config.margin)


def build_model(config: Experiment, images: Images | GroupedImages) -> Encoder:
    """The untrained network: its weights depend on the seed alone."""
    in_channels, size_px = images.image_shape

    def build(encoder: EncoderConfig, purpose: str = "model") -> Encoder:
        return _seeded(
            purpose,
            config.seed,
            lambda: build_encoder(
                encoder,
                in_channels=in_channels,
                size_px=size_px,
                has_transformer=config.has_transformer,
            ),
        )

    model = build(config.encoder)
    if config.encoder.is_imported:  # libraries keep all in their weights
        plain = replace(config.encoder, is_pretrained=False)
        images_NCSS = torch.rand((2, *images.image_shape, size_px), generator=stream("restorable"))
        check_restorable(model, lambda: build(plain, "another model"), images_NCSS)
    return model


def build_objective(config: Experiment, images: Images) -> nn.Module:
    """The objective of the method, with a classifier beside it if the configuration has classes."""
    orbits = images.batches.orbits
    labels = orbits.labels_N
    method = built_in(config.method)
    if method is not None and method.needs_labels and labels is None:
        raise ConfigError(f"{config.method} learns from class labels, and these images have none")
    num_classes = 0 if labels is None else int(labels.max()) + 1
    context = config.loss_context(num_orbits=len(orbits), num_classes=num_classes)

    return _seeded(
        "loss", config.seed, lambda: build_loss(config.loss, context, config.classify_weight)
    )


def try_loss(model: nn.Module, loss: nn.Module, images: Images) -> None:
    """Refuse a loss from outside that fails on the first batch, before anything is written. Copies are
    tried, so that training begins as if nothing had been."""
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        forward(deepcopy(model), deepcopy(loss), images.batches.batch(0), use_bfloat16=False)


def precision_of(config: Experiment, model: nn.Module) -> str:
    """The precision in which the network runs when it is scored."""
    device = next(model.parameters()).device
    return "bfloat16" if in_bfloat16(config.train.precision, device) else "float32"


def _seeded(purpose: str, seed: int, build: Callable[[], T]) -> T:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(purpose, seed))
        return build()


def _plain(scores: Scores) -> dict[str, Any]:
    return {
        name: score.to_json() if isinstance(score, Score) else score
        for name, score in scores.items()
    }


class Judge:
    """Evaluates the model of a training: its protocol's scores, and those of measures from outside."""

    def __init__(
        self, config: Experiment, protocol: Protocol, ignoring: Ignoring | None = None
    ) -> None:
        self.config, self.protocol, self.ignoring = config, protocol, ignoring
        if ignoring is not None:
            measures = {**protocol.about.measures, **ignoring.measures}
            protocol.about = replace(protocol.about, measures=measures)
        self.frozen: Scores | None = None
        """The scores of what training has to beat, where codes before its first step are not that: the features
        of a pretrained network, or codes that ignore nothing. The next record takes them."""
        self.measures: dict[str, Measure] = {}
        for spec in config.measures:
            name = spec.partition(":")[2]
            if name in (*protocol.about.measures, *self.measures):
                raise ConfigError(f"two measures are called {name}; rename the function of {spec}")
            self.measures[name] = import_named(spec, what="measure")

    @property
    def kept_by(self) -> str:
        """The measure by which the best weights are chosen, on validation images."""
        about = self.protocol.about
        return about.kept_by or next(iter(about.measures))

    def is_best(self, records: Sequence[dict[str, Any]]) -> bool:
        """Whether the last of these evaluations is better than all before. The one before training counts only
        if the model begins with the weights of another."""
        is_begun = self.config.begins_useful
        if not eligible([*records], is_begun=is_begun):
            return False
        return best(records, self.kept_by, is_begun=is_begun) is records[-1]

    def why_end(self, records: Sequence[dict[str, Any]], steps: int) -> str | None:
        """Why a training of so many steps need not go on, if that is so.

        It waits for a better score than the best on validation images. Evaluations in the first tenth, or
        while the backbone does not learn yet, do not count.
        """
        patience = self.config.train.patience
        counting = eligible([*records], is_begun=self.config.begins_useful)
        if patience is None or not counting:
            return None
        best_step = best(records, self.kept_by, is_begun=self.config.begins_useful)["step"]
        first = steps * max(_LEAST_SHARE, self.config.train.head_first)
        waited = sum(record["step"] > max(best_step, first) for record in counting)
        if waited < patience:
            return None
        measure = self.protocol.about.measures.get(self.kept_by, self.kept_by)
        return f"{measure} of validation images has not risen since step {best_step:,}"

    def is_start_best(self, records: Sequence[dict[str, Any]]) -> bool:
        """Whether the weights before training are those that are kept."""
        if not (self.config.keeps_best and self.config.begins_useful):
            return False
        return best(records, self.kept_by, is_begun=True) is records[0]

    def encoding(self, model: nn.Module) -> Encode:
        return encoding_with(model, precision=self.config.train.precision)

    def scores(self, encode: Encode) -> Scores:
        scores = evaluate(self.protocol, encode, self.measures)
        return scores if self.ignoring is None else {**scores, **self.ignoring.scores(encode)}

    def record(self, model: Any) -> dict[str, Any]:
        """The scores of an evaluation, as a record of metrics.jsonl has them."""
        encode = self.encoding(model)
        with nullcontext() if self.ignoring is None else self.ignoring.erased(model, encode):
            record = _plain(self.scores(encode))
        if self.frozen is not None:
            record["frozen"], self.frozen = _plain(self.frozen), None
        return record

    def validated(self, scores: Scores) -> float | None:
        """The score by which weights are chosen; None without validation images."""
        score = scores[self.kept_by]
        sides = score.sides if isinstance(score, Score) else {}
        return sides["va"][0] if "va" in sides else None

    def rows(self, records: list[dict[str, Any]]) -> list[Row]:
        """Raw pixels, the encoder before training and the encoder after it, by every measure."""
        config = self.config
        pixels = self.scores(raw_pixels)
        is_begun = config.begins_useful
        last = best(records, self.kept_by, is_begun=is_begun) if config.keeps_best else records[-1]
        rows: list[Row] = []
        for name, score in pixels.items():
            if isinstance(score, Score) and name not in last:
                continue  # a run that was begun before there was this measure
            if isinstance(score, Score):
                rows.append(self._row("pixels", name, score, pixels))
                first = records[0].get("frozen", records[0])
                for method, record in ((config.start, first), (config.method, last)):
                    rows.append(self._row(method, name, Score.from_json(record[name]), pixels))
            elif name in self.protocol.about.measures:
                once = Score(mean=last[name])
                rows.append(self._row(config.method, name, once, pixels))
        for name, score in self.protocol.rows(records).items():
            rows.append(self._row(config.method, name, score, pixels))
        return rows

    def _row(self, method: str, name: str, score: Score, pixels: Mapping[str, Any]) -> Row:
        suffix = "" if getattr(self.config.evaluation, "on", "test") == "test" else "_validation"
        unanswerable = pixels.get("unanswerable") if name.startswith("top1") else None
        row = Row.of(method, f"{name}{suffix}", score, unanswerable=unanswerable)
        return replace(row, cut_down=self.config.cut_down)
