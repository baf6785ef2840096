"""Orbits as they were photographed: images that are told to belong together, and which of them is the target.

Images are kept as uint8, on the device if they fit there. If not, they stay in memory, or in a file mapped
into it, and threads gather what the next batches show while the device works on this one.

Shapes: N images, O orbits, B images asked for.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from orbitset.errors import ConfigError, DataError, check_choice
from orbitset.orbits.epochs import Weighting

OnProblem = Literal["stop", "skip"]
Chosen = Literal["first", "middle", "medoid"]
_SHARE_OF_DEVICE = 0.5
"""Of the device's free memory, for images; the rest is for training."""


@dataclass(frozen=True, kw_only=True)
class ObservedConfig:
    """Which images are one orbit, and how orbits are batched."""

    kind: ClassVar[Literal["computed", "observed"]] = "observed"
    orbit: tuple[str, ...]
    """Factors that all members of an orbit share"""
    canonical: str | None = None
    """The target of each orbit: factor=value, or its first member, as if nothing is given, its middle one, or
    its medoid, which is nearest to all others in its pixels"""
    label: str | None = None
    """The factor that is to be recognised"""
    classes: str | None = None
    """A factor that some images have, and others leave empty: classes to be learned beside the orbits"""
    size_px: int | None = None
    """Images are fitted into a square of that size; if not given, they must have one size"""
    is_colour: bool = False
    crops: str | None = None
    """A CSV of boxes (path, left, top, right, bottom), or a folder of landmarks: the part of images to use"""
    weighting: Weighting = "orbit"
    """What is shown equally often where orbits have many sizes: orbits, or images"""
    alike: str | None = None
    """One of the orbit's factors: a batch shows orbits that share it, which they cannot be told apart by"""
    alike_values: int = 1
    """How many values of that factor a batch shows, each with as many orbits as the others"""
    min_members: int = 2
    """An orbit with fewer is a problem"""
    on_problem: OnProblem = "stop"
    """What becomes of images that cannot be used: stop and name them, or skip them and keep the list"""
    orbits_per_batch: int = 18
    members_per_batch: int = 4

    def __post_init__(self) -> None:
        check_choice("orbits.weighting", self.weighting, get_args(Weighting))
        check_choice("orbits.on_problem", self.on_problem, get_args(OnProblem))
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
        for name in ("min_members", "orbits_per_batch", "members_per_batch", "alike_values"):
            if getattr(self, name) < 1:
                raise ConfigError(f"orbits.{name} is {getattr(self, name)}; give at least 1")
        if self.size_px is not None and self.size_px < 2:
            raise ConfigError(f"orbits.size_px is {self.size_px}; give at least 2")
        self._check_alike()

    def _check_alike(self) -> None:
        if self.alike is None:
            if self.alike_values > 1:
                raise ConfigError("orbits.alike_values is of the factor orbits.alike; name it")
            return
        check_choice("orbits.alike", self.alike, self.orbit)
        if self.alike == self.label:
            raise ConfigError(
                f"orbits.alike is {self.alike}, which is to be recognised; name a factor that does not matter"
            )
        if self.alike_values > self.orbits_per_batch:
            raise ConfigError(
                f"orbits.alike_values is {self.alike_values}, but a batch has {self.orbits_per_batch} orbits"
            )

    def showing(self, *, size_px: int, is_colour: bool) -> "ObservedConfig":
        """The same with images of another size."""
        return replace(self, size_px=size_px, is_colour=is_colour)

    @property
    def target(self) -> tuple[str, str] | None:
        """The factor and the value that tell an orbit's target."""
        if self.canonical is None or self.canonical in get_args(Chosen):
            return None
        factor, _, value = self.canonical.partition("=")
        return factor.strip(), value.strip()

    @property
    def chosen(self) -> Chosen:
        """Which member is the target where no factor tells."""
        return next((kind for kind in get_args(Chosen) if kind == self.canonical), "first")

    @property
    def factors(self) -> tuple[str, ...]:
        """All that are named here."""
        named = [*self.orbit, *(self.target or ())[:1], *([self.label] if self.label else [])]
        return tuple(dict.fromkeys(named))


class ObservedOrbits:
    """Orbits of any sizes. Orbit o is shown by the images with `orbit_N == o`, numbered in their order.

    >>> images = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
    >>> orbits = ObservedOrbits(images, torch.tensor([0, 1, 0, 1, 1]), torch.tensor([2, 4]))
    >>> orbits.size_N.tolist(), orbits.draw(torch.tensor([0, 1]), torch.tensor([1, 2])).tolist()
    ([2, 3], [2, 4])
    """

    def __init__(
        self,
        images_NCHW: Tensor,
        orbit_N: Tensor,
        canonical_O: Tensor,
        labels_O: Tensor | None = None,
        *,
        device: torch.device | str | None = None,
        is_streamed: bool | None = None,
    ) -> None:
        """`canonical_O` is the row of each orbit's target, `labels_O` its class where known.

        `is_streamed` says whether images stay where they are: by default if the device has no room for them.
        """
        self.device = torch.device(device or images_NCHW.device)
        self.is_streamed = (
            not _fits(images_NCHW, self.device) if is_streamed is None else is_streamed
        )
        _check(images_NCHW, orbit_N, canonical_O, labels_O)
        self.images_NCHW = images_NCHW if self.is_streamed else images_NCHW.to(self.device)
        at = images_NCHW.device if self.is_streamed else self.device
        orbit_N = orbit_N.to(at)
        self.size_N = torch.bincount(orbit_N, minlength=len(canonical_O)).to(self.device)
        self.canonical_row_N = canonical_O.to(at)
        self.labels_N = None if labels_O is None else labels_O.to(self.device)
        self.num_members = int(self.size_N.median())
        self._row = orbit_N.argsort(stable=True)
        self._first_N = self.size_N.to(at).cumsum(0) - self.size_N.to(at)

    def __len__(self) -> int:
        return len(self.canonical_row_N)

    def draw(
        self, orbit_B: Tensor, member_B: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The rows of the chosen members, (B,); of images that are streamed the pixels, see `gather`."""
        del generator
        rows_B = self.rows(orbit_B, member_B)
        return self.gather(orbit_B, rows_B) if self.is_streamed else rows_B

    def rows(self, orbit_B: Tensor, member_B: Tensor) -> Tensor:
        at = self._row.device
        return self._row[self._first_N[orbit_B.to(at)] + member_B.to(at)]

    def gather(self, orbit_B: Tensor, rows_B: Tensor) -> Tensor:
        """Members and the targets of their orbits, (B, 2, C, H, W) uint8, on the way to the device."""
        targets_B = self.canonical_row_N[orbit_B.to(rows_B.device)]
        pixels = self.images_NCHW[torch.stack([rows_B, targets_B], 1)]
        if self.device.type == "cuda" and pixels.device.type == "cpu":
            pixels = pixels.pin_memory()
        return pixels.to(self.device, non_blocking=True)

    def show(self, orbit_B: Tensor, drawn_B: Tensor) -> Tensor:
        """The chosen members as images between 0 and 1."""
        del orbit_B
        return _to_float(drawn_B[:, 0] if self.is_streamed else self.images_NCHW[drawn_B])

    def members(self, orbit_B: Tensor, member_B: Tensor) -> Tensor:
        return self.show(orbit_B, self.draw(orbit_B, member_B))

    def canonical(self, orbit_B: Tensor, drawn_B: Tensor | None = None) -> Tensor:
        """The target of each chosen orbit; where images are streamed, out of what was drawn."""
        if drawn_B is not None and self.is_streamed:
            return _to_float(drawn_B[:, 1])
        rows_B = self.canonical_row_N[orbit_B.to(self.canonical_row_N.device)]
        return _to_float(self.images_NCHW[rows_B].to(self.device))


def group_orbits(
    factors: dict[str, Tensor], orbit: tuple[str, ...], canonical: tuple[str, int] | None = None
) -> tuple[Tensor, Tensor]:
    """The orbit of each image, (N,), and the row of each orbit's target, (O,).

    Images with the same numbers of the factors in `orbit` are one orbit; orbits are numbered in the order of
    their values. The target is the member with that number of the canonical factor, without one the first.

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
                "one is needed, the target"
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
    """The sum of squared distances to all members is n|x|² - 2x·s + const, s being their sum."""
    found = []
    for rows in row_N.split(size_O.tolist()):
        pixels = images_NCHW[rows].flatten(1).double()
        spread = len(rows) * pixels.square().sum(1) - 2 * pixels @ pixels.sum(0)
        found.append(rows[spread.argmin()])
    return torch.stack(found)


def _to_float(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _fits(images: Tensor, device: torch.device) -> bool:
    if device.type != "cuda" or images.device.type == "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() <= free * _SHARE_OF_DEVICE


def classes_of_orbits(class_N: Tensor, orbit_N: Tensor) -> Tensor:
    """From the class of each image, below 0 where none is known, to that of each orbit: that of any member,
    numbered from 0 as they occur, or -1. An error names two rows of one orbit that differ.

    >>> classes_of_orbits(torch.tensor([7, -1, -1, 5]), torch.tensor([0, 0, 1, 2])).tolist()
    [1, -1, 0]
    """
    class_O = torch.full((int(orbit_N.max()) + 1,), -1).scatter_reduce(0, orbit_N, class_N, "amax")
    is_other_N = (class_N >= 0) & (class_N != class_O[orbit_N])
    if is_other_N.any():
        one = int(is_other_N.nonzero()[0])
        other = int(((orbit_N == orbit_N[one]) & (class_N == class_O[orbit_N[one]])).nonzero()[0])
        raise SeveralClasses(one, other)
    is_known_O = class_O >= 0
    found_O = torch.full_like(class_O, -1)
    found_O[is_known_O] = class_O[is_known_O].unique(return_inverse=True)[1]
    return found_O


class SeveralClasses(ValueError):
    """Members of one orbit are of different classes."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"images {one} and {other} are of one orbit and of different classes")
        self.rows = (one, other)


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
        raise DataError("a target lies in another orbit than its own")
