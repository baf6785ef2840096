"""Verification: do two pictures show the same thing?"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from orbitset.datasets.named_images import image_at
from orbitset.datasets.pictures import InMemory
from orbitset.errors import ConfigError
from orbitset.models import Model, Point

FAR = 0.01
"""The false accept rate of the threshold, unless another is given"""


@dataclass(frozen=True)
class Verdict:
    """The answer, and its reason."""

    distance: float
    """The squared distance of the two codes"""
    threshold: float
    is_same: bool
    point: Point | None
    """The rates at the threshold, if it is one that was measured"""


def verify_pair(
    model: Model, a: Path | str, b: Path | str, *, far: float = FAR, threshold: float | None = None
) -> Verdict:
    """Whether two images are nearer than a threshold: by default the model's for a false accept rate.

    Frames of videos and rows of arrays are images, too: `clip.mp4#12`.
    """
    point = None
    if threshold is None:
        point = threshold_of(model, far)
        threshold = point.threshold
    check_distance("threshold", threshold)
    distance = float(model.distances([_image(model, a)], [_image(model, b)])[0])
    return Verdict(distance, threshold, distance <= threshold, point)


def check_distance(name: str, value: float) -> None:
    """Refuse a number that is no squared distance."""
    if not 0 <= value < math.inf:
        raise ConfigError(f"{name} is {value}; give a squared distance, at least 0")


def threshold_of(model: Model, far: float) -> Point:
    """The model's own threshold for a false accept rate."""
    if model.calibration is None or not model.calibration.points:
        raise ConfigError(
            "this model has no measured threshold; give one as a squared distance with --threshold"
        )
    return model.calibration.at(far)


def pair_picture(model: Model, a: Path | str, b: Path | str) -> np.ndarray:
    """Both images as the model takes them, above their rectified images; uint8."""
    pair = [_image(model, a), _image(model, b)]
    inputs = model.prepare(pair).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
    inputs = inputs if model.description.input.is_colour else inputs[..., 0]
    rows = [np.concatenate(list(images), axis=1) for images in (inputs, model.rectify(pair))]
    return np.concatenate(rows)


def _image(model: Model, name: Path | str) -> Path | str | Image.Image:
    """What the model takes for an image of that name."""
    file = image_at(name, model.form)
    return file.image if isinstance(file, InMemory) else name
