"""Images from a function of the user's, named `package.module:function`.

It takes no arguments and gives two things: images, as an array (N, C, H, W), (N, H, W, C) or (N, H, W) of
uint8 or of floats in [0, 1], or as a list of such arrays or of PIL images; and factors, N values each.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from orbitset.datasets.arrays import as_images
from orbitset.datasets.pictures import InMemory
from orbitset.datasets.table import ImageTable, name_at
from orbitset.errors import DataError
from orbitset.outside import described_error, import_named

_GIVE = (
    "give images, and a mapping of the names of factors to a value for each image, such as "
    'return images, {"orbit": names}'
)


def table_of(spec: str) -> ImageTable:
    """The images of a function with their factors, in memory."""
    return _called(spec, import_named(spec, what="source"))


@functools.lru_cache(maxsize=1)  # a training looks at its table first, and then takes its images
def _called(spec: str, function: Callable[[], Any]) -> ImageTable:
    if not callable(function):
        raise DataError(f"{spec} is not a function, so it cannot be a source of images")
    try:
        result = function()
    except DataError:
        raise
    except Exception as error:  # the user's own code
        raise DataError(f"the source {spec} failed: {described_error(error)}") from error
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    if is_pair and not isinstance(result[1], Mapping):
        kind = type(result[1]).__name__
        raise DataError(
            f"{spec} gave images and {'an' if kind[0] in 'aeioun' else 'a'} {kind}; in place of the {kind} "
            'give a dict of factors, as in `return images, {"orbit": orbits}`'
        )
    if not is_pair or not isinstance(result[1], Mapping) or not result[1]:
        raise DataError(f"the source {spec} gave {type(result).__name__}; {_GIVE}")
    images, factors = result
    pictures = _pictures(spec, images)
    columns = {
        str(name): _column(spec, name, values, len(pictures)) for name, values in factors.items()
    }
    names = [name_at(spec, at) for at in range(len(pictures))]
    return replace(ImageTable.numbered(spec, Path(), names, columns), inside=tuple(pictures))


def _pictures(spec: str, images: Any) -> list[InMemory]:
    if not isinstance(images, list | tuple):
        return list(map(InMemory, as_images(f"from {spec}", np.asarray(images))))
    if not images:
        raise DataError(f"the source {spec} gave no images")
    return [
        InMemory(image)
        if isinstance(image, Image.Image)
        else InMemory(as_images(f"from {spec}, image {at},", np.asarray(image)[None])[0])
        for at, image in enumerate(images)
    ]


def _column(spec: str, name: Any, values: Sequence[Any], num: int) -> tuple[str, ...]:
    """The values of a factor as texts, empty where one is not known."""
    values = values if isinstance(values, list | tuple) else np.asarray(values).tolist()
    if not isinstance(values, list | tuple) or len(values) != num:
        count = len(values) if isinstance(values, list | tuple) else "no list of"
        raise DataError(f"the source {spec} gave {count} values of {name} for {num} images")
    return tuple("" if value is None or value != value else str(value).strip() for value in values)
