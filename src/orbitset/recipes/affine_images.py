"""Trainings on computed orbits of the embedded digits and of a user's own images, as functions of the
method."""

from dataclasses import replace
from pathlib import Path

from orbitset.encoders.config import EncoderConfig
from orbitset.orbits.affine import AffineRanges
from orbitset.orbits.computed import OrbitConfig
from orbitset.orbits.photometric import PhotometricRanges
from orbitset.protocols import FindingSettings, OneShotSettings
from orbitset.recipes.affine_mnist import affine_mnist
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.outside_loss import default_loss
from orbitset.training.fit import TrainConfig

_FINDING = {"discriminate_weight": 30.0, "margin_fraction": 0.4}
"""To find single images the discriminate term weighs much (docs/log.md)."""
_IMAGES, _MOST_EPOCHS = 100_000, 20
"""The length of a training on plain images, whichever is less"""


def affine_digits(method: str = "OJ") -> Experiment:
    """Affine orbits of the embedded digits, sized for two CPU cores."""
    return Experiment(
        name="affine-digits",
        data="digits",
        method=method,
        orbits=OrbitConfig(
            canvas_px=32,
            orbits_per_batch=16,
            affine=AffineRanges(translation_px=round(15 / 28 * 16, 2)),
        ),
        encoder=EncoderConfig(channels=(8, 16, 32, 64), code_size=64, code_norm="batch"),
        loss=default_loss(method, discriminate_weight=10.0),
        train=TrainConfig(epochs=8, learning_rate=3e-3, evaluations=8),
        evaluation=OneShotSettings(test_images=3_000),
    )


def affine_images(
    path: str, size_px: int, num_train: int, method: str = "OJ", *, has_labels: bool = True
) -> Experiment:
    """Affine orbits of a user's own images, in the paper's proportions to their size. Without labels it is
    single images that are to be told apart."""
    canvas_px = -(-round(size_px * 64 / 28) // 16) * 16
    base = affine_mnist(method)
    if not has_labels:
        base = replace(
            base,
            encoder=replace(base.encoder, code_norm="sphere"),
            loss=default_loss(method, **_FINDING),
            protocol="finding",
            evaluation=FindingSettings(),
            orbits=replace(base.computed, orbits_per_batch=64, members_per_batch=4),
            train=replace(base.train, learning_rate=3e-3, keep="best"),
        )
    orbits = replace(
        base.computed,
        canvas_px=canvas_px,
        orbits_per_batch=min(base.orbits.orbits_per_batch, num_train),
        affine=AffineRanges(translation_px=round(15 / 28 * size_px, 2)),
    )
    return replace(base, name="affine-images", data=path, orbits=orbits)


def plain_images(
    path: str, size_px: int, num_train: int, method: str = "OJ", *, is_colour: bool = True
) -> Experiment:
    """Photographs that each show a thing of their own: members of an orbit differ a little in position and
    turn, and in crop, light, colour and focus, drawn anew each time."""
    members = 8
    return Experiment(
        name=Path(path).name,
        data=path,
        method=method,
        protocol="finding",
        orbits=OrbitConfig(
            mode="fresh",
            members=members,
            members_per_batch=4,
            orbits_per_batch=min(32, num_train),
            canvas_px=size_px,
            affine=AffineRanges.moderate(size_px),
            photometric=PhotometricRanges(),
            is_colour=is_colour,
        ),
        encoder=EncoderConfig(code_size=256, code_norm="sphere"),
        loss=default_loss(method, **_FINDING),
        train=TrainConfig(
            epochs=min(_MOST_EPOCHS, _IMAGES / (num_train * members)),
            learning_rate=3e-3,
            evaluations=8,
            keep="best",
        ),
        evaluation=FindingSettings(test_images=2_000),
    )


def described_plain(config: Experiment) -> str:
    """What was chosen for plain images, in words."""
    orbits = config.computed
    return (
        "no sub-folders: every image is an orbit of its own, its members made by small turns, crops, light, "
        "colour and blur\n"
        "a fifth of the images is held out for validation and a fifth for testing: an augmented image has to "
        "retrieve its original\n"
        f"{orbits.canvas_px} px; batches of {orbits.orbits_per_batch} orbits x {orbits.members_per_batch} "
        f"members; {config.train.epochs:.3g} epochs"
    )
