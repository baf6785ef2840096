"""Images, protocol, network and objective, built from a configuration."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from orbitset.datasets.source import open_source
from orbitset.encoders import Encoder, EncoderConfig, build_encoder
from orbitset.encoders.backbone import check_restorable
from orbitset.errors import ConfigError
from orbitset.losses import Objective
from orbitset.precision import in_bfloat16
from orbitset.protocols import ComputedImages, ObservedSplit, Protocol
from orbitset.protocols.images import GroupedImages, Opened
from orbitset.recipes.experiment import Experiment, check_experiment, protocol_named
from orbitset.recipes.losses import build_loss
from orbitset.recipes.methods import built_in
from orbitset.seeds import stable_seed, stream
from orbitset.training.progress import Progress
from orbitset.training.steps import forward

Images = ComputedImages | ObservedSplit
T = TypeVar("T")
_SAY_EVERY_S = 5.0
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
        on=config.evaluation.on,
        seed=config.seed,
        evaluation_seed=config.evaluation.seed,
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


def build_objective(config: Experiment, images: Images) -> Objective:
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


def try_loss(model: nn.Module, loss: Objective, images: Images) -> None:
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
