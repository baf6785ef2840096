"""One front door for data: `open_source` decides once what a name or a path is.

It gives one of a closed union of small classes, which looked at the disk once and are handed on. Those with
factors are loaded by `load_observed`, single images by `load_splits`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from orbitset.datasets.arrays import load_array, split
from orbitset.datasets.crops import crop
from orbitset.datasets.decode import Decoding, Progress, load_images
from orbitset.datasets.digits import load_digits
from orbitset.datasets.folder import MANIFEST, ORBIT, ImageFiles, Listing, list_folder
from orbitset.datasets.heads import load_heads
from orbitset.datasets.images import Splits
from orbitset.datasets.manifest import read_manifest
from orbitset.datasets.mnist import data_root, is_mnist_folder, load_mnist
from orbitset.datasets.multi_pie import MultiPieFiles, crop_by_camera, scan_multi_pie
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.outside_images import table_of
from orbitset.datasets.pictures import SUFFIXES as IMAGES
from orbitset.datasets.plain import load_plain
from orbitset.datasets.shards import is_tar, read_shards, shards_at
from orbitset.datasets.table import Grouping, ImageTable, OnProblem, Problem, stop_if_any
from orbitset.datasets.video import SUFFIXES as VIDEOS
from orbitset.datasets.video import load_videos, split_by_time, videos_in
from orbitset.errors import DataError
from orbitset.outside import is_name

MULTI_PIE = "multi-pie:"
FACES = ("pie32", "pointing04")
"""Sets of faces that are looked for under the data root, each with its manifest.csv"""
MANIFESTS = (".csv", ".tsv", ".parquet", ".pq")
ARRAYS = (".npy", ".npz")


class UnknownSource(DataError):
    """Nothing of that name or path is known."""


@final
@dataclass(frozen=True)
class Folder:
    """A folder of images with a sub-folder for each orbit."""

    spec: str
    files: ImageFiles

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        table = replace(self.files.table, source=self.spec).require(factors)
        loose = [
            Problem(row, f"{path} lies in no sub-folder, and so in no orbit")
            for row, path, orbit in zip(table.rows, table.paths, table.columns[ORBIT], strict=True)
            if not orbit
        ]
        return table.without(loose, on_problem)


@final
@dataclass(frozen=True)
class Manifest:
    """A CSV or Parquet table of image files and their factors."""

    spec: str
    path: Path

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        return read_manifest(self.path, factors=factors, on_problem=on_problem)


@final
@dataclass(frozen=True)
class Shards:
    """WebDataset shards: tars of images and their factors."""

    spec: str
    root: Path
    names: tuple[str, ...]

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        return read_shards(self.spec, self.root, self.names, factors=factors, on_problem=on_problem)


@final
@dataclass(frozen=True)
class MultiPie:
    """A folder with CMU Multi-PIE."""

    spec: str
    root: Path

    def scan(self) -> MultiPieFiles:
        return scan_multi_pie(self.root)

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        return self.scan().table.require(factors)


@final
@dataclass(frozen=True)
class Outside:
    """A function from outside the package, named `package.module:function`, that gives images and factors."""

    spec: str

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        table = table_of(self.spec)
        return table.without(table.empty(factors), on_problem)


@final
@dataclass(frozen=True)
class Videos:
    """A video or a folder of videos, whose segments are orbits."""

    spec: str
    root: Path
    names: tuple[str, ...]


@final
@dataclass(frozen=True)
class Heads:
    """Rendered heads."""

    spec: str
    people: int | None = None
    """How many people and lights; None for all"""
    lights: int | None = None


@final
@dataclass(frozen=True)
class Plain:
    """A folder of images without sub-folders: every image is an orbit of its own."""

    spec: str
    files: ImageFiles


@final
@dataclass(frozen=True)
class Array:
    """A .npy or .npz file of images."""

    spec: str
    path: Path


@final
@dataclass(frozen=True)
class Digits:
    """The embedded digits."""

    spec: str = "digits"


@final
@dataclass(frozen=True)
class Mnist:
    """MNIST under the data root, or in a folder of its own."""

    spec: str
    folder: Path | None = None


TableSource = Folder | Manifest | Shards | MultiPie | Outside
ObservedSource = TableSource | Videos | Heads
ComputedSource = Plain | Array | Digits | Mnist
Source = ObservedSource | ComputedSource


def open_source(spec: str) -> Source:
    """What a name or a path stands for; files are listed, none is decoded.

    >>> open_source("heads:20x6")
    Heads(spec='heads:20x6', people=20, lights=6)
    """
    if spec.startswith(MULTI_PIE):
        return MultiPie(spec, Path(spec.removeprefix(MULTI_PIE)))
    if spec in FACES:
        return Manifest(spec, _manifest_of_faces(spec))
    if spec == "mnist":
        return Mnist(spec)
    if spec == "digits":
        return Digits()
    if spec == "heads" or spec.startswith("heads:"):
        return _heads(spec)
    path = Path(spec)
    if path.is_dir():
        return _in_folder(spec, path)
    suffix = path.suffix.lower()
    if suffix in MANIFESTS:
        return Manifest(spec, path)
    if is_tar(path.name):
        root = Path(f"{spec.partition('{')[0]}x").parent if not path.is_file() else path.parent
        return Shards(
            spec, root, tuple(Path(tar).relative_to(root).as_posix() for tar in shards_at(path))
        )
    if path.is_file() and suffix in VIDEOS:
        return Videos(spec, path.parent, (path.name,))
    if suffix in ARRAYS and path.is_file():
        return Array(spec, path)
    if is_outside_source(spec):
        return Outside(spec)
    reason = "it is of no known kind" if path.exists() else "there is no such file or name"
    raise UnknownSource(
        f"{spec} is not data that can be read: {reason}",
        hint="give a folder of images, videos or shards, a manifest (.csv, .parquet), a .tar, a video, a "
        f".npy or .npz file, digits, mnist, heads, {MULTI_PIE}FOLDER, {', '.join(FACES)}, or module:function",
    )


def is_outside_source(spec: str) -> bool:
    """Whether a name is that of a function from outside the package, and not of a file."""
    return is_name(spec) and not Path(spec).exists()


def load_observed(
    source: Source, grouping: Grouping, decoding: Decoding, on_progress: Progress | None = None
) -> tuple[ObservedImages, tuple[Problem, ...]]:
    """Images with factors in the orbits of a grouping, and the problems of those that were left out.

    To stop because of problems, all of them are looked for first.
    """
    match source:
        case Heads(people=people, lights=lights):
            size_px, device = decoding.size_px or 64, decoding.device
            return load_heads(
                people, lights, size_px=size_px, device=device, on_progress=on_progress
            ), ()
        case Videos(root=root, names=names):
            videos = load_videos(source.spec, root, names, decoding, on_progress)
            return split_by_time(videos.frames, decoding.video.trained_share), videos.problems
        case MultiPie():
            table = source.table(grouping.factors)
            table = crop_by_camera(table) if decoding.crops is None else table
        case Folder() | Manifest() | Shards() | Outside():
            table = source.table(grouping.factors)
        case _:
            raise DataError(
                f"{source.spec} is not data with factors; give heads, {MULTI_PIE}FOLDER, {', '.join(FACES)}, "
                f"a folder with sub-folders, shards, videos, or a manifest in {', '.join(MANIFESTS)}"
            )
    if decoding.crops is not None:
        table = crop(table, Path(decoding.crops), "skip")
    images, table = load_images(
        grouping.usable(table),
        size_px=decoding.size_px,
        is_colour=decoding.is_colour,
        on_problem="skip",
        is_cached=decoding.is_cached,
        on_progress=on_progress,
    )
    rest = grouping.usable(table)
    if len(rest) < len(table):  # what could not be decoded takes its orbit with it
        rows = set(rest.rows)
        places = [at for at, row in enumerate(table.rows) if row in rows]
        images = ObservedImages.of(images.images[places], rest.columns)
    if decoding.on_problem == "stop":
        stop_if_any(source.spec, rest.left_out)
    return images, rest.left_out


def load_splits(
    source: Source,
    *,
    size_px: int | None = None,
    is_colour: bool | None = None,
    on_problem: OnProblem = "skip",
    is_cached: bool = True,
) -> Splits:
    """Single images in three parts; plain images are brought to a size, and their colours kept or not."""
    match source:
        case Digits():
            return load_digits()
        case Mnist(folder=None):
            return load_mnist()
        case Mnist(folder=folder):
            return load_mnist(folder, download=False)
        case Array(path=path):
            return split(load_array(path))
        case Plain(files=files):
            return load_plain(
                files.table,
                size_px=size_px,
                is_colour=is_colour,
                on_problem=on_problem,
                is_cached=is_cached,
            )
        case _:
            raise DataError(
                f"{source.spec} is not data of single images; give a folder of images without sub-folders or "
                "with MNIST's idx files, or a .npy or .npz file of images"
            )


def _in_folder(spec: str, folder: Path) -> Source:
    if (folder / MANIFEST).is_file():
        return Manifest(spec, folder / MANIFEST)
    listing: Listing = list_folder(folder)
    if listing.ending_in(IMAGES):
        files = listing.images
        is_grouped = any(files.table.columns[ORBIT])
        return Folder(spec, files) if is_grouped else Plain(spec, files)
    if is_mnist_folder(folder):
        return Mnist(spec, folder)
    if videos := videos_in(listing):
        return Videos(spec, folder, tuple(videos))
    if shards := listing.shards:
        return Shards(spec, folder, tuple(shards))
    raise UnknownSource(
        f"{folder} is not data that can be read: there is no image in it, no video, no shard and none of "
        "MNIST's files",
        hint=f"images end in {', '.join(sorted(IMAGES))}; videos in {', '.join(VIDEOS)}",
    )


def _manifest_of_faces(name: str) -> Path:
    manifest = data_root() / name / MANIFEST
    if not manifest.is_file():
        raise DataError(
            f"{name} is looked for in {manifest.parent}, and its {MANIFEST} is not there",
            hint="say where it lies with --root, or set ORBITSET_DATA to the folder that holds it",
        )
    return manifest


def _heads(spec: str) -> Heads:
    if spec == "heads":
        return Heads(spec)
    people, _, lights = spec.removeprefix("heads:").partition("x")
    if not (people.isdecimal() and lights.isdecimal()):
        raise DataError(f"{spec} is not understood; give heads:20x6 for 20 people in 6 lights")
    return Heads(spec, int(people), int(lights))
