"""Videos as observed images: each segment of a video, a few frames that follow each other, is an orbit.

Frames are decoded once and cached (`frames.py`). Segments are cut from cached frames (`segments.py`), so that
other segments of the same videos decode nothing.

Shapes: N images, G segments, V videos.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from orbitset.datasets.decode import Decoding
from orbitset.datasets.folder import Listing, natural
from orbitset.datasets.frames import Progress, load_frames
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.pictures import ImageForm, InMemory, stamp
from orbitset.datasets.segments import SegmentConfig, cut_segments, find_cuts
from orbitset.datasets.table import ImageTable, OnProblem, Problem, name_at, named
from orbitset.errors import ConfigError, DataError, check_choice, count_of

SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg")
SPLIT = ("train", "between", "test")
_FACTORS = ("video", "segment", "frame", "place")
_FEWEST_DIGITS = 3
_SIZE_PX = 64


@dataclass(frozen=True)
class VideoProblem(Problem):
    """What is wrong with a video; its row is its number in natural order, from 1."""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Clip:
    """What became of a video."""

    video: str
    """Its name relative to the folder, with forward slashes"""
    frames: int
    cuts: tuple[int, ...]
    """The first frame of each scene but the first"""
    segments: int
    left_out: int
    """Frames at the ends of scenes, too few for a segment"""


@dataclass(frozen=True)
class Videos:
    """The frames of all segments, in order, and what they came from.

    The factors are `video`, the name of the file; `segment`, such as cup.mp4#003; `frame`, the number of the
    frame in its file, from 0; and `place`, how far into its video the middle of the segment is, of 0 to 1.
    """

    frames: ObservedImages
    clips: tuple[Clip, ...]
    """Of videos with frames, in natural order"""
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        segments = sum(clip.segments for clip in self.clips)
        left_out = sum(clip.left_out for clip in self.clips)
        return (
            f"{count_of(len(self.frames), 'frame')} in {count_of(segments, 'segment')} of "
            f"{count_of(len(self.clips), 'video')}; "
            f"{count_of(left_out, 'frame')} at the ends of scenes left out"
        )


def load_videos(
    source: str,
    root: Path,
    names: Sequence[str],
    decoding: Decoding,
    on_progress: Progress | None = None,
) -> Videos:
    """The segments of videos in a folder.

    Frames are fitted whole into a square. If problems are skipped, the frames of a damaged video before the
    damage are used. `on_progress` is called with the bytes that are done, and those of all files.
    """
    size_px = decoding.size_px or _SIZE_PX
    if size_px < 2:
        raise ConfigError(f"size_px is {size_px}; give at least 2")
    check_choice("on_problem", decoding.on_problem, get_args(OnProblem))
    gathered = _Segments(decoding.video.segments)
    sizes = [max(0, stamp(root / name)[0]) for name in names]

    def within(at: int) -> Progress | None:
        if on_progress is None or not sum(sizes):
            return None
        return lambda done, _: on_progress(sum(sizes[:at]) + done, sum(sizes))

    for at, name in enumerate(names):
        progress = within(at)
        frames = load_frames(
            root / name,
            size_px=size_px,
            is_colour=bool(decoding.is_colour),
            is_cached=decoding.is_cached,
            on_progress=progress,
        )
        gathered.add(at + 1, name, frames.pixels, frames.damage)
        if progress is not None:
            progress(sizes[at], sizes[at])
    problems = tuple(gathered.problems)
    if problems and decoding.on_problem == "stop":
        raise DataError(
            f"{source} has {count_of(len(problems), 'problem')}: {named(problems)}",
            hint="mend what is named, or use what is left with --on-problem skip",
        )
    if not gathered.pixels:
        raise DataError(f"nothing is left of {source}: {named(problems)}")
    shape = (-1, 3 if decoding.is_colour else 1, size_px, size_px)
    columns = dict(zip(_FACTORS, zip(*gathered.rows, strict=True), strict=True))
    images = torch.frombuffer(gathered.pixels, dtype=torch.uint8).view(shape)
    return Videos(ObservedImages.of(images, columns), tuple(gathered.clips), problems)


def frames_in(source: str, root: Path, names: Sequence[str], form: ImageForm) -> ImageTable:
    """All frames of videos by their numbers, in that form; what is wrong with videos is left out."""
    assert form.size_px is not None
    files: dict[str, InMemory] = {}
    problems, video, frame = [], list[str](), list[str]()
    for row, name in enumerate(names, 1):
        path = root / name
        frames = load_frames(path, size_px=form.size_px, is_colour=form.is_colour)
        if frames.damage is not None:
            problems.append(VideoProblem(row, f"{path} {frames.damage}"))
        for at, pixels in enumerate(frames.pixels):
            files[name_at(str(path), at)] = InMemory(pixels)
            video.append(name)
            frame.append(str(at))
    columns = {"video": tuple(video), "frame": tuple(frame)}
    table = ImageTable.numbered(source, Path(), list(files), columns)
    return replace(table, inside=tuple(files.values()), left_out=tuple(problems))


def videos_in(listing: Listing) -> list[str]:
    """The videos in a folder, in natural order: 2.mp4 before 10.mp4."""
    return sorted(listing.ending_in(SUFFIXES), key=lambda name: (natural(name), name))


def frames_of(frames: ObservedImages) -> Tensor:
    """The number of each image's frame in its video, (N,) int64.

    >>> images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    >>> frames_of(ObservedImages.of(images, {"frame": ["8", "10", "9"]})).tolist()
    [8, 10, 9]
    """
    _require(frames, "frame")
    ids_N = frames.factors["frame"]
    number = torch.tensor([int(value) for value in frames.values["frame"]], device=ids_N.device)
    return number[ids_N]


def split_by_time(frames: ObservedImages, share: float) -> ObservedImages:
    """The same images with a factor `split` more: the start of each video to train on, its end to test on.

    A segment is *train* if it lies wholly in the first `share` of its video, *test* if wholly after, and
    *between* if it has frames on both sides; of those, neither part should use any. A video counts as long as
    up to its last frame in `frames`.
    """
    if not 0 < share < 1:
        raise ConfigError(f"share is {share}; give more than 0 and less than 1")
    _require(frames, "video", "segment", "frame")
    frame_N = frames_of(frames)
    video_N, segment_N = frames.factors["video"], frames.factors["segment"]
    last_V = _by(video_N, frame_N, len(frames.values["video"]), "amax")
    border_N = ((last_V + 1) * share).round()[video_N]
    segments = len(frames.values["segment"])
    first_N = _by(segment_N, frame_N, segments, "amin")[segment_N]
    last_N = _by(segment_N, frame_N, segments, "amax")[segment_N]
    split_N = 1 + (first_N >= border_N).long() - (last_N < border_N).long()
    for at in (0, 2):
        if not (split_N == at).any():
            raise DataError(
                f"no segment lies wholly in the {SPLIT[at]} part of its video",
                hint="use shorter segments, or another share",
            )
    return replace(
        frames,
        factors={**frames.factors, "split": split_N},
        values={**frames.values, "split": SPLIT},
    )


@dataclass
class _Segments:
    """The segments of one video after the other."""

    config: SegmentConfig
    pixels: bytearray = field(default_factory=bytearray)
    rows: list[tuple[str, ...]] = field(default_factory=list)
    """The factors of each frame"""
    clips: list[Clip] = field(default_factory=list)
    problems: list[VideoProblem] = field(default_factory=list)

    def add(self, row: int, name: str, pixels: np.ndarray, damage: str | None) -> None:
        num_frames, config, reasons = len(pixels), self.config, [] if damage is None else [damage]
        if num_frames:
            cuts = () if config.scene_cuts is None else find_cuts(pixels, config.scene_cuts)
            segments, left_out = cut_segments(num_frames, cuts, config)
            self.clips.append(Clip(name, num_frames, cuts, len(segments), left_out))
            digits = max(_FEWEST_DIGITS, len(str(len(segments) - 1)))
            for number, frames in enumerate(segments):
                self.pixels += pixels[frames.start : frames.stop : frames.step].tobytes()
                label = f"{name}#{number:0{digits}}"
                place = f"{(frames[0] + frames[-1] + 1) / 2 / num_frames:.3f}"
                self.rows += [(name, label, str(frame), place) for frame in frames]
            if not segments:
                reasons.append(_too_short(num_frames, cuts, config))
        elif damage is None:
            reasons.append("has no frames")
        self.problems += [VideoProblem(row, f"{name} {reason}") for reason in reasons]


def _too_short(frames: int, cuts: tuple[int, ...], config: SegmentConfig) -> str:
    needed = (config.fewest - 1) * config.stride + 1
    scenes = f" in {len(cuts) + 1} scenes" if cuts else ""
    return f"has {count_of(frames, 'frame')}{scenes}, too short for a segment: {needed} in a row are needed"


def _require(frames: ObservedImages, *factors: str) -> None:
    missing = [name for name in factors if name not in frames.factors]
    if missing:
        raise DataError(
            f"the images have no factor {', '.join(missing)}", hint="load them with load_videos"
        )


def _by(group_N: Tensor, value_N: Tensor, groups: int, reduce: str) -> Tensor:
    """The least or the greatest value of each group."""
    return value_N.new_zeros(groups).scatter_reduce(0, group_N, value_N, reduce, include_self=False)
