"""Verification: do two images show the same thing? The distance of their codes decides.

Pairs of one label are *same*, all others *different*; a pair for which a rule holds is left out. If pairs up
to a threshold are accepted as same, the true accept rate (TAR) is the share of same pairs accepted, the false
accept rate (FAR) that of different pairs, and the false reject rate is FRR = 1 - TAR.

Counts are exact integers: nothing is sampled or binned. Since all pairs do not fit into memory, they are
computed in blocks, and anew for every pass: one pass and a part of one for the AUC, four more for the
operating points.

Shapes: B blocks of pairs, K kept distances.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from math import inf, nan

import torch
from torch import Tensor

from orbitset.evaluation.exclusion import Factors, Rule, check_factors
from orbitset.evaluation.labelled import Labelled, Metric
from orbitset.evaluation.pairs import Pairs

_BYTES_PER_KEPT = {"cpu": 48, "cuda": 80}
"""Memory for each kept distance: twice its size, and what sorting and the grid take"""
_MOST_KEPT = 2**29
"""Ranks are int32"""
_MOST_CELLS = 2**23
_PIECE = 2**15
"""Values looked up at a time: they stay in the cache, and torch gives them to one thread"""
_DIGIT_BITS = 16


@dataclass(frozen=True)
class OperatingPoint:
    """The threshold that accepts the most pairs at a false accept rate."""

    max_far: float
    """The false accept rate that was allowed"""
    far: float
    """The false accept rate that is reached: the largest up to `max_far`"""
    tar: float
    """The true accept rate"""
    threshold: float
    """The largest distance, among those that occur, up to which pairs may be called same: squared Euclidean,
    or 1 - cosine; -inf if the nearest pairs of all already hold too many different ones"""


@dataclass(frozen=True)
class Verification:
    """How well distances tell same from different pairs."""

    num_same: int
    num_different: int
    num_excluded: int
    doubled_wins: int
    """Over all couples of a same and a different pair: 2 if the same pair is nearer, 1 if they tie"""
    points: tuple[OperatingPoint, ...]
    eer: float
    """Equal error rate: neighbouring operating points are joined by straight lines, and it is read off where
    FAR = FRR. NaN without operating points"""

    @property
    def auc(self) -> float:
        """Area under the ROC curve: how often a same pair is nearer than a different one; ties count half."""
        return self.doubled_wins / (2 * self.num_same * self.num_different)

    def at(self, far: float) -> OperatingPoint:
        """The operating point at one of the false accept rates that `verify` was called with."""
        for point in self.points:
            if point.max_far == far:
                return point
        known = ", ".join(str(point.max_far) for point in self.points) or "none"
        raise ValueError(f"FAR {far} is not among {known}; pass it to verify in fars")


def verify(
    codes: Labelled,
    *,
    factors: Factors | None = None,
    exclude: Rule | None = None,
    metric: Metric = "euclidean",
    fars: Sequence[float] = (1e-3, 1e-2, 1e-1),
    budget_bytes: int = 2**29,
) -> Verification:
    """Compare all pairs of images; `fars=()` computes the AUC alone, which is several times as fast.

    About `budget_bytes` of memory are used besides a copy of the codes in float64; less memory means more
    passes over the pairs. AUC and thresholds are by hand, since scikit-learn needs all pairs in memory.

    >>> codes = Labelled(torch.tensor([[0.0], [1.0], [5.0], [5.5]]), torch.tensor([0, 0, 1, 1]))
    >>> result = verify(codes, fars=[0.0])
    >>> result.auc, result.eer, result.at(0.0).tar, result.at(0.0).threshold
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
    points, eer = _operating_points(pairs, same, different, fars) if fars else ((), nan)
    return Verification(
        num_same=same,
        num_different=different,
        num_excluded=len(codes) * (len(codes) - 1) // 2 - same - different,
        doubled_wins=doubled_wins,
        points=points,
        eer=eer,
    )


class _Ranks:
    """Counts how many kept distances are below a value.

    Each kept distance gives two edges, itself and the next larger number, and all edges are sorted. A kept
    distance less than a value has both edges up to it, an equal one only the first. A grid over their range
    says where to look: the cell of a number never falls as the number grows, so other cells can be skipped.
    """

    def __init__(self, edges_2K: Tensor) -> None:
        """The first half of `edges_2K` holds the kept distances; both halves are overwritten."""
        lower, upper = edges_2K.chunk(2)
        torch.nextafter(lower, lower.new_tensor(inf), out=upper)
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
        """Summed over values: how many kept distances are less, plus how many are less or equal."""
        if not values.is_cpu or values.numel() <= _PIECE:
            return self._below(values.flatten())
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return torch.stack(list(pool.map(self._below, values.flatten().split(_PIECE)))).sum()

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
    """Keep the rarer kind of pairs, sorted, in parts that fit into memory; count it below the other kind."""
    num_same, num_different = counts_B2.sum(0).tolist()
    rare, streamed = (0, 1) if num_same <= num_different else (1, 0)
    num_kept, num_streamed = counts_B2.sum(0)[[rare, streamed]].tolist()
    device = pairs.codes.codes.device
    part = kept_bytes // _BYTES_PER_KEPT["cpu" if device.type == "cpu" else "cuda"]
    part = min(max(1, part), _MOST_KEPT)
    part = -(-num_kept // -(-num_kept // part))  # parts of one size
    ends_B = counts_B2[:, rare].cumsum(0).tolist()
    doubled = 0
    for start in range(0, num_kept, part):
        ranks = _kept_ranks(pairs, ends_B, rare, start, min(start + part, num_kept))
        total = torch.zeros((), dtype=torch.int64, device=device)
        for block, count in zip(pairs.blocks, counts_B2[:, streamed].tolist(), strict=True):
            if count:
                distance = pairs.distances(block)
                if count < distance.numel():
                    distance.masked_fill_(~pairs.kinds(block)[streamed], -1)  # nothing is below it
                total += ranks.below(distance)
        doubled += int(total)
    return doubled if rare == 0 else 2 * num_kept * num_streamed - doubled


def _kept_ranks(pairs: Pairs, ends_B: list[int], kind: int, start: int, stop: int) -> _Ranks:
    """Ranks among the distances number `start` to `stop` of one kind of pairs."""
    both = torch.empty(2 * (stop - start), dtype=torch.float64, device=pairs.codes.codes.device)
    for block, first, end in zip(pairs.blocks, [0, *ends_B], ends_B, strict=False):
        low, high = max(first, start), min(end, stop)
        if low < high:
            values = pairs.distances(block)[pairs.kinds(block)[kind]]
            both[low - start : high - start] = values[low - first : high - first]
    return _Ranks(both)


Reached = Callable[[int, int], bool]
"""Whether a condition holds once so many same and so many different pairs are accepted"""


@dataclass
class _Search:
    """Finds the least distance at which a condition holds, and the one before, digit by digit."""

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
            max_far=far,
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
