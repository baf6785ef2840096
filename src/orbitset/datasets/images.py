"""What every data set gives: images with labels where known, and a split into three parts."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.datasets.table import Problem

_LOOKED_AT_BYTES = 2**29


def fingerprint(*tensors: Tensor) -> str:
    """Of what they hold, to notice that it has changed; of very large ones, of rows spread evenly over them.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2)) != fingerprint(torch.zeros(3))
    True
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        step = max(1, tensor.nbytes // _LOOKED_AT_BYTES)
        digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
        for part in tensor.split(max(1, len(tensor) // 16 // step * step)):
            digest.update(part[::step].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class ImageSet:
    """Images as uint8 (N, C, H, W) and, where known, int64 class labels (N,)."""

    images: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Tensor | slice) -> "ImageSet":
        return ImageSet(self.images[rows], None if self.labels is None else self.labels[rows])

    def to(self, device: torch.device | str) -> "ImageSet":
        labels = None if self.labels is None else self.labels.to(device)
        return ImageSet(self.images.to(device), labels)


@dataclass(frozen=True)
class Splits:
    """Orbits are learned from `train`, labelled examples drawn from `validation`, queries from `test`."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet
    left_out: tuple[Problem, ...] = ()
    """What could not be used"""

    @property
    def whole(self) -> ImageSet:
        """All images, part after part."""
        parts = (self.train, self.validation, self.test)
        labels = [part.labels for part in parts if part.labels is not None]
        images = torch.cat([part.images for part in parts])
        return ImageSet(images, torch.cat(labels) if len(labels) == len(parts) else None)

    def without_test(self) -> "Splits":
        """For choosing settings: labelled examples and queries both from validation images, every other one
        for each, so that they have none in common; the test images are left out."""
        labelled, queries = self.validation[::2], self.validation[1::2]
        return Splits(self.train, labelled, queries, self.left_out)
