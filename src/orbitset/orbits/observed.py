"""Orbits of recorded images: which images belong together, and which of them is the target.

Images stay uint8, on the device if they fit. If not, they are streamed: they stay in memory, or in a file
mapped into it, and threads gather the images of the next batches while the device works on this one.

Shapes: N images, O orbits, B images of a batch.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from orbitset.config import bounded, check_fields
from orbitset.errors import ConfigError, DataError, check_choice
from orbitset.orbits.affine import AffineRanges
from orbitset.orbits.augmentation import Augmentation
from orbitset.orbits.passes import Weighting
from orbitset.orbits.photometric import PhotometricRanges

OnProblem = Literal["stop", "skip"]
Chosen = Literal["first", "middle", "medoid"]
_SHARE_OF_DEVICE = 0.5
"""The share of the device's free memory that images may take; the rest is for training."""


@dataclass(frozen=True, kw_only=True)
class ObservedConfig:
    """Which images are one orbit, and how orbits are batched."""

    kind: ClassVar[Literal["computed", "observed"]] = "observed"
    orbit: tuple[str, ...]
    """Factors that all members of an orbit share"""
    canonical: str | None = None
    """The target of each orbit: the member with factor=value, or its first member (the default), its middle
    one, or its medoid, whose pixels are nearest to all others"""
    label: str | None = None
    """The factor to recognise"""
    classes: str | None = None
    """A factor with classes to learn beside the orbits; images may leave it empty"""
    size_px: int | None = bounded(None, at_least=2)
    """Side of the square that images are fitted into; without it all images must have one size"""
    is_colour: bool = False
    crops: str | None = None
    """The part of each image to use: a CSV of boxes (path, left, top, right, bottom), or a folder of
    landmarks"""
    weighting: Weighting = "orbit"
    """What is shown equally often if orbits have many sizes: orbits, or images"""
    alike: str | None = None
    """A factor of the orbits that orbits of a batch share, so that it does not tell them apart"""
    alike_values: int = bounded(1, at_least=1)
    """How many values of that factor a batch has, in equal parts"""
    ignore: tuple[str, ...] = ()
    """Factors that codes are not to tell; what does is projected out of them"""
    min_members: int = bounded(2, at_least=1)
    """An orbit with fewer members is a problem"""
    on_problem: OnProblem = "stop"
    """What to do about unusable images: stop and name them, or skip them and record the list"""
    orbits_per_batch: int = bounded(18, at_least=1)
    members_per_batch: int = bounded(4, at_least=1)
    affine: AffineRanges | None = None
    """How far images are turned, zoomed and shifted in training; null for not at all"""
    photometric: PhotometricRanges | None = None
    """How far their crop, light, colour and focus change in training; null for not at all"""

    def __post_init__(self) -> None:
        check_fields(self, "orbits")
        if not self.orbit:
            raise ConfigError(
                "orbits.orbit is empty; name the factors that members of an orbit share"
            )
        kinds = get_args(Chosen)
        is_named = self.canonical is None or self.canonical in kinds
        if not is_named and not all((self.canonical or "").partition("=")):
            raise ConfigError(
                f"orbits.canonical is {self.canonical!r}; write it as factor=value, such as view=051, "
                f"or as {', '.join(kinds)}"
            )
        self._check_alike()
        for factor in self.ignore:
            if factor in (self.label, self.classes):
                raise ConfigError(
                    f"{factor} is to be recognised and to be ignored; leave it out of orbits.ignore"
                )

    def _check_alike(self) -> None:
        if self.alike is None:
            if self.alike_values > 1:
                raise ConfigError("orbits.alike_values needs a factor; name it in orbits.alike")
            return
        check_choice("orbits.alike", self.alike, self.orbit)
        if self.alike == self.label:
            raise ConfigError(
                f"orbits.alike is {self.alike}, the factor to recognise; name a factor that does not matter"
            )
        if self.alike_values > self.orbits_per_batch:
            raise ConfigError(
                f"orbits.alike_values is {self.alike_values}, but a batch has {self.orbits_per_batch} orbits"
            )

    def showing(self, *, size_px: int, is_colour: bool) -> "ObservedConfig":
        """The same with images of another size, which are shifted by the same share of it."""
        affine = self.affine
        if affine is not None and self.size_px is not None:
            shift = round(affine.translation_px * size_px / self.size_px, 2)
            affine = replace(affine, translation_px=shift)
        return replace(self, size_px=size_px, is_colour=is_colour, affine=affine)

    def augmented(self, size_px: int) -> "ObservedConfig":
        """The same with moderate changes of images that are about so large."""
        moderate = Augmentation.moderate(size_px)
        return replace(self, affine=moderate.affine, photometric=moderate.photometric)

    @property
    def augmentation(self) -> Augmentation | None:
        """How images are augmented in training, if they are."""
        if self.affine is None and self.photometric is None:
            return None
        return Augmentation(self.affine, self.photometric)

    @property
    def target(self) -> tuple[str, str] | None:
        """The factor and the value that mark the target of an orbit."""
        if self.canonical is None or self.canonical in get_args(Chosen):
            return None
        factor, _, value = self.canonical.partition("=")
        return factor.strip(), value.strip()

    @property
    def chosen(self) -> Chosen:
        """Which member is the target if no factor marks it."""
        return next((kind for kind in get_args(Chosen) if kind == self.canonical), "first")

    @property
    def factors(self) -> tuple[str, ...]:
        """All factors that the orbits, their targets and the labels need."""
        named = [*self.orbit, *(self.target or ())[:1], *([self.label] if self.label else [])]
        return tuple(dict.fromkeys(named))


class ObservedOrbits:
    """Orbits of any sizes. The members of orbit o are the images with `orbits == o`, in their order.

    >>> images = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
    >>> orbits = ObservedOrbits(images, torch.tensor([0, 1, 0, 1, 1]), torch.tensor([2, 4]))
    >>> orbits.size_N.tolist(), orbits.draw(torch.tensor([0, 1]), torch.tensor([1, 2])).tolist()
    ([2, 3], [2, 4])
    """

    def __init__(
        self,
        images: Tensor,
        orbits: Tensor,
        canonical: Tensor,
        labels: Tensor | None = None,
        *,
        device: torch.device | str | None = None,
        is_streamed: bool | None = None,
    ) -> None:
        """`canonical` is the row of each orbit's target, `labels` its class where known.

        With `is_streamed` images stay where they are; by default they do if they do not fit on the device.
        """
        self.device = torch.device(device or images.device)
        self.is_streamed = not _fits(images, self.device) if is_streamed is None else is_streamed
        _check(images, orbits, canonical, labels)
        self.images_NCHW = images if self.is_streamed else images.to(self.device)
        at = images.device if self.is_streamed else self.device
        orbits = orbits.to(at)
        self.size_N = torch.bincount(orbits, minlength=len(canonical)).to(self.device)
        self.canonical_row_N = canonical.to(at)
        self.labels_N = None if labels is None else labels.to(self.device)
        self.num_members = int(self.size_N.median())
        self._row = orbits.argsort(stable=True)
        self._first_N = self.size_N.to(at).cumsum(0) - self.size_N.to(at)

    def __len__(self) -> int:
        return len(self.canonical_row_N)

    def draw(
        self, orbit: Tensor, member: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The rows of the members, (B,). Streamed images: the pixels of members and of their targets, on the
        way to the device, (B, 2, C, H, W) uint8."""
        del generator
        orbit, member = orbit.to(self._row.device), member.to(self._row.device)
        rows_B = self._row[self._first_N[orbit] + member]
        if not self.is_streamed:
            return rows_B
        targets_B = self.canonical_row_N[orbit]
        pixels = self.images_NCHW[torch.stack([rows_B, targets_B], 1)]
        if self.device.type == "cuda" and pixels.device.type == "cpu":
            pixels = pixels.pin_memory()
        return pixels.to(self.device, non_blocking=True)

    def show(self, orbit: Tensor, drawn: Tensor) -> Tensor:
        """The images of the members, between 0 and 1."""
        del orbit
        return _to_float(drawn[:, 0] if self.is_streamed else self.images_NCHW[drawn])

    def members(self, orbit: Tensor, member: Tensor) -> Tensor:
        return self.show(orbit, self.draw(orbit, member))

    def canonical(self, orbit: Tensor, drawn: Tensor | None = None) -> Tensor:
        """The target of each orbit; of streamed images, from `drawn`."""
        if drawn is not None and self.is_streamed:
            return _to_float(drawn[:, 1])
        rows_B = self.canonical_row_N[orbit.to(self.canonical_row_N.device)]
        return _to_float(self.images_NCHW[rows_B].to(self.device))


def group_orbits(
    factors: dict[str, Tensor], orbit: tuple[str, ...], canonical: tuple[str, int] | None = None
) -> tuple[Tensor, Tensor]:
    """The orbit of each image, (N,), and the row of each orbit's target, (O,).

    Images with equal numbers of the factors in `orbit` form an orbit; orbits are numbered in the order of
    their values. The target is the member with that number of the canonical factor, or else the first member.

    >>> factors = {"person": torch.tensor([0, 0, 1, 1]), "view": torch.tensor([0, 1, 1, 0])}
    >>> [ids.tolist() for ids in group_orbits(factors, ("person",), ("view", 1))]
    [[0, 0, 1, 1], [1, 2]]
    """
    keys = torch.stack([factors[name] for name in orbit], 1)
    orbit_N = keys.unique(dim=0, return_inverse=True)[1]
    rows_N = torch.arange(len(orbit_N), device=orbit_N.device)
    num = int(orbit_N.max()) + 1
    candidates = rows_N if canonical is None else rows_N[factors[canonical[0]] == canonical[1]]
    if canonical is not None:
        count_O = torch.bincount(orbit_N[candidates], minlength=num)
        if (count_O != 1).any():
            wrong = int((count_O != 1).nonzero()[0])
            raise DataError(
                f"orbit {wrong} has {int(count_O[wrong])} members with {canonical[0]} {canonical[1]}; "
                "give exactly one, the target"
            )
    first_O = torch.full((num,), len(orbit_N), device=orbit_N.device)
    return orbit_N, first_O.scatter_reduce(0, orbit_N[candidates], candidates, "amin")


def choose_targets(chosen: Chosen, images_NCHW: Tensor, orbit_N: Tensor) -> Tensor:
    """The row of the first, the middle or the most typical member of each orbit, (O,).

    >>> images = torch.tensor([0, 10, 200, 7, 9], dtype=torch.uint8).view(5, 1, 1, 1)
    >>> orbit = torch.tensor([0, 0, 0, 1, 1])
    >>> [choose_targets(kind, images, orbit).tolist() for kind in ("first", "middle", "medoid")]
    [[0, 3], [1, 4], [1, 3]]
    """
    size_O = torch.bincount(orbit_N)
    row = orbit_N.argsort(stable=True)
    first_O = size_O.cumsum(0) - size_O
    match chosen:
        case "first":
            return row[first_O]
        case "middle":
            return row[first_O + size_O // 2]
        case "medoid":
            return _medoids(images_NCHW, row, size_O)


def _medoids(images_NCHW: Tensor, row_N: Tensor, size_O: Tensor) -> Tensor:
    """The sum of squared distances of x to all members is n|x|² - 2x·s + const, with s their sum."""
    medoids = []
    for rows in row_N.split(size_O.tolist()):
        pixels = images_NCHW[rows].flatten(1).double()
        spread = len(rows) * pixels.square().sum(1) - 2 * pixels @ pixels.sum(0)
        medoids.append(rows[spread.argmin()])
    return torch.stack(medoids)


def _to_float(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _fits(images: Tensor, device: torch.device) -> bool:
    if device.type != "cuda" or images.device.type == "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() <= free * _SHARE_OF_DEVICE


def classes_of_orbits(class_N: Tensor, orbit_N: Tensor) -> Tensor:
    """The class of each orbit from those of its images, which are negative where unknown: numbered from 0, or
    -1 if no member has a class. Members of different classes raise an error that names two of them.

    >>> classes_of_orbits(torch.tensor([7, -1, -1, 5]), torch.tensor([0, 0, 1, 2])).tolist()
    [1, -1, 0]
    """
    class_O = torch.full((int(orbit_N.max()) + 1,), -1).scatter_reduce(0, orbit_N, class_N, "amax")
    is_other_N = (class_N >= 0) & (class_N != class_O[orbit_N])
    if is_other_N.any():
        row = int(is_other_N.nonzero()[0])
        other = int(((orbit_N == orbit_N[row]) & (class_N == class_O[orbit_N[row]])).nonzero()[0])
        raise SeveralClasses(row, other)
    is_known_O = class_O >= 0
    class_O[is_known_O] = class_O[is_known_O].unique(return_inverse=True)[1]
    return class_O


class SeveralClasses(ValueError):
    """Members of one orbit belong to different classes."""

    def __init__(self, row: int, other: int) -> None:
        super().__init__(f"images {row} and {other} belong to one orbit but to different classes")
        self.rows = (row, other)


def _check(images: Tensor, orbit_N: Tensor, canonical_O: Tensor, labels_O: Tensor | None) -> None:
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise DataError(
            f"images have shape {tuple(images.shape)} and dtype {images.dtype}; give (N, C, H, W) uint8"
        )
    if orbit_N.shape != images.shape[:1] or len(orbit_N) == 0:
        raise DataError(f"there are {len(orbit_N)} orbit ids for {len(images)} images")
    num = len(canonical_O)
    if int(orbit_N.min()) != 0 or not bool((torch.bincount(orbit_N, minlength=num) > 0).all()):
        raise DataError("orbits must be numbered from 0 on without a gap")
    if int(orbit_N.max()) + 1 != num or (labels_O is not None and len(labels_O) != num):
        raise DataError(
            f"there are {int(orbit_N.max()) + 1} orbits, {num} targets and "
            f"{num if labels_O is None else len(labels_O)} labels; give one of each per orbit"
        )
    if not torch.equal(orbit_N[canonical_O], torch.arange(num, device=orbit_N.device)):
        raise DataError("a target does not belong to its orbit")
