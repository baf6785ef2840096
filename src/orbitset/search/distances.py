"""Codes that can be compared, and their squared Euclidean distances in float64.

Shapes: Q queries and N codes of D entries, P pairs of codes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from orbitset.errors import DataError

CHUNK_BYTES = 2**25
LONGEST = 2.0**50
"""Of codes up to this length float32 can hold all squared distances."""


def checked_codes(
    codes_ND: np.ndarray, *, size: int | None = None, names: Sequence[str] | None = None
) -> np.ndarray:
    """The codes in float32, row after row in memory; what cannot be compared is refused.

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
        raise ValueError(f"there are {len(names)} names for {len(codes_ND)} codes; give one each")
    for rows in chunks(len(codes_ND), codes_ND.shape[1]):
        length_N = np.linalg.norm(codes_ND[rows].astype(np.float64), axis=1)
        if not (length_N <= LONGEST).all():
            wrong = int((~(length_N <= LONGEST)).argmax())
            name = f"row {rows.start + wrong}" if names is None else names[rows.start + wrong]
            is_finite = np.isfinite(codes_ND[rows.start + wrong]).all()
            what = (
                f"is longer than {LONGEST:.0e}" if is_finite else "has entries that are no numbers"
            )
            raise DataError(f"the code of {name} {what}")
    return codes_ND


def chunks(num: int, entries: int) -> Iterator[slice]:
    """Stretches of rows with this many float64 entries each that fit into a fixed piece of memory."""
    step = max(1, CHUNK_BYTES // (8 * max(1, entries)))
    return (slice(start, min(start + step, num)) for start in range(0, num, step))


def squared_distances(query_QD: np.ndarray, code_ND: np.ndarray) -> np.ndarray:
    """|q - c|² of every query and code, (Q, N); equal codes have equal distances.

    >>> squared_distances(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([[25.,  1.]])
    """
    found_QN = np.empty((len(query_QD), len(code_ND)))
    for rows in chunks(len(code_ND), code_ND.shape[1]):
        code = code_ND[rows].astype(np.float64)
        for queries in chunks(len(query_QD), code.size):
            difference = query_QD[queries, None].astype(np.float64) - code
            found_QN[queries, rows] = np.square(difference, out=difference).sum(-1)
    return found_QN


def paired_distances(one_PD: np.ndarray, other_PD: np.ndarray) -> np.ndarray:
    """|a - b|² of each pair, (P,)."""
    difference = one_PD.astype(np.float64) - other_PD
    found_P: np.ndarray = np.square(difference, out=difference).sum(-1)
    return found_P


def rounding(dtype: type[np.floating], size: int) -> float:
    """|a|² - 2ab + |b|² in this precision is off by at most this times (|a| + |b|)²."""
    return float(np.finfo(dtype).eps) * (size + 8)
