"""Verification: do two images show the same thing? Every pair is asked, and its distance is the answer.

Pairs of one label are *same*, all others *different*; a pair for which a rule holds is left out. Calling
pairs up to a threshold "same" accepts a part of the same pairs (TAR, true accept rate) and a part of the
different ones (FAR, false accept rate); a same pair beyond it is a false reject (FRR = 1 - TAR).

Counts are exact integers, given the distances: nothing is sampled or binned. All pairs do not fit into
memory, so they are computed in blocks, again for every pass over them: one pass and a part of one for the
AUC, four more for the operating points.

Shapes: B blocks of pairs, K kept distances.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from math import inf

import torch
from torch import Tensor

from orbitset.evaluation.exclusion import Factors, Rule, check_factors
from orbitset.evaluation.labelled import Labelled, Metric
from orbitset.evaluation.pairs import Pairs

_BYTES_PER_KEPT = {"cpu": 48, "cuda": 80}
"""Of a kept distance: twice its size, and what sorting and the grid take beside it"""
_MOST_KEPT = 2**29
"""Ranks are int32"""
_MOST_CELLS = 2**23
_PIECE = 2**15
"""Values looked up at a time: they stay in the cache, and torch gives them to one thread"""
_DIGIT_BITS = 16


@dataclass(frozen=True)
class OperatingPoint:
    """The most that can be accepted at a false accept rate."""

    asked_far: float
    far: float
    """What is reached: the largest up to the one asked for"""
    tar: float
    threshold: float
    """The largest distance up to which pairs can be called same; -inf where none can"""


@dataclass(frozen=True)
class Verification:
    """What distances tell about pairs."""

    num_same: int
    num_different: int
    num_excluded: int
    doubled_wins: int
    """Over all couples of a same and a different pair: 2 if the same pair is nearer, 1 if they tie"""
    points: tuple[OperatingPoint, ...]
    equal_error_rate: float | None
    """None if no operating points were asked for"""

    @property
    def auc(self) -> float:
        """How often a same pair is nearer than a different one; ties count one half."""
        return self.doubled_wins / (2 * self.num_same * self.num_different)

    @property
    def eer(self) -> float:
        """The rate at which FAR and FRR are equal.

        Operating points of neighbouring distances (and the one that accepts nothing) are joined by straight
        lines; it is read off where FAR = FRR.
        """
        if self.equal_error_rate is None:
            raise ValueError("the operating points were not asked for; verify with some fars")
        return self.equal_error_rate

    def tar_at(self, far: float) -> float:
        """The largest true accept rate with a false accept rate of at most `far`."""
        return self._point_at(far).tar

    def threshold_at(self, far: float) -> float:
        """The largest distance t such that calling pairs with distance <= t same keeps the FAR within `far`.

        It is a distance that occurs: squared Euclidean, or 1 - cosine. It is -inf if the nearest pairs of all
        are already too many wrong ones.
        """
        return self._point_at(far).threshold

    def _point_at(self, far: float) -> OperatingPoint:
        for point in self.points:
            if point.asked_far == far:
                return point
        known = ", ".join(str(point.asked_far) for point in self.points) or "none"
        raise ValueError(f"FAR {far} was not asked for, only {known}; give it to verify in fars")


def verify(
    codes: Labelled,
    *,
    factors: Factors | None = None,
    exclude: Rule | None = None,
    metric: Metric = "euclidean",
    fars: Sequence[float] = (1e-3, 1e-2, 1e-1),
    budget_bytes: int = 2**29,
) -> Verification:
    """Compare all pairs of images; with `fars=()` the AUC alone, which is several times as fast.

    About `budget_bytes` are taken beside a copy of the codes in float64. With less, there are more passes.

    >>> codes = Labelled(torch.tensor([[0.0], [1.0], [5.0], [5.5]]), torch.tensor([0, 0, 1, 1]))
    >>> found = verify(codes, fars=[0.0])
    >>> found.auc, found.eer, found.tar_at(0.0), found.threshold_at(0.0)
    (1.0, 0.0, 1.0, 1.0)
    """
    if len(codes) < 2:
        raise ValueError(f"there are {len(codes)} images; give at least two to make a pair")
    if budget_bytes < 1:
        raise ValueError(f"budget_bytes is {budget_bytes}; give at least 1")
    for far in fars:
        if not 0 <= far < 1:
            raise ValueError(
                f"FAR {far} is not a rate below 1; give fars from 0 up to 1, without 1"
            )
    if exclude is not None:
        check_factors(exclude, factors or {}, len(codes))
    pairs = Pairs(codes, factors or {}, exclude, metric, budget_bytes // 4)
    counts_B2 = pairs.counts()
    same, different = counts_B2.sum(0).tolist()
    for count, kind, more in ((same, "same", "several images of a label"),
                              (different, "different", "images of several labels")):  # fmt: skip
        if count == 0:
            left = "" if exclude is None else f" that {exclude!r} leaves"
            raise ValueError(f"there is no pair of {kind} labels{left}; give {more}")
    doubled_wins = _doubled_wins(pairs, counts_B2, budget_bytes - budget_bytes // 4)
    points, eer = _operating_points(pairs, same, different, fars) if fars else ((), None)
    return Verification(
        num_same=same,
        num_different=different,
        num_excluded=len(codes) * (len(codes) - 1) // 2 - same - different,
        doubled_wins=doubled_wins,
        points=points,
        equal_error_rate=eer,
    )


def auc_of(same_distances: Tensor, different_distances: Tensor) -> float:
    """How often one of the first is less than one of the second; ties count one half, exactly.

    >>> auc_of(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    0.875
    """
    for name, values in (("same", same_distances), ("different", different_distances)):
        if values.numel() == 0:
            raise ValueError(f"there are no {name} distances; an AUC needs both kinds")
        if not values.isfinite().all():
            raise ValueError(f"the {name} distances hold NaN or infinity; give finite ones only")
    same, different = (
        values.detach().double().flatten() for values in (same_distances, different_distances)
    )
    couples = len(same) * len(different)
    if len(same) <= len(different):
        return int(_Ranks(same.repeat(2)).below(different)) / (2 * couples)
    return (2 * couples - int(_Ranks(different.repeat(2)).below(same))) / (2 * couples)


class _Ranks:
    """How many kept distances are below a value.

    Of each kept distance two edges are sorted: itself, and the next larger number. A kept one that is less
    than a value has both up to it, one that is equal the first alone. A grid over their range says where to
    look: the cell of a number never falls as the number grows, so other cells need no comparison.
    """

    def __init__(self, edges_2K: Tensor) -> None:
        """Takes kept distances in the first half, and writes over both."""
        kept, upper = edges_2K.chunk(2)
        torch.nextafter(kept, kept.new_tensor(inf), out=upper)
        if edges_2K.is_cpu:
            edges_2K.numpy().sort()  # in place, and faster
        else:
            edges_2K.copy_(edges_2K.sort().values)
        self._edges_2K = edges_2K
        # of halves, whose difference cannot overflow
        self._low, high = (edges_2K[[0, -1]] / 2).tolist()
        self._num_cells = min(_MOST_CELLS, 1 << len(edges_2K).bit_length())
        scale = self._num_cells / (high - self._low) if high > self._low else inf
        self._scale = 0.0 if scale == inf else scale
        cells = torch.cat([self._cell(piece) for piece in edges_2K.split(_PIECE)])
        numbers = torch.arange(self._num_cells + 1, dtype=torch.int32, device=cells.device)
        first = torch.searchsorted(cells, numbers, out_int32=True)
        self._first = first[:-1]
        fullest = int(first.diff().max())
        self._steps = [1 << bit for bit in reversed(range(fullest.bit_length()))]

    def below(self, values: Tensor) -> Tensor:
        """Summed over values: how many kept ones are less, plus how many are less or equal."""
        if not values.is_cpu or values.numel() <= _PIECE:
            return self._below(values.flatten())
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            found = pool.map(self._below, values.flatten().split(_PIECE))
            return torch.stack(list(found)).sum()

    def _below(self, values: Tensor) -> Tensor:
        num = len(self._edges_2K)
        rank = self._first.index_select(0, self._cell(values))
        for step in self._steps:  # bisection of all at once; past the end it may go too far
            place = rank.clamp(max=num - step)
            is_up_to = self._edges_2K[step - 1 :].index_select(0, place) <= values
            rank.add_(is_up_to, alpha=step)
        return rank.clamp_(max=num).sum(dtype=torch.int64)

    def _cell(self, values: Tensor) -> Tensor:
        place = (values / 2).sub_(self._low).mul_(self._scale)
        return place.clamp_(0, self._num_cells - 1).int()


def _doubled_wins(pairs: Pairs, counts_B2: Tensor, kept_bytes: int) -> int:
    """Keep the rarer kind, sorted, in as many parts as memory asks for; count it below each of the other."""
    num_same, num_different = counts_B2.sum(0).tolist()
    kept, streamed = (0, 1) if num_same <= num_different else (1, 0)
    num_kept, num_streamed = counts_B2.sum(0)[[kept, streamed]].tolist()
    device = pairs.codes.codes.device
    part = kept_bytes // _BYTES_PER_KEPT["cpu" if device.type == "cpu" else "cuda"]
    part = min(max(1, part), _MOST_KEPT)
    part = -(-num_kept // -(-num_kept // part))  # parts of one size
    ends_B = counts_B2[:, kept].cumsum(0).tolist()
    doubled = 0
    for start in range(0, num_kept, part):
        ranks = _kept_ranks(pairs, ends_B, kept, start, min(start + part, num_kept))
        total = torch.zeros((), dtype=torch.int64, device=device)
        for block, count in zip(pairs.blocks, counts_B2[:, streamed].tolist(), strict=True):
            if count:
                distance = pairs.distances(block)
                if count < distance.numel():
                    distance.masked_fill_(~pairs.kinds(block)[streamed], -1)  # nothing is below it
                total += ranks.below(distance)
        doubled += int(total)
    return doubled if kept == 0 else 2 * num_kept * num_streamed - doubled


def _kept_ranks(pairs: Pairs, ends_B: list[int], kind: int, start: int, stop: int) -> _Ranks:
    """Among those distances of a kind that have the numbers from `start` to `stop`."""
    both = torch.empty(2 * (stop - start), dtype=torch.float64, device=pairs.codes.codes.device)
    for block, first, end in zip(pairs.blocks, [0, *ends_B], ends_B, strict=False):
        low, high = max(first, start), min(end, stop)
        if low < high:
            values = pairs.distances(block)[pairs.kinds(block)[kind]]
            both[low - start : high - start] = values[low - first : high - first]
    return _Ranks(both)


Reached = Callable[[int, int], bool]
"""Whether something has happened once so many same and so many different pairs are accepted"""


@dataclass
class _Search:
    """For the least distance at which something is reached, and the one before, digit by digit."""

    reached: Reached
    prefix: int = 0
    """The bits found so far; distances are not negative, so that their bits have their order"""
    previous: int | None = None
    """The same for the largest distance below, where it does not begin with the same bits"""
    below: tuple[int, int] = (0, 0)
    """Same and different pairs with a smaller prefix"""
    within: tuple[int, int] = (0, 0)
    """Same and different pairs with this one"""

    def prefixes(self) -> set[int]:
        return {self.prefix} if self.previous is None else {self.prefix, self.previous}

    def extend(self, counts: dict[int, Tensor]) -> None:
        """Take the next digit, given how often each follows: (2, digits) for every prefix."""
        own = counts[self.prefix]
        same, different = (own.cumsum(1) + torch.tensor(self.below)[:, None]).tolist()
        digit = bisect_left(
            range(len(same)), True, key=lambda d: self.reached(same[d], different[d])
        )
        smaller = own[:, :digit].sum(0).nonzero()
        if len(smaller):
            self.previous = self.prefix << _DIGIT_BITS | int(smaller[-1])
        elif self.previous is not None:
            last = counts[self.previous].sum(0).nonzero()[-1]
            self.previous = self.previous << _DIGIT_BITS | int(last)
        self.within = (int(own[0, digit]), int(own[1, digit]))
        self.below = (same[digit] - self.within[0], different[digit] - self.within[1])
        self.prefix = self.prefix << _DIGIT_BITS | digit


def _digit_counts(pairs: Pairs, shift: int, prefixes: list[int]) -> dict[int, Tensor]:
    """How often each digit follows each prefix, for same and different pairs."""
    size = 2**_DIGIT_BITS
    device = pairs.codes.codes.device
    counts = torch.zeros(len(prefixes), 2 * size, dtype=torch.int64, device=device)
    for block in pairs.blocks:
        bits = pairs.distances(block).view(torch.int64)
        same, different = pairs.kinds(block)
        cell = (bits >> shift).bitwise_and_(size - 1).add_(different, alpha=size)
        bits >>= min(shift + _DIGIT_BITS, 63)
        allowed = same.logical_or_(different)
        for count, prefix in zip(counts, prefixes, strict=True):
            count += cell[(bits == prefix) & allowed].bincount(minlength=2 * size)
    return {p: c.view(2, size) for p, c in zip(prefixes, counts.cpu(), strict=True)}


def _operating_points(
    pairs: Pairs, num_same: int, num_different: int, fars: Sequence[float]
) -> tuple[tuple[OperatingPoint, ...], float]:
    """The points at the false accept rates, and the equal error rate."""
    searches = [_Search(_accepts_more_than(_most_within(far, num_different))) for far in fars]
    couples = num_same * num_different
    crossing = _Search(lambda s, d: s * num_different + d * num_same >= couples)  # FRR <= FAR
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        prefixes = sorted(set().union(*(s.prefixes() for s in (*searches, crossing))))
        counts = _digit_counts(pairs, shift, prefixes)
        for search in (*searches, crossing):
            search.extend(counts)
    points = tuple(
        OperatingPoint(
            asked_far=far,
            far=search.below[1] / num_different,
            tar=search.below[0] / num_same,
            threshold=-inf if search.previous is None else _from_bits(search.previous),
        )
        for far, search in zip(fars, searches, strict=True)
    )
    return points, _equal_error_rate(crossing, num_same, num_different)


def _accepts_more_than(most: int) -> Reached:
    return lambda same, different: different > most


def _most_within(far: float, num: int) -> int:
    """The largest count whose part of `num` is at most `far`, as floats compare."""
    most = int(far * num)
    while most / num > far:
        most -= 1
    while (most + 1) / num <= far:
        most += 1
    return most


def _equal_error_rate(crossing: _Search, num_same: int, num_different: int) -> float:
    same, different = crossing.below
    far = Fraction(different, num_different)
    frr = 1 - Fraction(same, num_same)
    far_step = Fraction(crossing.within[1], num_different)
    steps = far_step + Fraction(crossing.within[0], num_same)
    return float(far + far_step * (frr - far) / steps)


def _from_bits(bits: int) -> float:
    return float(torch.tensor(bits, dtype=torch.int64).view(torch.float64))
