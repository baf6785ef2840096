"""The most that is taken from one file: a small one may ask for much memory or time.

Each limit is an environment variable with a default, which messages name, so that it can be raised.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from orbitset.errors import ConfigError


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
