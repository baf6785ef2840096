"""Verification: do two pictures show the same thing?"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from orbitset.datasets.named_images import image_at
from orbitset.datasets.pictures import InMemory
from orbitset.errors import ConfigError
from orbitset.models import Model, Point
from orbitset.models.known import UNLIKE

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
    confidence: tuple[float, float] | None = None
    """How much each of the two is like what the model was trained on; None where that is not known"""


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
    pair = [_image(model, a), _image(model, b)]
    distance = float(model.distances(pair[:1], pair[1:])[0])
    confidence = None
    if model.known is not None:
        first, second = map(float, model.confidence(pair))
        confidence = (first, second)
    return Verdict(distance, threshold, distance <= threshold, point, confidence)


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
    """Both images as the model takes them, above their rectified images; uint8.

    A rectified image is crossed out in red if its image is unlike anything the model was trained on.
    """
    pair = [_image(model, a), _image(model, b)]
    inputs = model.prepare(pair).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
    inputs = inputs if model.description.input.is_colour else inputs[..., 0]
    rows = [np.concatenate(list(images), axis=1) for images in (inputs, model.rectify(pair))]
    picture = np.concatenate(rows)
    if model.known is None:
        return picture
    unlike = np.flatnonzero(model.confidence(pair) < UNLIKE)
    return _crossed_out(picture, unlike) if len(unlike) else picture


def _crossed_out(picture: np.ndarray, columns: Iterable[int]) -> np.ndarray:
    """The picture in colour, with a cross over the rectified images of these columns."""
    image = Image.fromarray(picture).convert("RGB")
    draw, side = ImageDraw.Draw(image), image.height // 2
    for column in columns:
        left, right = column * side, (column + 1) * side - 1
        for start, end in ((left, right), (right, left)):
            draw.line((start, side, end, 2 * side - 1), fill="red", width=max(1, side // 32))
    return np.asarray(image)


def _image(model: Model, name: Path | str) -> Path | str | Image.Image:
    """What the model takes for an image of that name."""
    file = image_at(name, model.form)
    return file.image if isinstance(file, InMemory) else name
