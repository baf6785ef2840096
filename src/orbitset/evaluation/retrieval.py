"""Retrieval: every query ranks the other images by distance; near ones should show the same thing.

Candidates that a rule excludes are removed before ranking, and a query never finds itself. A query without
any relevant candidate cannot be answered: it is counted and not scored.

Shapes: Q queries, G candidates, K places at the top of the ranking, P pairs of both, D code entries.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from orbitset.evaluation.exclusion import Factors, Rule, check_factors
from orbitset.evaluation.labelled import Labelled, Metric
from orbitset.evaluation.points import centred, identities
from orbitset.precision import products_in

_CHUNK_BYTES = 2**25
_MOST_CANDIDATES = 64
"""Candidates compared exactly for each query, beyond the k that it keeps"""


@dataclass(frozen=True)
class Retrieval:
    """The ranking of each query. Means are over the queries that have relevant candidates."""

    nearest_QK: Tensor
    """Rows of the nearest candidates, nearest first; -1 where there are fewer candidates"""
    is_hit_QK: Tensor
    """Whether these are relevant"""
    candidates_Q: Tensor
    """The number of candidates of each query"""
    relevant_Q: Tensor
    """The number of relevant candidates"""
    average_precision_Q: Tensor | None
    """Average precision over the whole ranking, if it was computed; NaN without relevant candidates"""

    @property
    def answerable_Q(self) -> Tensor:
        return self.relevant_Q > 0

    @property
    def num_unanswerable(self) -> int:
        return int((~self.answerable_Q).sum())

    def precision_at(self, k: int) -> float:
        """The mean fraction of relevant images among the k nearest, or among all where there are fewer."""
        if not 1 <= k <= self.nearest_QK.shape[1]:
            raise ValueError(f"k is {k}, but only the {self.nearest_QK.shape[1]} nearest are known")
        hits = self.is_hit_QK[self.answerable_Q, :k].sum(1).double()
        return float((hits / self.candidates_Q[self.answerable_Q].clamp(max=k)).mean())

    @property
    def mean_average_precision(self) -> float:
        if self.average_precision_Q is None:
            raise ValueError("there is no average precision; retrieve with whole_ranking=True")
        return float(self.average_precision_Q.nanmean())


def retrieve(
    codes: Labelled,
    *,
    k: int = 1,
    factors: Factors | None = None,
    exclude: Rule | None = None,
    metric: Metric = "euclidean",
    whole_ranking: bool = False,
) -> Retrieval:
    """Each image queries all others; those of its label are relevant. Of equally near ones the first wins.

    >>> codes = Labelled(torch.tensor([[0.0], [1.0], [5.0], [5.5]]), torch.tensor([0, 0, 1, 1]))
    >>> retrieve(codes).precision_at(1)
    1.0
    """
    num = len(codes)
    if num < 2:
        raise ValueError(f"there are {num} images; give at least two")
    if not 1 <= k < num:
        raise ValueError(f"k is {k} for {num} images; give 1 to {num - 1}")
    factors = factors or {}
    if exclude is not None:
        check_factors(exclude, factors, num)
    points = centred(codes.precise(metric))
    points.mul_(_power_of_two(points))
    rows = torch.arange(num, device=points.device)
    result = Retrieval(
        nearest_QK=rows.new_empty(num, k),
        is_hit_QK=torch.empty(num, k, dtype=torch.bool, device=rows.device),
        candidates_Q=rows.new_empty(num),
        relevant_Q=rows.new_empty(num),
        average_precision_Q=points.new_empty(num) if whole_ranking else None,
    )
    if exclude is not None:
        factors = {name: factors[name].to(points.device) for name in exclude.names}
    distances = _Distances(points)
    for chunk in rows.split(distances.rows):
        removed = chunk[:, None] == rows
        if exclude is not None:
            removed |= exclude.holds({name: ids[chunk] for name, ids in factors.items()}, factors)
        relevant = (codes.labels[chunk][:, None] == codes.labels) & ~removed
        result.candidates_Q[chunk] = (~removed).sum(1)
        result.relevant_Q[chunk] = relevant.sum(1)
        if whole_ranking:
            nearest = _rank_all(distances.precise(chunk, removed), relevant, k, result, chunk)
        else:
            nearest = _nearest(distances, chunk, removed, k)
        is_left = torch.arange(k, device=nearest.device) < result.candidates_Q[chunk][:, None]
        result.is_hit_QK[chunk] = relevant.gather(1, nearest) & is_left
        result.nearest_QK[chunk] = nearest.where(is_left, -1)
    return result


class _Distances:
    """Squared distances of a few queries to all images, less |q|², which is the same in a row.

    All chunks reuse one buffer. Allocating one for each would fragment memory, which would grow with them.
    """

    def __init__(self, points_ND: Tensor) -> None:
        self.points_ND = points_ND
        self.squares_N = points_ND.square().sum(1)
        self.rows = max(1, _CHUNK_BYTES // (8 * len(points_ND)))
        self._shape = (min(self.rows, len(points_ND)), len(points_ND))

    @cached_property
    def _rough(self) -> tuple[Tensor, Tensor, Tensor]:
        points = self.points_ND.float()
        return points, self.squares_N.float(), points.new_empty(self._shape)

    @cached_property
    def _precise(self) -> tuple[Tensor, Tensor | None]:
        """A buffer, and which codes are equal if any are."""
        identity_N = identities(self.points_ND)
        has_equals = bool((identity_N.diff() != 1).any())
        return self.points_ND.new_empty(self._shape), identity_N if has_equals else None

    def rough(self, queries: Tensor, removed_QG: Tensor) -> Tensor:
        """(Q, G) in float32, infinite where a candidate is removed."""
        points, squares, buffer = self._rough
        buffer = buffer[: len(queries)]
        with products_in("ieee", points.device):
            torch.addmm(squares, points[queries], points.T, alpha=-2, out=buffer)
        return buffer.masked_fill_(removed_QG, torch.inf)

    def rough_error(self, queries: Tensor) -> Tensor:
        """An upper bound on the rounding error of these queries' rough distances, (Q, 1)."""
        norm_N = self.squares_N.sqrt()
        unit = torch.finfo(torch.float32).eps * (self.points_ND.shape[1] + 8)
        return (unit * norm_N.max() * (2 * norm_N[queries] + norm_N.max())).float()[:, None]

    def precise(self, queries: Tensor, removed_QG: Tensor) -> Tensor:
        """(Q, G) in float64; equal codes tie, whatever the rounding."""
        buffer, identity_N = self._precise
        buffer = buffer[: len(queries)]
        torch.addmm(self.squares_N, self.points_ND[queries], self.points_ND.T, alpha=-2, out=buffer)
        distance = buffer if identity_N is None else buffer[:, identity_N]
        return distance.masked_fill_(removed_QG, torch.inf)

    def exact(self, query_P: Tensor, other_P: Tensor) -> Tensor:
        """|q - g|² of single pairs, (P,), a few at a time."""
        step = max(1, _CHUNK_BYTES // (8 * max(1, self.points_ND.shape[1])))
        parts = [
            (self.points_ND[query] - self.points_ND[other]).square().sum(1)
            for query, other in zip(query_P.split(step), other_P.split(step), strict=True)
        ]
        return torch.cat(parts)


def _nearest(distances: _Distances, queries: Tensor, removed_QG: Tensor, k: int) -> Tensor:
    """The k nearest, of equally near ones the first, (Q, K).

    Distances in float32 leave a few candidates that could be among them, whatever the rounding; these are
    compared exactly. Where they leave many, as in a collapsed embedding, all are compared in float64.
    """
    distance = distances.rough(queries, removed_QG)
    furthest = _kth(distance, k)
    could_be = (distance <= furthest + 2 * distances.rough_error(queries)) & ~removed_QG
    count_Q = could_be.sum(1)
    if int(count_Q.sum()) > len(queries) * (k + _MOST_CANDIDATES):
        distance = distances.precise(queries, removed_QG)
        could_be = (distance <= _kth(distance, k)) & ~removed_QG
        count_Q = could_be.sum(1)
        row_P, other_P = could_be.nonzero().unbind(1)
        near_P = distance[row_P, other_P]
    else:
        row_P, other_P = could_be.nonzero().unbind(1)
        near_P = distances.exact(queries[row_P], other_P)
    # by query, then distance, then row: the last sort is the strongest, and all are stable
    order = near_P.argsort(stable=True)
    order = order[row_P[order].argsort(stable=True)]
    row_P, other_P = row_P[order], other_P[order]
    place_P = torch.arange(len(row_P), device=row_P.device) - (count_Q.cumsum(0) - count_Q)[row_P]
    is_kept = place_P < k
    nearest = row_P.new_zeros(len(queries), k)
    nearest[row_P[is_kept], place_P[is_kept]] = other_P[is_kept]
    return nearest


def _kth(distance_QG: Tensor, k: int) -> Tensor:
    """The k-th smallest of each row, (Q, 1)."""
    if k == 1:
        return distance_QG.amin(1, keepdim=True)
    return distance_QG.topk(k, dim=1, largest=False).values[:, -1:]


def _power_of_two(points_ND: Tensor) -> float:
    """What brings the largest entry to about 1 without rounding any."""
    largest = float(points_ND.abs().max())
    return 2.0 ** min(1023, -math.frexp(largest)[1]) if 0 < largest < math.inf else 1.0


def _rank_all(
    distance_QG: Tensor, relevant_QG: Tensor, k: int, result: Retrieval, queries: Tensor
) -> Tensor:
    """The k nearest of a whole ranking, whose average precision is written into the result."""
    assert result.average_precision_Q is not None
    order = distance_QG.argsort(dim=1, stable=True)
    hits = relevant_QG.gather(1, order)
    place = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    precision = (hits * hits.cumsum(1) / place.double()).sum(1) / result.relevant_Q[queries]
    result.average_precision_Q[queries] = precision.to(result.average_precision_Q)
    return order[:, :k]
