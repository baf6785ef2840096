"""Groups of items that show the same: all that are joined by pairs of near codes.

Distances are estimated in float32, tile by tile; pairs that rounding leaves in doubt are decided in float64.
So the groups are exact, and memory does not grow with the number of pairs.

Shapes: N items of D code entries, U different codes, A x B of these in a tile, P pairs, M members of a group.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orbitset.search.distances import checked_codes, chunks, paired_distances, rounding

_ROWS, _COLUMNS = 1024, 2048
_MOST_DOUBTFUL = 2**14
"""Pairs of a tile that are compared one by one; more are first estimated in float64"""


@dataclass(frozen=True)
class Group:
    """Items that are joined by near pairs. The first has the least sum of squared distances to the others."""

    names: tuple[str, ...]
    """The others by their distance to the first"""
    rows: tuple[int, ...]
    distances: tuple[float, ...]
    """Squared, of each item to the first, so that of the first is 0"""
    num_pairs: int
    """Pairs of members that are within the threshold themselves"""

    def __len__(self) -> int:
        return len(self.names)


def find_groups(
    codes_ND: np.ndarray, *, threshold: float, names: Sequence[str] | None = None
) -> list[Group]:
    """Groups of two or more, joined by pairs whose squared distance is at most the threshold.

    The largest group comes first, of equally large ones the one whose first name sorts first. Without names,
    items are called by their row.

    >>> [one] = find_groups(np.array([[0.0], [9.0], [1.0], [2.0]]), threshold=1, names="abcd")
    >>> one.names, one.distances, one.num_pairs
    (('c', 'a', 'd'), (0.0, 1.0, 1.0), 2)
    """
    if not 0 <= threshold < math.inf:
        raise ValueError(f"threshold is {threshold}; give a squared distance, at least 0")
    names = [str(row) for row in range(len(codes_ND))] if names is None else names
    codes_ND = checked_codes(codes_ND, names=names)
    if len(codes_ND) < 2:
        return []
    first_U, place_N, count_U = _distinct(codes_ND)
    joined = _Joined(len(first_U))
    pairs_U = count_U * (count_U - 1) // 2
    for rows, columns, near_AB in _near_pairs(codes_ND[first_U], threshold):
        near_A = near_AB.astype(np.float64) @ count_U[columns]
        pairs_U[rows] += count_U[rows] * near_A.astype(np.int64)
        if not joined.are_one(rows, columns):
            one_P, other_P = _places(near_AB)
            joined.join(one_P + rows.start, other_P + columns.start)
    pairs_U = np.bincount(joined.root_U, pairs_U, len(first_U)).astype(np.int64)
    root_N = joined.root_U[place_N]
    order = root_N.argsort(kind="stable")
    ends = np.flatnonzero(np.diff(root_N[order])) + 1
    groups = [
        _group(codes_ND, rows_M, names, int(pairs_U[root_N[rows_M[0]]]))
        for rows_M in np.split(order, ends)
        if len(rows_M) > 1
    ]
    return sorted(groups, key=lambda group: (-len(group), group.names[0]))


def _distinct(codes_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first row of each different code, the place of each row among these, and how often they occur."""
    whole_N = (codes_ND + 0.0).view(np.dtype((np.void, codes_ND[0].nbytes))).ravel()  # -0 is 0
    _, first_U, place_N, count_U = np.unique(
        whole_N, return_index=True, return_inverse=True, return_counts=True
    )
    order = first_U.argsort()
    return first_U[order], order.argsort()[place_N], count_U[order]


def _near_pairs(
    codes_UD: np.ndarray, threshold: float
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Tiles above the diagonal that have near pairs: their rows and columns, and which pairs are near."""
    centre_D = np.median(codes_UD, axis=0).astype(np.float64)
    factors = _factors(codes_UD, centre_D, np.float32)
    for rows, columns in _tiles(len(codes_UD)):
        could_AB, is_sure_AB = _compared(factors.at(rows), factors.at(columns), threshold)
        if columns.start < rows.stop:
            number = np.arange(len(codes_UD))
            could_AB &= number[columns] > number[rows, None]
        if not could_AB.any():
            continue
        if np.count_nonzero(could_AB & ~is_sure_AB) > _MOST_DOUBTFUL:
            one, other = (
                _factors(codes_UD[part], centre_D, np.float64) for part in (rows, columns)
            )
            finer_AB, is_sure_AB = _compared(one, other, threshold)
            could_AB &= finer_AB
        one_P, other_P = _places(could_AB & ~is_sure_AB)
        for part in chunks(len(one_P), codes_UD.shape[1]):
            one, other = codes_UD[rows][one_P[part]], codes_UD[columns][other_P[part]]
            could_AB[one_P[part], other_P[part]] = paired_distances(one, other) <= threshold
        if could_AB.any():
            yield rows, columns, could_AB


def _places(is_set_AB: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `nonzero` gives, several times as fast."""
    row_P, column_P = np.divmod(np.flatnonzero(is_set_AB), is_set_AB.shape[1])
    return row_P, column_P


def _tiles(num: int) -> Iterator[tuple[slice, slice]]:
    for start in range(0, num, _ROWS):
        for other in range(start, num, _COLUMNS):
            yield slice(start, min(start + _ROWS, num)), slice(other, min(other + _COLUMNS, num))


@dataclass(frozen=True)
class _Factors:
    """Codes made ready: left times right, transposed, are squared distances."""

    left: np.ndarray
    right: np.ndarray
    square: np.ndarray

    def at(self, part: slice) -> "_Factors":
        return _Factors(self.left[part], self.right[part], self.square[part])


def _factors(codes_ND: np.ndarray, centre_D: np.ndarray, dtype: type[np.floating]) -> _Factors:
    """Less the centre, which makes rounding errors small."""
    num, size = codes_ND.shape
    right = np.ones((num, size + 2), dtype)
    for rows in chunks(num, size):
        moved = codes_ND[rows] - centre_D
        right[rows, :size], right[rows, size] = moved, np.square(moved).sum(1)
    left = np.ones_like(right)
    np.multiply(right[:, :size], -2, out=left[:, :size])
    left[:, size + 1] = right[:, size]
    return _Factors(left, right, right[:, size])


def _compared(one: _Factors, other: _Factors, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Which pairs could be within the threshold, and of which that is sure."""
    limits = np.finfo(one.left.dtype)
    size = one.left.shape[1]
    longest = math.sqrt(float(one.square.max())) + math.sqrt(float(other.square.max()))
    error = rounding(limits.dtype.type, size) * longest**2 + size * float(limits.tiny)
    tile_AB = one.left @ other.right.T
    high, low = (min(edge, float(limits.max)) for edge in (threshold + error, threshold - error))
    return tile_AB <= high, tile_AB < low


class _Joined:
    """Which codes are in one group: each knows the first code of its group."""

    def __init__(self, num: int) -> None:
        self.root_U = np.arange(num)

    def are_one(self, rows: slice, columns: slice) -> bool:
        """Whether all of them are in one group already."""
        root = self.root_U[rows.start]
        return bool((self.root_U[rows] == root).all() and (self.root_U[columns] == root).all())

    def join(self, one_P: np.ndarray, other_P: np.ndarray) -> None:
        """Make one group of the groups of each pair."""
        while True:
            one_P, other_P = self.root_U[one_P], self.root_U[other_P]
            is_apart = one_P != other_P
            if not is_apart.any():
                return
            one_P, other_P = one_P[is_apart], other_P[is_apart]
            np.minimum.at(self.root_U, np.maximum(one_P, other_P), np.minimum(one_P, other_P))
            while not np.array_equal(up := self.root_U[self.root_U], self.root_U):
                self.root_U = up


def _group(codes_ND: np.ndarray, rows_M: np.ndarray, names: Sequence[str], num_pairs: int) -> Group:
    codes_MD = codes_ND[rows_M].astype(np.float64)
    # that sum is the least for the one nearest to the mean
    from_mean_MD = len(rows_M) * (codes_MD - codes_MD[0]) - (codes_MD - codes_MD[0]).sum(0)
    first = int(np.square(from_mean_MD).sum(1).argmin())
    distance_M = paired_distances(codes_MD, codes_MD[first])
    others = distance_M.argsort(kind="stable")
    order = [first, *others[others != first].tolist()]
    rows = rows_M[order].tolist()
    return Group(
        names=tuple(names[row] for row in rows),
        rows=tuple(rows),
        distances=tuple(distance_M[order].tolist()),
        num_pairs=num_pairs,
    )
