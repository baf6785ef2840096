"""One front door for data: `open_source` decides once what a name or a path is.

It gives one of a few small classes, which looked at the disk once and are handed on. Each says for itself how
its images are loaded, with factors or as single images, how they are listed by name, and how it is checked.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

from orbitset.datasets import inspect
from orbitset.datasets.arrays import load_array, load_parts, rows_of
from orbitset.datasets.crops import crop
from orbitset.datasets.decode import Decoding, Progress, load_images
from orbitset.datasets.digits import load_digits
from orbitset.datasets.folder import MANIFEST, ORBIT, ImageFiles, list_folder
from orbitset.datasets.heads import factors_of_heads, load_heads, people_and_lights
from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.manifest import read_manifest
from orbitset.datasets.mnist import data_root, is_mnist_folder, load_mnist
from orbitset.datasets.multi_pie import CANONICAL, MultiPieFiles, crop_by_camera, scan_multi_pie
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.outside_images import table_of
from orbitset.datasets.pictures import SUFFIXES as IMAGES
from orbitset.datasets.pictures import ImageForm
from orbitset.datasets.plain import load_plain
from orbitset.datasets.shards import is_tar, read_shards, scan_shards, shards_at
from orbitset.datasets.table import Grouping, ImageTable, OnProblem, Problem, stop_if_any
from orbitset.datasets.video import SUFFIXES as VIDEOS
from orbitset.datasets.video import frames_in, load_videos, split_by_time, videos_in
from orbitset.errors import ConfigError, DataError
from orbitset.outside import is_name

MULTI_PIE = "multi-pie:"
FACES = ("pie32", "pointing04")
"""Sets of faces that are looked for under the data root, each with its manifest.csv"""
MANIFESTS = (".csv", ".tsv", ".parquet", ".pq")
ARRAYS = (".npy", ".npz")
HEADS_PX = 64


class UnknownSource(DataError):
    """Nothing of that name or path is known."""


Observed = tuple[ObservedImages, tuple[Problem, ...]]
"""Images with factors, and the problems of those that were left out"""
_SKIPPING = Decoding(is_colour=None, on_problem="skip")


@dataclass(frozen=True)
class Source:
    """What a name or a path stands for."""

    spec: str

    def load_observed(
        self, grouping: Grouping, decoding: Decoding, on_progress: Progress | None = None
    ) -> Observed:
        """Images with factors in the orbits of a grouping, and the problems of those that were left out."""
        raise DataError(
            f"{self.spec} is not data with factors; give heads, {MULTI_PIE}FOLDER, {', '.join(FACES)}, "
            f"a folder with sub-folders, shards, videos, or a manifest in {', '.join(MANIFESTS)}"
        )

    def load_splits(self, decoding: Decoding = _SKIPPING) -> Splits:
        """Single images in three parts."""
        raise DataError(
            f"{self.spec} is not data of single images; give a folder of images without sub-folders or "
            "with MNIST's idx files, or a .npy or .npz file of images"
        )

    def images(self, form: ImageForm) -> ImageFiles:
        """All images by name, to be read one by one in that form, and the files that are none."""
        raise DataError(f"the images of {self.spec} have no names; give files, or a table of them")

    def check(self) -> inspect.Check:
        """Read everything, and say what it holds and what is wrong with it."""
        return inspect.check_splits(self.spec, self.load_splits())


@dataclass(frozen=True)
class TableSource(Source, ABC):
    """Images that a table names with their factors."""

    usual_orbit: ClassVar[tuple[str, ...] | None] = None
    """The factors that members of an orbit share, where they are known"""
    usual_target: ClassVar[str | None] = None

    @abstractmethod
    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        """The images that can be used, all of which have these factors."""

    def other_files(self) -> dict[str, Sequence[str]]:
        """Files that are missing, and files that are no images or not used."""
        return {}

    def images(self, form: ImageForm) -> ImageFiles:
        return ImageFiles(self.cropped(self.table(), None).named)

    def cropped(self, table: ImageTable, crops: str | None) -> ImageTable:
        """The table with the boxes of a file, if there is one."""
        return table if crops is None else crop(table, Path(crops), "skip")

    def load_observed(
        self, grouping: Grouping, decoding: Decoding, on_progress: Progress | None = None
    ) -> Observed:
        """To stop because of problems, all of them are looked for first."""
        table = self.cropped(self.table(grouping.factors), decoding.crops)
        images, table = load_images(
            grouping.usable(table),
            size_px=decoding.size_px,
            is_colour=bool(decoding.is_colour),
            on_problem="skip",
            is_cached=decoding.is_cached,
            on_progress=on_progress,
        )
        rest = grouping.usable(table)
        if len(rest) < len(table):  # an image that could not be decoded takes its orbit with it
            rows = set(rest.rows)
            places = [at for at, row in enumerate(table.rows) if row in rows]
            images = ObservedImages.of(images.images[places], rest.columns)
        if decoding.on_problem == "stop":
            stop_if_any(self.spec, rest.left_out)
        return images, rest.left_out

    def check(
        self,
        orbit: Sequence[str] | None = None,
        canonical: str | None = None,
        crops: Path | None = None,
    ) -> inspect.Check:
        """Read every row and every image, and go on whatever is wrong with them."""
        orbit, canonical = orbit or self.usual_orbit, canonical or self.usual_target
        if canonical is not None and orbit is None:
            raise ConfigError("--canonical is for orbits; name the factors they share with --orbit")
        target = inspect.parse_target(canonical)
        table = self.table((*(orbit or ()), *(target or ())[:1]))
        orbit = (ORBIT,) if orbit is None and ORBIT in table.columns else orbit
        table = table if crops is None else crop(table, crops, "skip")
        return inspect.check_table(self.spec, table, orbit, target).beside(**self.other_files())


@dataclass(frozen=True)
class Folder(TableSource):
    """A folder of images with a sub-folder for each orbit."""

    usual_orbit = (ORBIT,)
    files: ImageFiles

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        table = replace(self.files.table, source=self.spec).require(factors)
        loose = [
            Problem(row, f"{path} lies in no sub-folder, and so in no orbit")
            for row, path, orbit in zip(table.rows, table.paths, table.columns[ORBIT], strict=True)
            if not orbit
        ]
        return table.without(loose, on_problem)

    def images(self, form: ImageForm) -> ImageFiles:
        return self.files.named

    def other_files(self) -> dict[str, Sequence[str]]:
        return {"ignored": self.files.ignored}


@dataclass(frozen=True)
class Manifest(TableSource):
    """A CSV or Parquet table of image files and their factors."""

    path: Path

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        return read_manifest(self.path, factors=factors, on_problem=on_problem)

    def images(self, form: ImageForm) -> ImageFiles:
        table = self.table().named
        problems = (Problem(x.row, f"{self.path}, row {x.row}: {x.reason}") for x in table.left_out)
        return ImageFiles(replace(table, left_out=tuple(problems)))


@dataclass(frozen=True)
class Shards(TableSource):
    """WebDataset shards: tars of images and their factors."""

    root: Path
    names: tuple[str, ...]

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        return read_shards(self.spec, self.root, self.names, factors=factors, on_problem=on_problem)

    def images(self, form: ImageForm) -> ImageFiles:
        names = [str(self.root / name) for name in self.names]
        table, problems = scan_shards(self.spec, Path(), names)
        return ImageFiles(replace(table, left_out=problems))


@dataclass(frozen=True)
class MultiPie(TableSource):
    """A folder with CMU Multi-PIE."""

    usual_orbit = ("person", "light", "session")
    usual_target = f"view={CANONICAL}"
    root: Path

    @cached_property
    def files(self) -> MultiPieFiles:
        """What the folder holds, and what it lacks."""
        return scan_multi_pie(self.root)

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        return self.files.table.require(factors)

    def cropped(self, table: ImageTable, crops: str | None) -> ImageTable:
        return crop_by_camera(table) if crops is None else super().cropped(table, crops)

    def other_files(self) -> dict[str, Sequence[str]]:
        files = self.files
        return {
            "incomplete": tuple(files.incomplete),
            "missing": files.missing,
            "unexpected": files.unexpected,
        }


@dataclass(frozen=True)
class Outside(TableSource):
    """A function from outside the package, named `package.module:function`, that gives images and factors."""

    def table(self, factors: Sequence[str] = (), on_problem: OnProblem = "skip") -> ImageTable:
        table = table_of(self.spec)
        return table.without(table.empty(factors), on_problem)


@dataclass(frozen=True)
class Videos(Source):
    """A video or a folder of videos, whose segments are orbits."""

    root: Path
    names: tuple[str, ...]

    def load_observed(
        self, grouping: Grouping, decoding: Decoding, on_progress: Progress | None = None
    ) -> Observed:
        videos = load_videos(self.spec, self.root, self.names, decoding, on_progress)
        return split_by_time(videos.frames, decoding.video.trained_share), videos.problems

    def images(self, form: ImageForm) -> ImageFiles:
        return ImageFiles(frames_in(self.spec, self.root, self.names, form))

    def check(self) -> inspect.Check:
        decoding = Decoding(is_colour=True, on_problem="skip")
        videos = load_videos(self.spec, self.root, self.names, decoding)
        return inspect.check_videos(self.spec, videos)


@dataclass(frozen=True)
class Heads(Source):
    """Rendered heads."""

    people: int | None = None
    """How many people and lights; None for all"""
    lights: int | None = None

    def load_observed(
        self, grouping: Grouping, decoding: Decoding, on_progress: Progress | None = None
    ) -> Observed:
        size_px, device = decoding.size_px or HEADS_PX, decoding.device
        heads = load_heads(
            self.people, self.lights, size_px=size_px, device=device, on_progress=on_progress
        )
        return heads, ()

    def check(self) -> inspect.Check:
        """What would be rendered; nothing is rendered here."""
        return inspect.check_heads(self.spec, factors_of_heads(self.people, self.lights), HEADS_PX)


@dataclass(frozen=True)
class Plain(Source):
    """A folder of images without sub-folders: every image is an orbit of its own."""

    files: ImageFiles

    def load_splits(self, decoding: Decoding = _SKIPPING) -> Splits:
        return load_plain(self.files.table, decoding)

    def images(self, form: ImageForm) -> ImageFiles:
        return self.files.named

    def check(self) -> inspect.Check:
        check = inspect.check_table(self.spec, replace(self.files.table, columns={}))
        line = "orbits: every image is an orbit of its own, whose members are computed"
        return check.beside(line, ignored=self.files.ignored)


@dataclass(frozen=True)
class Single(Source):
    """Single images of one size: the embedded digits, MNIST, or a .npy or .npz file."""

    load: Callable[[], Splits]
    rows: Callable[[], ImageSet] | None = None
    """All images in the order of their file; None if that is the order of the parts"""

    def load_splits(self, decoding: Decoding = _SKIPPING) -> Splits:
        return self.load()

    def images(self, form: ImageForm) -> ImageFiles:
        return ImageFiles(rows_of(self.spec, self.rows() if self.rows else self.load().whole))


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
        return Single(spec, load_mnist)
    if spec == "digits":
        return Single(spec, load_digits)
    if spec == "heads" or spec.startswith("heads:"):
        return Heads(spec, *people_and_lights(spec))
    return open_path(spec)


def open_path(spec: str) -> Source:
    """The same where no name stands for anything, save for that of a function from outside the package."""
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
        return Single(spec, partial(load_parts, path), partial(load_array, path))
    if is_outside_source(spec):
        return Outside(spec)
    reason = "it is of no known kind" if path.exists() else "there is no such file or name"
    raise UnknownSource(
        f"{spec} is not data that can be read: {reason}",
        is_usage=True,
        hint="give a folder of images, videos or shards, a manifest (.csv, .parquet), a .tar, a video, a "
        f".npy or .npz file, digits, mnist, heads, {MULTI_PIE}FOLDER, {', '.join(FACES)}, or module:function",
    )


def is_outside_source(spec: str) -> bool:
    """Whether a name is that of a function from outside the package, and not of a file."""
    return is_name(spec) and not Path(spec).exists()


def _in_folder(spec: str, folder: Path) -> Source:
    if (folder / MANIFEST).is_file():
        return Manifest(spec, folder / MANIFEST)
    listing = list_folder(folder)
    if listing.ending_in(IMAGES):
        files = listing.images
        is_grouped = any(files.table.columns[ORBIT])
        return Folder(spec, files) if is_grouped else Plain(spec, files)
    if is_mnist_folder(folder):
        return Single(spec, partial(load_mnist, folder, download=False))
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
