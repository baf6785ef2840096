"""Batches of P orbits x K members. Batch i is a pure function of the seed and i, so resuming is counting.

An epoch shows every member of every orbit once. It is made of passes; a pass visits every orbit once, in a
new order, with members not yet shown. Each orbit's members are shuffled anew for every epoch and cut into
M // K stretches that differ in length by at most one: of 33 members with K = 4, seven stretches of 4 and one
of 5, so that none is too short to hold a pair. The batches of a pass differ by at most one orbit, and none is
left with a single orbit unless that was asked for.

Shapes: N orbits, M members per orbit, B = P*K images in a batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from orbitset.errors import ConfigError
from orbitset.seeds import stable_seed, stream


class Orbits(Protocol):
    """What batches need to know of orbits; computed orbits are one kind."""

    labels_N: Tensor | None
    num_members: int

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def draw(
        self, orbit_B: Tensor, member_B: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def show(self, orbit_B: Tensor, drawn_B: Tensor) -> Tensor: ...

    def canonical(self, orbit_B: Tensor) -> Tensor: ...


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
    """(B,) int64 where known"""
    max_members: int
    """No orbit has more members than this in the batch: lets mining keep fixed shapes."""
    seed: int = 0
    """The batch's own, for whatever a loss draws at random"""


@dataclass(frozen=True)
class Drawn:
    """A batch before its images are made: little enough to be drawn ahead of time."""

    orbits: Tensor
    """(B,) int64"""
    members: Tensor
    """(B, …): what `Orbits.draw` gave for them"""
    members_per_orbit: int
    seed: int


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
        seed: int = 0,
        position: int = 0,
    ) -> None:
        if not 1 <= orbits_per_batch <= len(orbits):
            raise ConfigError(
                f"orbits_per_batch is {orbits_per_batch} but there are {len(orbits)} orbits; "
                f"give 1 to {len(orbits)}"
            )
        if not 1 <= members_per_batch <= orbits.num_members:
            raise ConfigError(
                f"members_per_batch is {members_per_batch} but orbits have {orbits.num_members} "
                f"members; give 1 to {orbits.num_members}"
            )
        self.orbits = orbits
        self.members_per_batch = members_per_batch
        self.seed = seed
        self.position = position
        self.batches_per_pass = math.ceil(len(orbits) / orbits_per_batch)
        if orbits_per_batch > 1:
            self.batches_per_pass = min(self.batches_per_pass, max(1, len(orbits) // 2))
        self.passes_per_epoch = orbits.num_members // members_per_batch
        self.max_members = math.ceil(orbits.num_members / self.passes_per_epoch)
        self._shuffled: tuple[int, Tensor] | None = None
        self._order: tuple[int, Tensor] | None = None

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.position += 1
            yield self.batch(self.position - 1)

    @property
    def is_replayable(self) -> bool:
        """Whether `show` works on the device alone, which the orbits must promise."""
        return bool(getattr(self.orbits, "is_replayable", False))

    @property
    def images_per_epoch(self) -> int:
        return len(self.orbits) * self.orbits.num_members

    @property
    def epoch(self) -> float:
        """Epochs shown so far; a fraction counts images."""
        return self.images_before(self.position) / self.images_per_epoch

    def images_before(self, position: int) -> int:
        """How many images the batches 0 to position - 1 hold together."""
        passes, index = divmod(position, self.batches_per_pass)
        epochs, pass_in_epoch = divmod(passes, self.passes_per_epoch)
        start, stop = self._stretch(pass_in_epoch)
        whole = epochs * self.images_per_epoch + len(self.orbits) * start
        return whole + self._orbits_before(index) * (stop - start)

    def position_at(self, epochs: float) -> int:
        """The first position by which at least this many epochs have been shown."""
        if not 0 <= epochs < math.inf:
            raise ConfigError(f"epochs is {epochs}; give a number of at least 0")
        images = math.ceil(round(epochs * self.images_per_epoch, 6))
        low, high = 0, self.batches_per_pass * self.passes_per_epoch * (math.floor(epochs) + 1)
        while low < high:
            middle = (low + high) // 2
            if self.images_before(middle) < images:
                low = middle + 1
            else:
                high = middle
        return low

    def batch(self, index: int) -> Batch:
        """Batch number `index`; does not move the position."""
        return self.show(self.draw(index))

    def draw(self, index: int) -> Drawn:
        """Choose what batch number `index` shows."""
        orbit_P, member_PK = self.indices(index)
        orbit_B = orbit_P.repeat_interleave(member_PK.shape[1])
        drawn_B = self.orbits.draw(
            orbit_B, member_PK.flatten(), generator=stream("fresh", self.seed, index)
        )
        seed = stable_seed("batch", self.seed, index)
        return Drawn(orbit_B, drawn_B, member_PK.shape[1], seed)

    def show(self, drawn: Drawn) -> Batch:
        """Make the images of what was drawn. Works on the device alone, so that it can be replayed."""
        count = drawn.members_per_orbit
        labels = self.orbits.labels_N
        return Batch(
            images=self.orbits.show(drawn.orbits, drawn.members),
            orbits=drawn.orbits,
            canonical=self.orbits.canonical(drawn.orbits[::count]).repeat_interleave(count, 0),
            labels=None if labels is None else labels[drawn.orbits],
            max_members=self.max_members,
            seed=drawn.seed,
        )

    def indices(self, index: int) -> tuple[Tensor, Tensor]:
        """Which orbits, (P,), and which members of each, (P, K), batch number `index` shows."""
        passes, index_in_pass = divmod(index, self.batches_per_pass)
        epoch, pass_in_epoch = divmod(passes, self.passes_per_epoch)
        first, last = self._orbits_before(index_in_pass), self._orbits_before(index_in_pass + 1)
        orbit_P = self._pass_order(passes)[first:last]
        start, stop = self._stretch(pass_in_epoch)
        return orbit_P, self._shuffled_members(epoch)[orbit_P, start:stop]

    def _orbits_before(self, index_in_pass: int) -> int:
        return index_in_pass * len(self.orbits) // self.batches_per_pass

    def _stretch(self, pass_in_epoch: int) -> tuple[int, int]:
        members, passes = self.orbits.num_members, self.passes_per_epoch
        return pass_in_epoch * members // passes, (pass_in_epoch + 1) * members // passes

    def _pass_order(self, number: int) -> Tensor:
        if self._order is None or self._order[0] != number:
            order = torch.randperm(len(self.orbits), generator=stream("order", self.seed, number))
            self._order = (number, self._on_device(order))
        return self._order[1]

    def _shuffled_members(self, epoch: int) -> Tensor:
        if self._shuffled is None or self._shuffled[0] != epoch:
            shape = (len(self.orbits), self.orbits.num_members)
            keys = torch.rand(shape, generator=stream("members", self.seed, epoch))
            order = self._on_device(keys).argsort(dim=1, stable=True)
            self._shuffled = (epoch, order)
        return self._shuffled[1]

    def _on_device(self, drawn: Tensor) -> Tensor:
        """Copied without waiting for what the device is doing."""
        if self.orbits.device.type == "cuda":
            return drawn.pin_memory().to(self.orbits.device, non_blocking=True)
        return drawn.to(self.orbits.device)
