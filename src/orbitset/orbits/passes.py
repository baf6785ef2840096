"""Divides a round into passes: which orbits each pass visits, and with which of their members.

The members of an orbit are shuffled for a round and laid out in *slots*; a visit shows a range of slots.

Orbits of one size M are visited in every pass. The lengths of the ranges differ by at most one and are as
near to K as possible: 33 members with K = 4 make seven ranges of 4 and one of 5. With K > 1 every range holds
a pair.

If orbits have many sizes, a smaller one repeats its members, and a round shows a random part of a larger
one. Weighted per *orbit*, all are visited equally often, as if each had the median size. Weighted per
*image*, K members are shown at a time, and each orbit is visited in proportion to its size, spread over the
round, but only so often that every pass has enough orbits for a batch.

Shapes: N orbits, P of them in a batch, K members of each.
"""

import bisect
import math
from typing import Literal

import torch
from torch import Tensor

from orbitset.seeds import stream

Weighting = Literal["orbit", "image"]


class EqualPasses:
    """Every pass visits every orbit, with as many members of each."""

    def __init__(self, num_orbits: int, members: int, members_per_batch: int) -> None:
        self.num_orbits, self.members = num_orbits, members
        self.count = max(1, round(members / members_per_batch))
        if members_per_batch > 1:
            self.count = min(self.count, max(1, members // 2))
        self.widest = math.ceil(members / self.count)

    def width(self, number: int) -> int:
        """The number of members that pass `number` shows of each orbit."""
        return self._before(number + 1) - self._before(number)

    def num_visited(self, number: int) -> int:
        del number
        return self.num_orbits

    def visited(self, number: int) -> Tensor:
        """The orbits that a pass visits, in ascending order."""
        del number
        return torch.arange(self.num_orbits)

    def slots(self, number: int, orbit_P: Tensor) -> Tensor:
        """The slots of the shuffled members that a pass shows of these orbits, (P, K)."""
        slots = torch.arange(self._before(number), self._before(number + 1), device=orbit_P.device)
        return slots.expand(len(orbit_P), -1)

    def _before(self, number: int) -> int:
        return number * self.members // self.count


class ProportionalPasses:
    """Each orbit is visited in proportion to its size.

    >>> size_N = torch.tensor([2, 2, 8])
    >>> passes = ProportionalPasses(size_N, members_per_batch=2, orbits_per_batch=1)
    >>> visited = torch.cat([passes.visited(number) for number in range(passes.count)])
    >>> passes.count, visited.bincount().tolist()
    (4, [1, 1, 4])
    """

    def __init__(
        self, size_N: Tensor, *, members_per_batch: int, orbits_per_batch: int, seed: int = 0
    ) -> None:
        self.widest = members_per_batch
        size_N = size_N.cpu()
        visits_N = (size_N.double() / members_per_batch).round().long().clamp(min=1)
        self.count = _most_passes(visits_N, orbits_per_batch)
        visits_N = visits_N.clamp(max=self.count)
        # visit v of an orbit falls into pass floor((v + offset) * count / visits)
        offset_N = torch.rand(len(size_N), generator=stream("visits", seed), dtype=torch.float64)
        self._visits_N, self._offset_N = visits_N.double(), offset_N
        self._before: tuple[int, Tensor] | None = None
        visited = [self.visited(number) for number in range(self.count)]
        self._num_visited = [len(orbits) for orbits in visited]

    def width(self, number: int) -> int:
        del number
        return self.widest

    def num_visited(self, number: int) -> int:
        return self._num_visited[number]

    def visited(self, number: int) -> Tensor:
        return (self._visits_before(number + 1) > self._visits_before(number)).nonzero().squeeze(1)

    def slots(self, number: int, orbit_P: Tensor) -> Tensor:
        if self._before is None or self._before[0] != number:  # copied once for a pass
            self._before = (number, self._visits_before(number).to(orbit_P.device))
        visit_P = self._before[1][orbit_P]
        within_K = torch.arange(self.widest, device=orbit_P.device)
        return visit_P[:, None] * self.widest + within_K

    def _visits_before(self, number: int) -> Tensor:
        """How often passes 0 to number - 1 visit each orbit."""
        reached = number * self._visits_N / self.count - self._offset_N
        return reached.ceil().long().clamp(min=0)


def _most_passes(visits_N: Tensor, orbits_per_batch: int) -> int:
    """As many passes as the most visited orbit needs, or fewer, so that each pass has a batch of orbits."""

    def is_too_many(count: int) -> bool:
        return int(visits_N.clamp(max=count).sum()) < count * orbits_per_batch

    return (
        bisect.bisect_left(range(1, int(visits_N.max())), True, key=lambda n: is_too_many(n + 1))
        + 1
    )
