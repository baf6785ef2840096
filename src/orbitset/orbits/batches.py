"""Batches of P orbits x K members. Batch i is a pure function of the seed and i, so resuming is counting.

Batches come in rounds. A round consists of passes (`passes.py`); a pass visits orbits in a new order, with
members not shown before. The sizes of a pass's batches differ by at most one orbit, and no batch has a single
orbit unless `orbits_per_batch` is 1.

An epoch shows as many images as there are. If orbits have one size, as computed ones do, a round is an epoch,
which shows every member once. Otherwise small orbits repeat their members, and a round may be longer or
shorter than an epoch.

Shapes: N orbits, M members per orbit, B = P*K images in a batch.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, get_args

import torch
from torch import Tensor

from orbitset.errors import ConfigError, check_choice
from orbitset.orbits.augmentation import Augmentation
from orbitset.orbits.passes import EqualPasses, ProportionalPasses, Weighting
from orbitset.seeds import stable_seed, stream

_AHEAD = 4
"""Batches whose images are fetched at the same time if they are streamed"""


class Orbits(Protocol):
    """What batches need of orbits. Orbits of many sizes also have a `size_N`."""

    labels_N: Tensor | None
    num_members: int

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def draw(
        self, orbit_B: Tensor, member_B: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def show(self, orbit_B: Tensor, drawn_B: Tensor) -> Tensor: ...

    def canonical(self, orbit_B: Tensor, drawn_B: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Batch:
    """P orbits x K members; the members of an orbit lie next to each other."""

    images: Tensor
    """(B, C, S, S) float32"""
    orbits: Tensor
    """(B,) int64"""
    canonical: Tensor
    """(B, C, S, S) float32: for each image, the canonical member of its orbit"""
    labels: Tensor | None
    """(B,) int64, if known"""
    max_members: int
    """The largest number of members of an orbit in any batch, which gives mining fixed shapes."""
    seed: int = 0
    """The seed of whatever a loss draws at random for this batch"""


@dataclass(frozen=True)
class Drawn:
    """A batch before its images are computed: small, so that it can be drawn ahead of time."""

    orbits: Tensor
    """(B,) int64"""
    members: Tensor
    """(B, …): the result of `Orbits.draw`"""
    members_per_orbit: int
    seed: int
    changes: Tensor | None = None
    """(B, Q): the parameters by which images are augmented"""


class OrbitBatches:
    """Iterate over batches for ever, from `position` on.

    >>> from orbitset.orbits.computed import AffineOrbits
    >>> orbits = AffineOrbits(torch.zeros(6, 1, 8, 8, dtype=torch.uint8), canvas_px=16, members=4)
    >>> batches = OrbitBatches(orbits, orbits_per_batch=3, members_per_batch=2)
    >>> next(iter(batches)).orbits.shape, batches.position, batches.epoch
    (torch.Size([6]), 1, 0.25)
    """

    def __init__(
        self,
        orbits: Orbits,
        *,
        orbits_per_batch: int,
        members_per_batch: int,
        weighting: Weighting = "orbit",
        alike: Tensor | None = None,
        alike_values: int = 1,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        position: int = 0,
    ) -> None:
        """If orbits have many sizes, `weighting` says what is shown equally often: orbits, or images.

        With a value for each orbit in `alike`, a batch has `alike_values` equal parts, each of orbits that
        share a value and cannot be told apart by it, except where one value ends and the next begins. With an
        `augmentation` each image of a batch is changed by a draw of its own, and targets are not.
        """
        if not 1 <= orbits_per_batch <= len(orbits):
            raise ConfigError(
                f"orbits_per_batch is {orbits_per_batch} but there are {len(orbits)} orbits; "
                f"give 1 to {len(orbits)}"
            )
        if alike is not None and len(alike) != len(orbits):
            raise ValueError(f"alike has {len(alike)} values for {len(orbits)} orbits")
        if not 1 <= alike_values <= orbits_per_batch:
            raise ConfigError(
                f"alike_values is {alike_values} but a batch has {orbits_per_batch} orbits; "
                f"give 1 to {orbits_per_batch}"
            )
        check_choice("weighting", weighting, get_args(Weighting))
        self.orbits = orbits
        self.augmentation = augmentation
        self.seed = seed
        self.position = position
        self.is_streamed = bool(getattr(orbits, "is_streamed", False))
        self._chosen_on = torch.device("cpu") if self.is_streamed else orbits.device
        size_N: Tensor | None = getattr(orbits, "size_N", None)
        most = orbits.num_members if size_N is None else int(size_N.max())
        if not 1 <= members_per_batch <= most:
            raise ConfigError(
                f"members_per_batch is {members_per_batch} but orbits have {most} "
                f"members; give 1 to {most}"
            )
        has_one_size = size_N is None or bool((size_N == most).all())
        self._size_N = None if size_N is None or has_one_size else size_N.to(self._chosen_on)
        self._passes: EqualPasses | ProportionalPasses
        if size_N is None or has_one_size or weighting == "orbit":
            usual = most if has_one_size or size_N is None else int(size_N.median())
            members = max(usual, members_per_batch)
            self._passes = EqualPasses(len(orbits), members, members_per_batch)
        else:
            self._passes = ProportionalPasses(
                size_N,
                members_per_batch=members_per_batch,
                orbits_per_batch=orbits_per_batch,
                seed=seed,
            )
        self.max_members = self._passes.widest
        visited = [self._passes.num_visited(number) for number in range(self._passes.count)]
        self._batches = [_batches_of(count, orbits_per_batch) for count in visited]
        self._batches_before = [0, *itertools.accumulate(self._batches)]
        images = (count * self._passes.width(number) for number, count in enumerate(visited))
        self._images_before = [0, *itertools.accumulate(images)]
        self._images_per_round = self._images_before[-1]
        self.images_per_epoch = (
            self._images_per_round if self._size_N is None else int(self._size_N.sum())
        )
        self._alike_N = None if alike is None else alike.cpu()
        self._alike_values = alike_values
        self._shuffled: tuple[int, Tensor] | None = None
        self._order: tuple[int, Tensor] | None = None
        self._ahead: dict[int, Future[Drawn]] = {}

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.position += 1
            yield self.batch(self.position - 1)

    @property
    def batches_per_round(self) -> int:
        return self._batches_before[-1]

    @property
    def epoch(self) -> float:
        """Epochs shown so far; a fraction counts images."""
        return self.images_before(self.position) / self.images_per_epoch

    def images_before(self, position: int) -> int:
        """How many images the batches 0 to position - 1 hold together."""
        rounds, number, index = self._place(position)
        within = self._orbits_before(number, index) * self._passes.width(number)
        return rounds * self._images_per_round + self._images_before[number] + within

    def position_at(self, epochs: float) -> int:
        """The first position by which at least this many epochs have been shown."""
        if not 0 <= epochs < math.inf:
            raise ConfigError(f"epochs is {epochs}; give a number of at least 0")
        images = math.ceil(round(epochs * self.images_per_epoch, 6))
        positions = range(self.batches_per_round * (images // self._images_per_round + 1))
        return bisect.bisect_left(positions, images, key=self.images_before)

    def batch(self, index: int) -> Batch:
        """Batch number `index`; does not move the position."""
        return self.show(self.draw(index))

    def draw(self, index: int) -> Drawn:
        """Choose the members of batch number `index`; if images are streamed, begin to fetch the next
        batches."""
        if not self.is_streamed:
            return self._draw(index, *self.indices(index))
        for ahead in range(index, index + _AHEAD):
            if ahead not in self._ahead:
                self._ahead[ahead] = _workers().submit(self._draw, ahead, *self.indices(ahead))
        drawn = self._ahead.pop(index).result()
        self._ahead = {i: task for i, task in self._ahead.items() if index < i < index + _AHEAD}
        return drawn

    def _draw(self, index: int, orbit_P: Tensor, member_PK: Tensor) -> Drawn:
        orbit_B = orbit_P.repeat_interleave(member_PK.shape[1])
        drawn_B = self.orbits.draw(
            orbit_B, member_PK.flatten(), generator=stream("fresh", self.seed, index)
        )
        seed = stable_seed("batch", self.seed, index)
        changes = None
        if self.augmentation is not None:
            generator = stream("augmentation", self.seed, index)
            changes = _copied(self.augmentation.draw(len(orbit_B), generator), self.orbits.device)
        return Drawn(
            _copied(orbit_B, self.orbits.device), drawn_B, member_PK.shape[1], seed, changes
        )

    def show(self, drawn: Drawn) -> Batch:
        """Compute the images of a drawn batch, on the device alone."""
        count = drawn.members_per_orbit
        labels = self.orbits.labels_N
        images = self.orbits.show(drawn.orbits, drawn.members)
        if self.augmentation is not None and drawn.changes is not None:
            images = self.augmentation.apply(images, drawn.changes)
        return Batch(
            images=images,
            orbits=drawn.orbits,
            canonical=self.orbits.canonical(
                drawn.orbits[::count], drawn.members[::count]
            ).repeat_interleave(count, 0),
            labels=None if labels is None else labels[drawn.orbits],
            max_members=self.max_members,
            seed=drawn.seed,
        )

    def indices(self, index: int) -> tuple[Tensor, Tensor]:
        """The orbits (P,) and their members (P, K) in batch number `index`."""
        round_number, number, index_in_pass = self._place(index)
        first = self._orbits_before(number, index_in_pass)
        last = self._orbits_before(number, index_in_pass + 1)
        orbit_P = self._pass_order(round_number, number)[first:last]
        return orbit_P, self._members(round_number, orbit_P, self._passes.slots(number, orbit_P))

    def _place(self, index: int) -> tuple[int, int, int]:
        """The round of a batch, its pass in the round, and its place in the pass."""
        round_number, within = divmod(index, self.batches_per_round)
        number = bisect.bisect_right(self._batches_before, within) - 1
        return round_number, number, within - self._batches_before[number]

    def _orbits_before(self, number: int, index_in_pass: int) -> int:
        return index_in_pass * self._passes.num_visited(number) // self._batches[number]

    def _pass_order(self, round_number: int, number: int) -> Tensor:
        passed = round_number * self._passes.count + number
        if self._order is None or self._order[0] != passed:
            visited = self._passes.visited(number)
            generator = stream("order", self.seed, passed)
            order = visited[torch.randperm(len(visited), generator=generator)]
            if self._alike_N is not None:
                starts = (
                    self._orbits_before(number, at) for at in range(self._batches[number] + 1)
                )
                order = _alike_together(
                    order, self._alike_N[order], list(starts), self._alike_values, generator
                )
            self._order = (passed, self._where_chosen(order))
        return self._order[1]

    def _members(self, round_number: int, orbit_P: Tensor, slot_PK: Tensor) -> Tensor:
        """The members in the slots of the orbits, after shuffling for the round."""
        if self._size_N is None:
            return self._shuffled_members(round_number)[orbit_P[:, None], slot_PK]
        first_N = self._size_N.cumsum(0) - self._size_N
        within = slot_PK % self._size_N[orbit_P, None]
        return self._shuffled_members(round_number)[first_N[orbit_P, None] + within]

    def _shuffled_members(self, round_number: int) -> Tensor:
        """Each orbit's members in a new order: a row per orbit, or end to end if they have many sizes."""
        if self._shuffled is None or self._shuffled[0] != round_number:
            generator = stream("members", self.seed, round_number)
            if self._size_N is None:
                keys = torch.rand(len(self.orbits), self.orbits.num_members, generator=generator)
                order = self._where_chosen(keys).argsort(dim=1, stable=True)
            else:
                order = self._where_chosen(_shuffled(self._size_N.cpu(), generator))
            self._shuffled = (round_number, order)
        return self._shuffled[1]

    def _where_chosen(self, drawn: Tensor) -> Tensor:
        return _copied(drawn, self._chosen_on)


def _alike_together(
    orbit_V: Tensor, alike_V: Tensor, starts: Sequence[int], parts: int, generator: torch.Generator
) -> Tensor:
    """Order orbits so that every batch, from one start to the next, consists of `parts` parts of one value
    each.

    Orbits are sorted by value, with the values in a random order. The first parts of all batches are taken
    from the beginning, batch by batch in a random order, then the second parts, and so on: the parts of a
    batch lie far from each other in that order, and so have different values.
    """
    _, value_V = alike_V.unique(return_inverse=True)
    rank = torch.randperm(int(value_V.max()) + 1, generator=generator)
    by_value = orbit_V[rank[value_V].argsort(stable=True)]
    order = torch.empty_like(orbit_V)
    taken = 0
    for part in range(parts):
        for batch in torch.randperm(len(starts) - 1, generator=generator).tolist():
            start, size = starts[batch], starts[batch + 1] - starts[batch]
            first, last = (start + size * at // parts for at in (part, part + 1))
            order[first:last] = by_value[taken : taken + last - first]
            taken += last - first
    return order


def _shuffled(size_N: Tensor, generator: torch.Generator) -> Tensor:
    """For each orbit the numbers 0 to size - 1 in a random order, end to end."""
    orbit_M = torch.arange(len(size_N)).repeat_interleave(size_N)
    by_key = torch.rand(len(orbit_M), generator=generator).argsort()
    first_M = (size_N.cumsum(0) - size_N).repeat_interleave(size_N)
    return by_key[orbit_M[by_key].argsort(stable=True)] - first_M


def _copied(drawn: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for its work."""
    if device.type == "cuda" and drawn.device.type == "cpu":
        return drawn.pin_memory().to(device, non_blocking=True)
    return drawn.to(device)


def _batches_of(num_orbits: int, orbits_per_batch: int) -> int:
    """The number of batches of a pass."""
    batches = math.ceil(num_orbits / orbits_per_batch)
    return batches if orbits_per_batch == 1 else min(batches, max(1, num_orbits // 2))


@functools.cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AHEAD, thread_name_prefix="orbitset-images")
