"""The most that is taken from one file: a small one may ask for much memory or time.

Each limit is an environment variable with a default, which messages name, so that it can be raised.
docs/decisions/0026-limits.md says why.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitset.errors import ConfigError
from orbitset.files import ordinary, why


@dataclass(frozen=True)
class Limit:
    """A number that `variable` sets in the environment."""

    variable: str
    default: int
    unit: int = 1
    """What the variable counts; the value is in ones"""

    @property
    def value(self) -> int:
        text = os.environ.get(self.variable, "").strip()
        try:
            value = float(text or self.default) * self.unit
            if value >= 1:
                return int(value)
        except (ValueError, OverflowError):
            pass
        raise ConfigError(
            f"{self.variable} is {text!r}; give a number above 0, such as {self.default}"
        )

    @property
    def described(self) -> str:
        """To be read after what is too large.

        >>> PIXELS.described
        'more than 50,000,000; ORBITSET_MAX_PIXELS sets the limit'
        """
        return f"more than {self.value:,}; {self.variable} sets the limit"


PIXELS = Limit("ORBITSET_MAX_PIXELS", 50_000_000)
"""Pixels of one image once decoded"""
BYTES_PER_PIXEL = 20
"""The most memory that a pixel takes while an image is decoded and fitted, measured over all formats"""
DECODING = Limit("ORBITSET_DECODING_GB", 4, unit=10**9)
"""Bytes of all images that are decoded at once, and of what one other file is unpacked to"""
HEADER = Limit("ORBITSET_MAX_HEADER_MB", 1, unit=10**6)
"""Bytes of a text that says what a file holds"""
ROWS = Limit("ORBITSET_MAX_ROWS", 2_000_000)
"""Rows of a table, files in a tar"""
FACTORS = Limit("ORBITSET_MAX_FACTORS", 1_000)
"""Columns of a table"""

_DEEPEST = 50
"""Groups in groups of a JSON text"""

_changed = threading.Condition()
_bytes_in_use = 0


@contextmanager
def decoding(num_bytes: int) -> Iterator[None]:
    """Inside, a thread may take so many bytes; until those of others leave room for them it waits."""
    global _bytes_in_use
    with _changed:
        # what is larger than the limit waits until nothing else is decoded
        _changed.wait_for(lambda: not _bytes_in_use or _bytes_in_use + num_bytes <= DECODING.value)
        _bytes_in_use += num_bytes
    try:
        yield
    finally:
        with _changed:
            _bytes_in_use -= num_bytes
            _changed.notify_all()


def read_json(path: Path) -> Any:
    """What a JSON file holds that came with a model; an OSError or a ValueError if it cannot be read.

    It says what other files hold, and is no longer than a header may be.
    """
    if ordinary(path).stat().st_size > HEADER.value:
        raise ValueError(f"it has {path.stat().st_size:,} bytes, {HEADER.described}")
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds; a ValueError also where groups lie so deep in groups that Python gives up.

    >>> parse_json("[" * 60 + "]" * 60)
    Traceback (most recent call last):
    ValueError: it is nested more than 50 deep
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    groups = _inside([content])
    for _ in range(_DEEPEST):
        groups = [inner for group in groups for inner in _inside(group)]
        if not groups:
            return content
    raise _too_deep()


def read_arrays(path: Path, is_used: Callable[[str], bool]) -> dict[str, Any]:
    """The arrays of an .npz whose names are used; the others are None. That of an .npy has no name.

    A ValueError if the file cannot be read, or holds far more than it is long.
    """
    import numpy as np

    try:
        with ordinary(path).open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            used = [name for name in loaded if is_used(name)]
            files = {f"{name}.npy" for name in used}.union(used)
            members = [member for member in loaded.zip.infolist() if member.filename in files]
            unpacked = sum(member.file_size for member in members)
            if unpacked > max(DECODING.value, sum(member.compress_size for member in members)):
                raise ValueError(f"it unpacks to {unpacked:,} bytes, {DECODING.described}")
            return dict.fromkeys(loaded) | {name: np.asarray(loaded[name]) for name in used}
    except Exception as error:  # damaged ones raise whatever numpy and zipfile stumble over
        raise ValueError(why(error)) from None


def _inside(group: Any) -> list[Any]:
    values = group.values() if isinstance(group, dict) else group
    return [inner for inner in values if isinstance(inner, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {_DEEPEST} deep")
