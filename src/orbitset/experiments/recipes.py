"""Complete configurations by name. A recipe is a function of the method; numbers are changed by --set."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from orbitset.encoders.rectifying import EncoderConfig
from orbitset.errors import check_choice
from orbitset.experiments.affine_mnist import affine_mnist
from orbitset.experiments.config import EvalConfig, ExperimentConfig
from orbitset.experiments.methods import Method
from orbitset.losses.methods import LossConfig
from orbitset.orbits.affine import AffineRanges
from orbitset.orbits.computed import OrbitConfig
from orbitset.orbits.photometric import PhotometricRanges
from orbitset.training.fit import TrainConfig

_SINGLE = LossConfig(discriminate_weight=30.0, margin_fraction=0.4)
"""To find single images the discriminate term weighs much (docs/log.md)."""


def affine_digits(method: Method = "OJ") -> ExperimentConfig:
    """The same on the embedded digits, sized for two CPU cores."""
    return ExperimentConfig(
        name="affine-digits",
        data="digits",
        method=method,
        orbits=OrbitConfig(
            canvas_px=32,
            orbits_per_batch=16,
            affine=AffineRanges(translation_px=round(15 / 28 * 16, 2)),
        ),
        encoder=EncoderConfig(channels=(8, 16, 32, 64), code_size=64, code_norm="batch"),
        loss=LossConfig(discriminate_weight=10.0),
        train=TrainConfig(epochs=8, learning_rate=3e-3, evaluations=8),
        evaluation=EvalConfig(test_images=3_000),
    )


def affine_images(
    path: str, size_px: int, num_train: int, method: Method = "OJ", *, has_labels: bool = True
) -> ExperimentConfig:
    """Affine orbits of a user's own images, in the paper's proportions to their size. Without labels it is
    single images that are to be told apart."""
    canvas_px = -(-round(size_px * 64 / 28) // 16) * 16
    base = affine_mnist(method)
    if not has_labels:
        base = replace(
            base,
            encoder=replace(base.encoder, code_norm="sphere"),
            loss=_SINGLE,
            orbits=replace(base.orbits, orbits_per_batch=64, members_per_batch=4),
            train=replace(base.train, learning_rate=3e-3, keep="best"),
        )
    orbits = replace(
        base.orbits,
        canvas_px=canvas_px,
        orbits_per_batch=min(base.orbits.orbits_per_batch, num_train),
        affine=AffineRanges(translation_px=round(15 / 28 * size_px, 2)),
    )
    return replace(base, name="affine-images", data=path, orbits=orbits)


_SHOWN, _MOST_EPOCHS = 100_000, 20
"""Plain images are trained on for so many images or epochs, whichever is less"""


def plain_images(
    path: str, size_px: int, num_train: int, method: Method = "OJ", *, is_colour: bool = True
) -> ExperimentConfig:
    """Photographs that each show a thing of their own: members of an orbit differ a little in position and
    turn, and in crop, light, colour and focus, drawn anew each time."""
    members = 8
    return ExperimentConfig(
        name=Path(path).name,
        data=path,
        method=method,
        orbits=OrbitConfig(
            mode="fresh",
            members=members,
            members_per_batch=4,
            orbits_per_batch=min(32, num_train),
            canvas_px=size_px,
            affine=AffineRanges(
                rotation_deg=10,
                shear=0.05,
                scale_min=0.95,
                scale_max=1.15,
                translation_px=round(0.05 * size_px, 2),
            ),
            photometric=PhotometricRanges(),
            is_colour=is_colour,
        ),
        encoder=EncoderConfig(code_size=256, code_norm="sphere"),
        loss=_SINGLE,
        train=TrainConfig(
            epochs=min(_MOST_EPOCHS, _SHOWN / (num_train * members)),
            learning_rate=3e-3,
            evaluations=8,
            keep="best",
        ),
        evaluation=EvalConfig(test_images=2_000),
    )


def described_plain(config: ExperimentConfig) -> str:
    """What was chosen for plain images, in words."""
    orbits = config.orbits
    return (
        "no sub-folders: every image is an orbit of its own, its members made by small turns, crops, light, "
        "colour and blur\n"
        "a fifth of the images is kept to stop by and a fifth to test with: each is to be found by a changed "
        "one of it\n"
        f"{orbits.canvas_px} px; batches of {orbits.orbits_per_batch} orbits x {orbits.members_per_batch} "
        f"members; {config.train.epochs:.3g} epochs"
    )


RECIPES: dict[str, Callable[[Method], ExperimentConfig]] = {
    "affine-mnist": affine_mnist,
    "affine-digits": affine_digits,
}


def recipe(name: str, method: Method) -> ExperimentConfig:
    """The recipe of that name, or an error that names the nearest."""
    check_choice("what to train, unless it is a path,", name, RECIPES)
    return RECIPES[name](method)
