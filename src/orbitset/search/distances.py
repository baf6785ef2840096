"""Checks of codes, and squared Euclidean distances in float64.

Shapes: Q queries and N codes of D entries, P pairs of codes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from orbitset.errors import DataError

CHUNK_BYTES = 2**25
LONGEST = 2.0**50
"""float32 can hold the squared distances of codes up to this length."""


def checked_codes(
    codes_ND: np.ndarray, *, size: int | None = None, names: Sequence[str] | None = None
) -> np.ndarray:
    """The codes as contiguous float32; codes that cannot be compared raise an error.

    >>> checked_codes([[0, 1]]).dtype
    dtype('float32')
    """
    with np.errstate(over="ignore"):
        codes_ND = np.ascontiguousarray(codes_ND, np.float32)
    if codes_ND.ndim != 2 or codes_ND.shape[1] < 1:
        raise ValueError(f"codes have shape {codes_ND.shape}; give one row per item")
    if size is not None and codes_ND.shape[1] != size:
        raise ValueError(f"codes have {codes_ND.shape[1]} entries; they must have {size}")
    if names is not None and len(names) != len(codes_ND):
        raise ValueError(
            f"there are {len(names)} names for {len(codes_ND)} codes; give one name for each code"
        )
    for rows in chunks(len(codes_ND), codes_ND.shape[1]):
        length_N = np.linalg.norm(codes_ND[rows].astype(np.float64), axis=1)
        if not (length_N <= LONGEST).all():
            wrong = int((~(length_N <= LONGEST)).argmax())
            name = f"row {rows.start + wrong}" if names is None else names[rows.start + wrong]
            if np.isfinite(codes_ND[rows.start + wrong]).all():
                raise DataError(f"the code of {name} is longer than {LONGEST:.0e}")
            raise DataError(f"the code of {name} has entries that are no numbers")
    return codes_ND


def chunks(num: int, entries: int) -> Iterator[slice]:
    """Ranges of rows that fit into a fixed amount of memory, with this many float64 entries per row."""
    step = max(1, CHUNK_BYTES // (8 * max(1, entries)))
    return (slice(start, min(start + step, num)) for start in range(0, num, step))


def squared_distances(query_QD: np.ndarray, code_ND: np.ndarray) -> np.ndarray:
    """|q - c|² of every query and code, (Q, N); equal codes have equal distances.

    >>> squared_distances(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([[25.,  1.]])
    """
    distance_QN = np.empty((len(query_QD), len(code_ND)))
    for rows in chunks(len(code_ND), code_ND.shape[1]):
        code = code_ND[rows].astype(np.float64)
        for queries in chunks(len(query_QD), code.size):
            difference = query_QD[queries, None].astype(np.float64) - code
            distance_QN[queries, rows] = np.square(difference, out=difference).sum(-1)
    return distance_QN


def paired_distances(a_PD: np.ndarray, b_PD: np.ndarray) -> np.ndarray:
    """|a - b|² of each pair, (P,)."""
    difference = a_PD.astype(np.float64) - b_PD
    distance_P: np.ndarray = np.square(difference, out=difference).sum(-1)
    return distance_P


def rounding(dtype: type[np.floating], size: int) -> float:
    """An upper bound of the error of |a|² - 2ab + |b|² in this precision, as a share of (|a| + |b|)²."""
    return float(np.finfo(dtype).eps) * (size + 8)
