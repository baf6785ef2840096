"""All pairs of labelled images with their distances, a block at a time, in bounded memory.

Distances are squared Euclidean in float64 (for the cosine metric 1 - cosine), exact for whole numbers. Equal
codes are computed once, so that their distances to another are equal to the last bit, and 0 between them.

Shapes: N images, U different codes among them, D code entries, B blocks, R x C pairs in a block.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from math import isqrt

import torch
from torch import Tensor

from orbitset.evaluation.exclusion import Factors, Rule
from orbitset.evaluation.labelled import Labelled, Metric
from orbitset.evaluation.points import centred, identities

_PREPARE_BYTES = 2**24
_BYTES_PER_PAIR = 48
"""Memory of a pair: its distance, and what users compute from it"""
_BYTES_PER_ENTRY = 32
"""Memory of the codes of a row and a column: a copy and its squares"""


@dataclass(frozen=True)
class Block:
    """The pairs of one range of images with another, and the ranges of their different codes."""

    rows: slice
    columns: slice
    row_codes: slice
    column_codes: slice


@dataclass
class Pairs:
    """All pairs i < j, a block at a time. Images are ordered so that labels and equal codes lie together."""

    codes: Labelled
    factors: Factors
    exclude: Rule | None
    metric: Metric
    block_bytes: int
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._points_ND = centred(_prepared(self.codes, self.metric))
        device = self._points_ND.device
        identity_N = identities(self._points_ND)
        labels_N = self.codes.labels.to(device)
        order_N = identity_N.argsort(stable=True)
        order_N = order_N[labels_N[identity_N[order_N]].argsort(stable=True)]
        self._labels_N = labels_N[order_N]
        names = frozenset() if self.exclude is None else self.exclude.names
        self._factors = {name: self.factors[name].to(device)[order_N] for name in names}
        self._row_U, self._code_N, images_U = identity_N[order_N].unique_consecutive(
            return_inverse=True, return_counts=True
        )
        self._is_expanded = len(self._row_U) < len(order_N)
        self.blocks = _blocks([0, *accumulate(images_U.tolist())], self._side())

    def _side(self) -> int:
        """Images in a row or column of a block, limited by what its pairs and what its codes take."""
        of_pairs = isqrt(self.block_bytes // _BYTES_PER_PAIR)
        of_codes = self.block_bytes // (_BYTES_PER_ENTRY * max(1, self._points_ND.shape[1]))
        side = max(1, min(of_pairs, of_codes))
        return side if side < 64 else side // 64 * 64

    def counts(self) -> Tensor:
        """The numbers of same and of different pairs in each block, (B, 2) on the CPU."""
        counts = [kind.count_nonzero() for block in self.blocks for kind in self.kinds(block)]
        return torch.stack(counts).view(-1, 2).cpu()

    def kinds(self, block: Block) -> tuple[Tensor, Tensor]:
        """Which pairs are same and which are different, (R, C) bool; an excluded pair is neither."""
        same = self._labels_N[block.rows][:, None] == self._labels_N[block.columns]
        different = ~same
        left_out = []
        if block.row_codes == block.column_codes:
            number = torch.arange(len(self._labels_N), device=same.device)
            left_out.append(number[block.rows][:, None] >= number[block.columns])
        if self.exclude is not None:
            own, other = (
                {name: ids[chosen] for name, ids in self._factors.items()}
                for chosen in (block.rows, block.columns)
            )
            left_out.append(self.exclude.holds(own, other))
        for out in left_out:
            same &= ~out
            different &= ~out
        return same, different

    def distances(self, block: Block) -> Tensor:
        """The distances of all pairs of the block, (R, C); every call gives the same bits."""
        rows, columns = (
            self._points_ND[self._row_U[chosen]] for chosen in (block.row_codes, block.column_codes)
        )
        distance = torch.addmm(columns.square().sum(1), rows, columns.T, alpha=-2)
        distance.add_(rows.square().sum(1)[:, None]).clamp_(min=0)
        if block.row_codes == block.column_codes:
            distance.fill_diagonal_(0)
        if self._is_expanded:
            distance = distance[self._code_N[block.rows] - block.row_codes.start]
            distance = distance[:, self._code_N[block.columns] - block.column_codes.start]
        return distance.div_(2) if self.metric == "cosine" else distance


def _prepared(codes: Labelled, metric: Metric) -> Tensor:
    """A copy of the codes in float64, made ready for the metric a few rows at a time."""
    points = torch.empty_like(codes.codes, dtype=torch.float64)
    rows = max(1, _PREPARE_BYTES // (8 * max(1, points.shape[1])))
    for place, part, labels in zip(
        points.split(rows), codes.codes.split(rows), codes.labels.split(rows), strict=True
    ):
        place.copy_(Labelled(part, labels).precise(metric))
    return points


def _blocks(starts: list[int], side: int) -> list[Block]:
    """Blocks of at most side x side pairs; equal codes share a range, however many images have them."""
    ranges, first = [], 0
    while first < len(starts) - 1:
        end = max(first + 1, bisect_right(starts, starts[first] + side) - 1)
        for start in range(starts[first], starts[end], side):
            ranges.append((slice(start, min(start + side, starts[end])), slice(first, end)))
        first = end
    return [
        Block(rows, columns, row_codes, column_codes)
        for number, (rows, row_codes) in enumerate(ranges)
        for columns, column_codes in ranges[number:]
    ]
