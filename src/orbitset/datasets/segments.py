"""Segments by time: frames that follow each other in one scene, and so show the same thing.

A scene ends where the picture changes at once. The change of a frame is the mean absolute difference of its
pixels, of 0 to 255, from those of the frame before; the level around it is the upper quartile of the 20
changes nearest to it, so that neither repeated frames nor a few other cuts nearby move it. A cut is a change
above a threshold times that level, to which 2 are added so that noise in a still picture is none. Fades are
not found: they change slowly.

Shapes: F frames.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from orbitset.config import bounded, check_fields
from orbitset.errors import ConfigError

_AROUND = 20
_LEAST_LEVEL = 2.0
_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class SegmentConfig:
    """Which frames of a video are one segment.

    What is left at the end of a scene is a shorter segment if it has half the length, and at least 2 frames.
    """

    length: int = bounded(16, at_least=2)
    """Frames of a segment"""
    stride: int = bounded(1, at_least=1)
    """One of so many frames is taken"""
    gap: int = bounded(0, at_least=0)
    """Frames left out between the last of a segment and the first of the next"""
    scene_cuts: float | None = 3.0
    """Segments do not cross a change of the picture that is so many times what is usual around it; None takes
    each video for one scene"""

    def __post_init__(self) -> None:
        check_fields(self, "segments")
        if self.scene_cuts is not None and not 1 <= self.scene_cuts < math.inf:
            raise ConfigError(
                f"segments.scene_cuts is {self.scene_cuts}; give at least 1, or None to look for none"
            )

    @property
    def fewest(self) -> int:
        """Frames that the shortest segment has."""
        return max(2, math.ceil(self.length / 2))


@dataclass(frozen=True, kw_only=True)
class VideoConfig:
    """How videos become orbits."""

    segments: SegmentConfig = field(default_factory=lambda: SegmentConfig(gap=8))
    """With a gap: nothing tells the end of a segment from the start of one that follows at once"""
    trained_share: float = 0.6
    """How much of each video is trained on, from its start; the rest is tested on"""

    def __post_init__(self) -> None:
        if not 0 < self.trained_share < 1:
            raise ConfigError(
                f"video.trained_share is {self.trained_share}; give more than 0 and less than 1"
            )


def find_cuts(pixels: np.ndarray, threshold: float) -> tuple[int, ...]:
    """The first frame of each scene but the first, in frames as uint8 (F, C, S, S).

    >>> pixels = np.zeros((20, 1, 4, 4), np.uint8)
    >>> pixels[12:] = 90
    >>> find_cuts(pixels, 3.0)
    (12,)
    """
    change_F = changes(pixels)
    cuts = []
    for at in np.flatnonzero(change_F > threshold * _LEAST_LEVEL).tolist():
        start = max(1, min(at - _AROUND // 2, len(change_F) - _AROUND - 1))
        around = np.delete(change_F[start : start + _AROUND + 1], at - start)
        level = float(np.quantile(around, 0.75)) if len(around) else 0.0
        if change_F[at] > threshold * (level + _LEAST_LEVEL):
            cuts.append(at)
    return tuple(cuts)


def changes(pixels: np.ndarray) -> np.ndarray:
    """How much each frame differs from the one before, (F,); 0 for the first."""
    change_F = np.zeros(len(pixels))
    for start in range(1, len(pixels), _AT_ONCE):
        chunk = pixels[start - 1 : start + _AT_ONCE].astype(np.int16)
        change_F[start : start + _AT_ONCE] = np.abs(np.diff(chunk, axis=0)).mean((1, 2, 3))
    return change_F


def cut_segments(
    frames: int, cuts: Sequence[int], config: SegmentConfig
) -> tuple[list[range], int]:
    """The frames of each segment, and how many at the ends of scenes are too few for another.

    >>> cut_segments(22, (10,), SegmentConfig(length=8))
    ([range(0, 8), range(10, 18), range(18, 22)], 2)
    """
    segments, left_out = [], 0
    for start, stop in itertools.pairwise((0, *cuts, frames)):
        while start < stop:
            segment = range(start, stop, config.stride)[: config.length]
            if len(segment) < config.fewest:
                left_out += stop - start
                break
            segments.append(segment)
            start = segment[-1] + 1 + config.gap
    return segments, left_out
