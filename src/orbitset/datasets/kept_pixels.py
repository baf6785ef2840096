"""Pixels decoded once and kept: uint8 in a file that is mapped into memory, what was found beside it."""

import contextlib
import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orbitset.errors import DataError
from orbitset.files import write_atomically

Write = Callable[[BinaryIO], tuple[tuple[int, ...], Any]]
"""Appends pixels to a file; gives the shape of all, and what else is to be kept, as JSON can"""


def kept_pixels(place: Path | None, write: Write, what: str) -> tuple[np.ndarray, Any]:
    """What an earlier call left at a place if it is whole, else what `write` makes now.

    Without a place, or where none can be written, it stays in memory. `what` it is, is for messages.
    """
    if place is None:
        return _in_memory(write)
    return _stored(place) or _made(place, write, what)


def _stored(place: Path) -> tuple[np.ndarray, Any] | None:
    try:
        about = json.loads(place.with_suffix(".json").read_text())
        shape = tuple(about["shape"])
        pixels = place.with_suffix(".u8")
        if not math.prod(shape) or pixels.stat().st_size != math.prod(shape):
            return None
        # copy on write: nothing that is done to the pixels reaches the file
        return np.memmap(pixels, np.uint8, "c", shape=shape), about["found"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _made(place: Path, write: Write, what: str) -> tuple[np.ndarray, Any]:
    pixels = place.with_suffix(".u8")
    part = pixels.with_name(f".{pixels.name}.{os.getpid()}.part")
    with contextlib.ExitStack() as stack:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(part.open("w+b"))
        except OSError:
            return _in_memory(write)
        stack.callback(part.unlink, missing_ok=True)
        try:
            shape, found = write(file)
            file.flush()
        except OSError as error:
            raise DataError(
                f"decoded {what} cannot be kept in {part.parent}: {error.strerror}",
                hint="set XDG_CACHE_HOME to a folder with room for them",
            ) from None
        if not math.prod(shape):
            return np.empty(shape, np.uint8), found
        part.replace(pixels)
        about = {"shape": shape, "found": found}
        write_atomically(place.with_suffix(".json"), json.dumps(about).encode())
    return np.memmap(pixels, np.uint8, "c", shape=shape), found


def _in_memory(write: Write) -> tuple[np.ndarray, Any]:
    file = io.BytesIO()
    shape, found = write(file)
    return np.frombuffer(bytearray(file.getbuffer()), np.uint8).reshape(shape), found
