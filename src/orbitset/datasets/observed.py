"""Images with named factors: who is shown, from where, in which light. Orbits are read off the factors."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.errors import DataError, check_choice


@dataclass(frozen=True)
class ObservedImages:
    """Images as uint8 (N, C, H, W); for each factor an int64 number per image, and what the numbers mean.

    >>> images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    >>> columns = {"person": ["ann", "ann", "bob", "bob"], "view": ["left", "front", "left", "front"]}
    >>> observed = ObservedImages.of(images, columns)
    >>> observed.factors["person"].tolist(), observed.values["person"]
    ([0, 0, 1, 1], ('ann', 'bob'))
    >>> len(observed.where("view", ["front"]))
    2
    """

    images: Tensor
    factors: Mapping[str, Tensor]
    values: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, images: Tensor, columns: Mapping[str, Sequence[str]]) -> "ObservedImages":
        """Number the values of each column in their order: as numbers if all are, else as texts."""
        values = {name: tuple(_in_order(set(column))) for name, column in columns.items()}
        factors = {}
        for name, column in columns.items():
            number = {value: at for at, value in enumerate(values[name])}
            factors[name] = torch.tensor([number[value] for value in column], dtype=torch.int64)
        return cls(images, factors, values)

    def __post_init__(self) -> None:
        for name, ids in self.factors.items():
            if ids.shape != self.images.shape[:1] or name not in self.values:
                raise DataError(
                    f"factor {name} has {len(ids)} numbers for {len(self.images)} images; "
                    "give one per image, and what they mean"
                )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Tensor | slice) -> "ObservedImages":
        factors = {name: ids[rows] for name, ids in self.factors.items()}
        return ObservedImages(self.images[rows], factors, self.values)

    def to(self, device: torch.device | str) -> "ObservedImages":
        factors = {name: ids.to(device) for name, ids in self.factors.items()}
        return ObservedImages(self.images.to(device), factors, self.values)

    def known(self, factor: str) -> Tensor:
        """The number of each image's value of a factor, -1 where the value is empty."""
        number = torch.tensor([at if value else -1 for at, value in enumerate(self.values[factor])])
        return number[self.factors[factor].cpu()]

    def where(self, factor: str, chosen: Collection[str]) -> "ObservedImages":
        """Those with one of these values of a factor."""
        check_choice("the factor", factor, self.values)
        for value in chosen:
            check_choice(factor, value, self.values[factor])
        numbers = torch.tensor([self.values[factor].index(value) for value in chosen])
        ids = self.factors[factor]
        return self[torch.isin(ids, numbers.to(ids.device))]


def _in_order(values: Collection[str]) -> list[str]:
    try:
        numbers = {value: float(value) for value in values}
    except ValueError:
        return sorted(values)
    if any(map(math.isnan, numbers.values())):  # which has no place among numbers
        return sorted(values)
    return sorted(values, key=lambda value: (numbers[value], value))
