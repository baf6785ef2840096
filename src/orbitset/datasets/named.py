"""Data by name or by path."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orbitset.datasets.arrays import load_array, split
from orbitset.datasets.crops import crop
from orbitset.datasets.decode import Progress, load_images
from orbitset.datasets.digits import load_digits
from orbitset.datasets.folder import (
    MANIFEST,
    ORBIT,
    find_shards,
    holds_files,
    holds_images,
    scan_folder,
)
from orbitset.datasets.images import Splits
from orbitset.datasets.kept_heads import load_heads
from orbitset.datasets.manifest import read_manifest
from orbitset.datasets.mnist import data_root, is_mnist_folder, load_mnist
from orbitset.datasets.multi_pie import crop_by_camera, scan_multi_pie
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.plain import is_plain, load_plain
from orbitset.datasets.segments import SegmentConfig
from orbitset.datasets.shards import read_shards
from orbitset.datasets.table import (
    ImageTable,
    OnProblem,
    Problem,
    orbit_problems,
    stop_if_any,
)
from orbitset.datasets.video import SUFFIXES as VIDEOS
from orbitset.datasets.video import load_videos, split_by_time
from orbitset.errors import DataError

MULTI_PIE = "multi-pie:"
FACES = ("pie32", "pointing04")
"""Sets of faces that are looked for under the data root, each with its manifest.csv"""
MANIFESTS = (".csv", ".tsv", ".parquet", ".pq")


def load_splits(data: str, *, size_px: int | None = None, is_colour: bool | None = None) -> Splits:
    """The splits of `mnist`, of `digits`, or of what lies at a path; plain images are brought to a size, and
    their colours kept or not."""
    match data:
        case "mnist":
            return load_mnist()
        case "digits":
            return load_digits()
    path = Path(data)
    if path.is_file() and path.suffix.lower() in (".npy", ".npz"):
        return split(load_array(path))
    if path.is_dir() and is_mnist_folder(path):
        return load_mnist(path, download=False)
    if is_plain(data):
        return load_plain(data, size_px=size_px, is_colour=is_colour)
    raise DataError(
        f"{path} is not data that can be read; give a folder of images or with MNIST's idx files, "
        "or a .npy or .npz file of images"
    )


def load_observed(
    data: str,
    *,
    orbit: Sequence[str],
    target: tuple[str, str] | None = None,
    factors: Sequence[str] = (),
    size_px: int | None = None,
    is_colour: bool = False,
    min_members: int = 2,
    on_problem: OnProblem = "stop",
    crops: str | None = None,
    segments: SegmentConfig | None = None,
    trained_share: float = 0.6,
    is_kept: bool = True,
    device: str = "cpu",
    on_progress: Progress | None = None,
) -> tuple[ObservedImages, tuple[Problem, ...]]:
    """Images with factors, and the problems of those that were left out.

    `data` is `heads` or, for some of them, `heads:20x6` (people x lights), `multi-pie:` and its folder,
    `pie32`, `pointing04`, the path of a manifest, of shards, or of a folder with a sub-folder for each orbit.
    `orbit`, `target` and `min_members` say which orbits can be used. `crops` is a CSV of boxes or a folder of
    landmarks. Of videos, `segments` says what an orbit is, and `trained_share` what is trained on, from the
    start of each. Without `is_kept` nothing is written to the cache. To stop because of problems, all of them
    are looked for first.
    """
    name, _, rest = data.partition(":")
    if name == "heads":
        people, lights = _heads_asked(rest)
        size_px = size_px or 64
        heads = load_heads(people, lights, size_px=size_px, device=device, on_progress=on_progress)
        return heads, ()
    if is_video(data):
        videos = load_videos(
            Path(data),
            size_px=size_px or 64,
            is_colour=is_colour,
            segments=segments,
            on_problem=on_problem,
            is_kept=is_kept,
            on_progress=on_progress,
        )
        return split_by_time(videos.seen, trained_share), videos.problems
    if data.startswith(MULTI_PIE):
        table = scan_multi_pie(Path(data.removeprefix(MULTI_PIE))).table
        table = crop_by_camera(table) if crops is None else table
    else:
        table = table_at(data, factors=factors, on_problem="skip")
    if crops is not None:
        table = crop(table, Path(crops), "skip")
    table = _usable(table, orbit, target, min_members)
    asked: dict[str, Any] = {
        "size_px": size_px,
        "is_colour": is_colour,
        "on_problem": "skip",
        "is_kept": is_kept,
        "on_progress": on_progress,
    }
    images, left = load_images(table, **asked)
    settled = _usable(left, orbit, target, min_members)
    if len(settled) < len(left):  # what could not be decoded took its orbit with it
        images, settled = load_images(settled, **asked)
    if on_problem == "stop":
        stop_if_any(data, settled.left_out)
    return images, settled.left_out


def table_at(
    data: str, *, factors: Sequence[str] = (), on_problem: OnProblem = "stop"
) -> ImageTable:
    """The image files a manifest names, or that lie in a folder or in shards."""
    if is_sharded(data):
        return read_shards(data, *find_shards(data), factors=factors, on_problem=on_problem)
    if not Path(data).is_dir():
        return read_manifest(manifest_of(data), factors=factors, on_problem=on_problem)
    manifest = Path(data) / MANIFEST
    if manifest.is_file():
        return read_manifest(manifest, factors=factors, on_problem=on_problem)
    table = scan_folder(data).table.require(factors)
    loose = [
        Problem(row, f"{path} lies in no sub-folder, and so in no orbit")
        for row, path, orbit in zip(table.rows, table.paths, table.columns[ORBIT], strict=True)
        if not orbit
    ]
    return table.without(loose, on_problem)


def is_video(data: str) -> bool:
    """Whether it is a video, or a folder with videos and without images."""
    path = Path(data)
    if path.is_file():
        return path.suffix.lower() in VIDEOS
    return path.is_dir() and not holds_images(path) and holds_files(path, VIDEOS)


def is_sharded(data: str) -> bool:
    """Whether it is a tar, a pattern of such, or a folder with tars and without images."""
    return bool(find_shards(data)[1]) and not is_mnist_folder(Path(data))


def has_sub_folders(data: str) -> bool:
    """Whether it is a folder that says by its sub-folders what the orbits are."""
    path = Path(data)
    return path.is_dir() and not (path / MANIFEST).is_file() and not is_sharded(data)


def is_table(data: str) -> bool:
    """Whether it names a table of image files, and not images as such."""
    if data.startswith(MULTI_PIE) or data in FACES or Path(data).suffix.lower() in MANIFESTS:
        return True
    return is_sharded(data) or (Path(data).is_dir() and holds_images(Path(data)))


def manifest_of(data: str) -> Path:
    """The manifest at a path, or of a set that lies under the data root by its name."""
    if data in FACES:
        manifest = data_root() / data / "manifest.csv"
        if not manifest.is_file():
            raise DataError(
                f"{data} is looked for in {manifest.parent}, and its manifest.csv is not there",
                hint="say where it lies with --root, or set ORBITSET_DATA to the folder that holds it",
            )
        return manifest
    if Path(data).suffix.lower() not in MANIFESTS:
        raise DataError(
            f"{data} is not data with factors; give heads, multi-pie:FOLDER, {', '.join(FACES)}, "
            f"or a manifest in {', '.join(MANIFESTS)}"
        )
    return Path(data)


def _usable(
    table: ImageTable,
    orbit: Sequence[str],
    target: tuple[str, str] | None,
    min_members: int,
) -> ImageTable:
    problems = orbit_problems(table, orbit, target, min_members=min_members)
    return table.without(problems, "skip")


def _heads_asked(text: str) -> tuple[int | None, int | None]:
    """People and lights: 20x6; all of both if nothing is said."""
    if not text:
        return None, None
    people, _, lights = text.partition("x")
    if not (people.isdecimal() and lights.isdecimal()):
        raise DataError(
            f"heads:{text} is not understood; give heads:20x6 for 20 people in 6 lights"
        )
    return int(people), int(lights)
