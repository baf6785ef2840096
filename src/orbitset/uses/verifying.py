"""Verification: do two pictures show the same thing?"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
    model: Model,
    a: Path | str,
    b: Path | str,
    *,
    far: float = FAR,
    threshold: float | None = None,
) -> Verdict:
    """Whether two images are nearer than a threshold: by default the model's for a false accept rate."""
    point = None
    if threshold is None:
        point = threshold_of(model, far)
        threshold = point.threshold
    check_distance("threshold", threshold)
    distance = float(model.distances([a], [b])[0])
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
    inputs = model.prepare([a, b]).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
    inputs = inputs if model.description.input.is_colour else inputs[..., 0]
    rows = [np.concatenate(list(images), axis=1) for images in (inputs, model.rectify([a, b]))]
    return np.concatenate(rows)
