"""Batches of P orbits x K members. Batch i is a pure function of the seed and i, so resuming is counting.

An epoch shows every member of every orbit once. A pass visits every orbit once, in a new order, with
K members not yet shown: each orbit's members lie in a random order on a circle, and pass t takes the
window of K that starts at t*K. A window never holds a member twice; when windows come round to the
start (after lcm(M, K) / K passes) the circles are drawn anew. The batches of a pass differ in size by
at most one orbit, and none is left with a single orbit unless that was asked for.

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

    def members(
        self, orbit_B: Tensor, member_B: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

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
        cycle = math.lcm(orbits.num_members, members_per_batch)
        self._passes_per_cycle = cycle // members_per_batch
        self._cycle: tuple[int, Tensor] | None = None
        self._order: tuple[int, Tensor] | None = None

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.position += 1
            yield self.batch(self.position - 1)

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
        orbits = passes * len(self.orbits) + self._orbits_before(index)
        return orbits * self.members_per_batch

    def position_at(self, epochs: float) -> int:
        """The first position by which at least this many epochs have been shown."""
        if not 0 <= epochs < math.inf:
            raise ConfigError(f"epochs is {epochs}; give a number of at least 0")
        orbits = math.ceil(round(epochs * self.images_per_epoch, 6) / self.members_per_batch)
        passes, rest = divmod(orbits, len(self.orbits))
        index = next(i for i in range(self.batches_per_pass + 1) if self._orbits_before(i) >= rest)
        return passes * self.batches_per_pass + index

    def batch(self, index: int) -> Batch:
        """Batch number `index`; does not move the position."""
        orbit_P, member_PK = self.indices(index)
        device = self.orbits.device
        orbit_B = orbit_P.repeat_interleave(self.members_per_batch).to(device)
        generator = stream("fresh", self.seed, index)
        images = self.orbits.members(orbit_B, member_PK.flatten().to(device), generator=generator)
        canonical = self.orbits.canonical(orbit_P.to(device))
        labels = self.orbits.labels_N
        return Batch(
            images=images,
            orbits=orbit_B,
            canonical=canonical.repeat_interleave(self.members_per_batch, 0),
            labels=None if labels is None else labels[orbit_B],
            max_members=self.members_per_batch,
            seed=stable_seed("batch", self.seed, index),
        )

    def indices(self, index: int) -> tuple[Tensor, Tensor]:
        """Which orbits, (P,), and which members of each, (P, K), batch number `index` shows."""
        pass_, index_in_pass = divmod(index, self.batches_per_pass)
        start, stop = self._orbits_before(index_in_pass), self._orbits_before(index_in_pass + 1)
        orbit_P = self._pass_order(pass_)[start:stop]
        cycle, pass_in_cycle = divmod(pass_, self._passes_per_cycle)
        window_K = pass_in_cycle * self.members_per_batch + torch.arange(self.members_per_batch)
        return orbit_P, self._circles(cycle)[orbit_P][:, window_K % self.orbits.num_members]

    def _orbits_before(self, index_in_pass: int) -> int:
        return index_in_pass * len(self.orbits) // self.batches_per_pass

    def _pass_order(self, pass_: int) -> Tensor:
        if self._order is None or self._order[0] != pass_:
            order = torch.randperm(len(self.orbits), generator=stream("order", self.seed, pass_))
            self._order = (pass_, order)
        return self._order[1]

    def _circles(self, cycle: int) -> Tensor:
        if self._cycle is None or self._cycle[0] != cycle:
            shape = (len(self.orbits), self.orbits.num_members)
            keys = torch.rand(shape, generator=stream("circles", self.seed, cycle))
            self._cycle = (cycle, keys.argsort(dim=1, stable=True))
        return self._cycle[1]
