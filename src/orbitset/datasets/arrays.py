"""Images in one array file: .npy of images, or .npz with `images` and perhaps `labels`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.pictures import InMemory
from orbitset.datasets.table import ImageTable, name_at
from orbitset.errors import DataError
from orbitset.limits import read_arrays
from orbitset.seeds import stream

_USED = ("images", "labels")
_MOST_STRETCH = 16
"""Around a line of 1,000 px a square has 1,000 times as many"""


def load_array(path: Path) -> ImageSet:
    """Images as uint8, or as floats in [0, 1]; (N, H, W), (N, C, H, W) or (N, H, W, C)."""
    arrays = _read(path)
    arrays = {"images": arrays[""]} if "" in arrays else arrays
    if "images" not in arrays:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(
            f"{path} holds {names}; it needs an array named images, and may have labels"
        )
    images = as_images(f"in {path}", arrays["images"])
    pixels, labels = torch.from_numpy(np.ascontiguousarray(images)), arrays.get("labels")
    if labels is None:
        return ImageSet(pixels)
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"labels in {path} have shape {labels.shape} and dtype {labels.dtype}; "
            f"give {len(images)} integers, one per image"
        )
    return ImageSet(pixels, torch.from_numpy(labels.astype(np.int64)))


def as_images(where: str, array: np.ndarray) -> np.ndarray:
    """An array of images of any of the shapes above as uint8 (N, C, H, W); `where` it is, is for messages."""
    images = _as_uint8(where, array)
    if images.ndim == 3 and images.shape[2] in (3, 4) and min(images.shape[:2]) > 4:
        raise DataError(
            f"images {where} have shape {array.shape}, which is one colour image rather than "
            f"{len(array)} grey ones; give (N, H, W, C), here (1, {', '.join(map(str, array.shape))})"
        )
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise DataError(
            f"images {where} have shape {array.shape}; "
            "give (N, H, W), (N, C, H, W) or (N, H, W, C) with 1 or 3 channels"
        )
    return images


def load_parts(path: Path) -> Splits:
    """Images to train on, in three parts."""
    images = load_array(path)
    height, width = images.images.shape[-2:]
    if max(height, width) < 2 or max(height, width) > _MOST_STRETCH * min(height, width):
        raise DataError(
            f"images in {path} have {width}x{height} px, and are trained on in a square; give at least 2 px, "
            f"and sides of which one is at most {_MOST_STRETCH} times as long as the other"
        )
    return split(images)


def split(images: ImageSet, *, seed: int = 0) -> Splits:
    """About six tenths to train, two to label from, two to test, at random and class by class.

    A class of fewer than three images goes to training whole.
    """
    if len(images) < 10:
        raise DataError(f"there are {len(images)} images; at least 10 are needed to train and test")
    order = torch.randperm(len(images), generator=stream("split", seed))
    groups = [order]
    if images.labels is not None:
        labels = images.labels[order]
        groups = [order[labels == label] for label in labels.unique()]
    train, validation, test = [], [], []
    for group in groups:
        share = max(1, len(group) // 5) if len(group) >= 3 else 0
        test.append(group[:share])
        validation.append(group[share : 2 * share])
        train.append(group[2 * share :])
    if sum(map(len, test)) == 0:
        raise DataError(
            "no class has three images, so there is nothing to test with; leave the labels out"
        )
    return Splits(images[torch.cat(train)], images[torch.cat(validation)], images[torch.cat(test)])


def rows_of(source: str, images: ImageSet) -> ImageTable:
    """Images by their numbers, with their labels as a factor."""
    names = [name_at(source, at) for at in range(len(images))]
    columns = {}
    if images.labels is not None:
        columns["label"] = tuple(map(str, images.labels.tolist()))
    pixels = tuple(map(InMemory, images.images.numpy()))
    return replace(ImageTable.numbered(source, Path(), names, columns), inside=pixels)


def _read(path: Path) -> dict[str, Any]:
    """The arrays that are used, and of others that lie in the same file the names."""
    try:
        return read_arrays(path, lambda name: name in ("", *_USED))
    except ValueError as error:
        raise DataError(f"{path} cannot be read as .npy or .npz: {error}") from None


def _as_uint8(where: str, images: np.ndarray) -> np.ndarray:
    if images.dtype == np.uint8:
        return images
    if not np.issubdtype(images.dtype, np.floating):
        raise DataError(
            f"images {where} have dtype {images.dtype}; give uint8, or floats between 0 and 1"
        )
    if not np.isfinite(images).all():
        row = np.argwhere(~np.isfinite(np.atleast_1d(images)))[0][0]
        raise DataError(f"image {row} {where} holds NaN or infinity; give floats between 0 and 1")
    if images.size and (images.min() < 0 or images.max() > 1):
        raise DataError(
            f"images {where} lie between {images.min():g} and {images.max():g}; "
            "give uint8, or floats between 0 and 1"
        )
    return (images * 255).round().astype(np.uint8)
