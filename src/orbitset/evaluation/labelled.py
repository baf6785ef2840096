"""Codes with labels, and random draws of a few labelled examples per class."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.seeds import stream

Metric = Literal["euclidean", "cosine"]


@dataclass(frozen=True)
class Labelled:
    """Codes (N, D) with class labels (N,) and, where known, the orbit each belongs to."""

    codes: Tensor
    labels: Tensor
    orbits: Tensor | None = None

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.labels.shape != self.codes.shape[:1]:
            raise ValueError(
                f"codes have shape {tuple(self.codes.shape)} and labels {tuple(self.labels.shape)}; "
                "pass N x D codes and one label per code"
            )
        if self.codes.shape[1] == 0:
            raise ValueError("codes have no entries; give codes with at least one entry")
        if self.orbits is not None and self.orbits.shape != self.labels.shape:
            raise ValueError(
                f"orbits have {len(self.orbits)} entries but there are {len(self.codes)} codes; "
                "pass one orbit id per code"
            )
        if not self.codes.isfinite().all():
            row = int((~self.codes.isfinite()).any(1).nonzero()[0])
            raise ValueError(f"code {row} holds NaN or infinity; evaluate finite codes only")

    def __len__(self) -> int:
        return len(self.codes)

    def prepared(self, metric: Metric) -> Tensor:
        """Codes whose Euclidean distances rank pairs as the metric does."""
        return _for_metric(self.codes, metric)

    def precise(self, metric: Metric) -> Tensor:
        """A copy of `prepared` in float64, without gradients."""
        return _for_metric(self.codes.detach().to(torch.float64, copy=True), metric)


def _for_metric(codes_ND: Tensor, metric: Metric) -> Tensor:
    if metric not in ("euclidean", "cosine"):
        raise ValueError(f"metric is {metric!r}; choose 'euclidean' or 'cosine'")
    return codes_ND if metric == "euclidean" else _to_length_1(codes_ND)


def _to_length_1(codes_ND: Tensor) -> Tensor:
    """Divide by the largest entry first, since squares of very large or small ones overflow or vanish."""
    codes_ND = codes_ND if codes_ND.is_floating_point() else codes_ND.float()
    largest_N1 = codes_ND.abs().amax(1, keepdim=True)
    return F.normalize(codes_ND / largest_N1.where(largest_N1 > 0, 1), dim=1)


def draw_labelled_sets(labels: Tensor, *, shots: int, draws: int, seed: int = 0) -> Tensor:
    """Rows of `draws` labelled sets, (draws, classes * shots): `shots` different rows of every class.

    >>> draw_labelled_sets(torch.tensor([3, 3, 5]), shots=1, draws=4).shape
    torch.Size([4, 2])
    """
    classes, counts = labels.unique(return_counts=True)
    if len(classes) == 0:
        raise ValueError("there are no labels; give at least one")
    if counts.min() < shots or shots < 1:
        scarce = classes[counts.argmin()]
        raise ValueError(
            f"shots is {shots} but class {int(scarce)} has {int(counts.min())} examples; "
            f"give 1 to {int(counts.min())}"
        )
    if draws < 1:
        raise ValueError(f"draws is {draws}; give at least 1")
    generator = stream("labelled sets", seed, shots)
    columns = []
    rows_by_class = labels.argsort(stable=True).cpu().split(counts.tolist())
    for rows in rows_by_class:
        if shots == 1:
            columns.append(rows[torch.randint(len(rows), (draws, 1), generator=generator)])
        else:
            keys = torch.rand(draws, len(rows), generator=generator)
            columns.append(rows[keys.topk(shots, dim=1).indices])
    return torch.cat(columns, 1).to(labels.device)
