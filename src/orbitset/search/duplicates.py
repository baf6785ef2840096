"""Groups of items that show the same thing: items joined by pairs of near codes.

Distances are estimated in float32, tile by tile, and pairs that rounding leaves in doubt are decided in
float64: groups are exact, and memory does not grow with the number of pairs, as a graph of all pairs would.

Shapes: N items of D code entries, U different codes, A x B of these in a tile, P pairs, M members of a group.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orbitset.search.distances import checked_codes, chunks, paired_distances, rounding

_ROWS, _COLUMNS = 1024, 2048
_MOST_DOUBTFUL = 2**14
"""Doubtful pairs of a tile that are compared one by one; more are first estimated in float64"""


@dataclass(frozen=True)
class Group:
    """Items joined by near pairs. The first has the least sum of squared distances to the others."""

    names: tuple[str, ...]
    """The first item, then the others by their distance to it"""
    rows: tuple[int, ...]
    distances: tuple[float, ...]
    """Squared distance of each item to the first"""
    num_pairs: int
    """How many pairs of members are within the threshold"""

    def __len__(self) -> int:
        return len(self.names)


def find_groups(
    codes: np.ndarray, *, threshold: float, names: Sequence[str] | None = None
) -> list[Group]:
    """Groups of two or more, joined by pairs whose squared distance is at most the threshold.

    The largest group comes first; equally large ones are sorted by their first names. Without names, items
    are named by their row.

    >>> [group] = find_groups(np.array([[0.0], [9.0], [1.0], [2.0]]), threshold=1, names="abcd")
    >>> group.names, group.distances, group.num_pairs
    (('c', 'a', 'd'), (0.0, 1.0, 1.0), 2)
    """
    if not 0 <= threshold < math.inf:
        raise ValueError(f"threshold is {threshold}; give a squared distance, at least 0")
    names = [str(row) for row in range(len(codes))] if names is None else names
    codes = checked_codes(codes, names=names)
    if len(codes) < 2:
        return []
    first_U, place_N, count_U = _distinct(codes)
    group_U = np.arange(len(first_U))
    pairs_U = count_U * (count_U - 1) // 2
    for rows, columns, near_AB in _near_pairs(codes[first_U], threshold):
        near_A = near_AB.astype(np.float64) @ count_U[columns]
        pairs_U[rows] += count_U[rows] * near_A.astype(np.int64)
        if np.ptp(np.concatenate([group_U[rows], group_U[columns]])) > 0:
            row_P, column_P = _places(near_AB)
            group_U = _joined(group_U, group_U[rows][row_P], group_U[columns][column_P])
    pairs_U = np.bincount(group_U, pairs_U, len(first_U)).astype(np.int64)
    group_N = group_U[place_N]
    order = group_N.argsort(kind="stable")
    ends = np.flatnonzero(np.diff(group_N[order])) + 1
    groups = [
        _group(codes, rows_M, names, int(pairs_U[group_N[rows_M[0]]]))
        for rows_M in np.split(order, ends)
        if len(rows_M) > 1
    ]
    return sorted(groups, key=lambda group: (-len(group), group.names[0]))


def _joined(group_U: np.ndarray, a_P: np.ndarray, b_P: np.ndarray) -> np.ndarray:
    """The group of each code, once the groups in each pair of them are one."""
    from scipy.sparse import coo_array  # imported late: it takes a while to load
    from scipy.sparse.csgraph import connected_components

    pairs = coo_array((np.ones(len(a_P), bool), (a_P, b_P)), (len(group_U), len(group_U)))
    joined_U: np.ndarray = connected_components(pairs, directed=False)[1][group_U]
    return joined_U


def _distinct(codes_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first row of each different code, the place of each row among these, and the count of each."""
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
            a, b = (_factors(codes_UD[part], centre_D, np.float64) for part in (rows, columns))
            finer_AB, is_sure_AB = _compared(a, b, threshold)
            could_AB &= finer_AB
        row_P, column_P = _places(could_AB & ~is_sure_AB)
        for part in chunks(len(row_P), codes_UD.shape[1]):
            row_PD, column_PD = codes_UD[rows][row_P[part]], codes_UD[columns][column_P[part]]
            could_AB[row_P[part], column_P[part]] = paired_distances(row_PD, column_PD) <= threshold
        if could_AB.any():
            yield rows, columns, could_AB


def _places(is_set_AB: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same as `nonzero`, several times as fast."""
    row_P, column_P = np.divmod(np.flatnonzero(is_set_AB), is_set_AB.shape[1])
    return row_P, column_P


def _tiles(num: int) -> Iterator[tuple[slice, slice]]:
    for start in range(0, num, _ROWS):
        for other in range(start, num, _COLUMNS):
            yield slice(start, min(start + _ROWS, num)), slice(other, min(other + _COLUMNS, num))


@dataclass(frozen=True)
class _Factors:
    """Prepared codes: left times right, transposed, are squared distances."""

    left: np.ndarray
    right: np.ndarray
    square: np.ndarray

    def at(self, part: slice) -> "_Factors":
        return _Factors(self.left[part], self.right[part], self.square[part])


def _factors(codes_ND: np.ndarray, centre_D: np.ndarray, dtype: type[np.floating]) -> _Factors:
    """Prepare codes. The centre is subtracted, which makes rounding errors small."""
    num, size = codes_ND.shape
    right = np.ones((num, size + 2), dtype)
    for rows in chunks(num, size):
        moved = codes_ND[rows] - centre_D
        right[rows, :size], right[rows, size] = moved, np.square(moved).sum(1)
    left = np.ones_like(right)
    np.multiply(right[:, :size], -2, out=left[:, :size])
    left[:, size + 1] = right[:, size]
    return _Factors(left, right, right[:, size])


def _compared(a: _Factors, b: _Factors, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Which pairs could be within the threshold, and which surely are."""
    limits = np.finfo(a.left.dtype)
    size = a.left.shape[1]
    longest = math.sqrt(float(a.square.max())) + math.sqrt(float(b.square.max()))
    error = rounding(limits.dtype.type, size) * longest**2 + size * float(limits.tiny)
    tile_AB = a.left @ b.right.T
    high, low = (min(edge, float(limits.max)) for edge in (threshold + error, threshold - error))
    return tile_AB <= high, tile_AB < low


def _group(codes_ND: np.ndarray, rows_M: np.ndarray, names: Sequence[str], num_pairs: int) -> Group:
    codes_MD = codes_ND[rows_M].astype(np.float64)
    # the sum of squared distances is least for the member nearest to the mean
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
