"""How an epoch is cut into passes: which orbits each visits, and with which of their members.

Every orbit's members are shuffled for an epoch and laid out in *slots*; a visit shows a stretch of them.

Orbits of one size M are visited in every pass, in stretches that differ in length by at most one and are as
near to K as can be: of 33 members with K = 4, seven of 4 and one of 5. None is too short to hold a pair.

Of orbits of many sizes a smaller one repeats its members, and of a larger one an epoch shows a random part.
Weighted per *orbit*, all are visited equally often, as if each had the median size. Weighted per *image*, K
members are shown at a time, and each orbit is visited in proportion to its size, spread over the epoch, but
no oftener than leaves enough orbits for a batch in every pass.

Shapes: N orbits, P of them in a batch, K members of each.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from orbitset.seeds import stream

Weighting = Literal["orbit", "image"]


class EqualPasses:
    """Every orbit in every pass, with as many members as the others."""

    def __init__(self, num_orbits: int, members: int, members_per_batch: int) -> None:
        self.num_orbits, self.members = num_orbits, members
        self.count = max(1, round(members / members_per_batch))
        if members_per_batch > 1:
            self.count = min(self.count, max(1, members // 2))
        self.widest = math.ceil(members / self.count)

    def width(self, number: int) -> int:
        """How many members of each orbit pass `number` shows."""
        return self._before(number + 1) - self._before(number)

    def num_visited(self, number: int) -> int:
        del number
        return self.num_orbits

    def visited(self, number: int) -> Tensor:
        """The orbits of a pass, in their order."""
        del number
        return torch.arange(self.num_orbits)

    def slots(self, number: int, orbit_P: Tensor) -> Tensor:
        """Which of their shuffled members the orbits show, (P, K)."""
        slots = torch.arange(self._before(number), self._before(number + 1), device=orbit_P.device)
        return slots.expand(len(orbit_P), -1)

    def _before(self, number: int) -> int:
        return number * self.members // self.count


class ProportionalPasses:
    """Every orbit as often as its size asks for.

    >>> size_N = torch.tensor([2, 2, 8])
    >>> passes = ProportionalPasses(size_N, members_per_batch=2, orbits_per_batch=1)
    >>> visited = torch.cat([passes.visited(number) for number in range(passes.count)])
    >>> passes.count, visited.bincount().tolist()
    (4, [1, 1, 4])
    """

    def __init__(
        self,
        size_N: Tensor,
        *,
        members_per_batch: int,
        orbits_per_batch: int,
        seed: int = 0,
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
        """How often each orbit was visited in the passes 0 to number - 1."""
        reached = number * self._visits_N / self.count - self._offset_N
        return reached.ceil().long().clamp(min=0)


def _most_passes(visits_N: Tensor, orbits_per_batch: int) -> int:
    """As many passes as the most visited orbit asks for, or as leave a batch of orbits for each."""
    low, high = 1, int(visits_N.max())
    while low < high:
        middle = (low + high + 1) // 2
        if int(visits_N.clamp(max=middle).sum()) >= middle * orbits_per_batch:
            low = middle
        else:
            high = middle - 1
    return low
