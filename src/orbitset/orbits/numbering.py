"""Orbits, labels and other factors as users have them in arrays, by number."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def numbered(values: ArrayLike | None, count: int, name: str = "orbits") -> np.ndarray:
    """A number for each image, -1 for those that have none: whose value is -1 or None.

    >>> numbered(["b", None, "a", "b"], 4).tolist()
    [1, -1, 0, 1]
    """
    if values is None:
        return np.arange(count)
    own = np.asarray(values)
    if own.shape != (count,):
        raise ValueError(f"{name} have shape {own.shape} for {count} images; give one for each")
    if own.dtype.kind == "f" and not np.isfinite(own).all():
        raise ValueError(f"{name} contain NaN or infinity; give -1 for images that have none")
    entries = own if own.dtype.kind in "iuf" else list(values)  # type: ignore[arg-type]
    is_known = np.array([value is not None and not _is_minus_one(value) for value in entries], bool)
    known = [value for value, has_value in zip(entries, is_known, strict=True) if has_value]
    numbers = np.full(count, -1, np.int64)
    numbers[is_known] = np.unique(np.asarray(known), return_inverse=True)[1]
    return numbers


def _is_minus_one(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and value == -1
