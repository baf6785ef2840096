"""Retrieval: every query ranks the other images by distance; what is near should show the same thing.

Candidates that a rule excludes are removed before ranking, and a query never finds itself. A query that is
left without any relevant candidate cannot be answered: it is counted, and never scored.

Shapes: Q queries, G images to be found, K places at the top of the ranking, D code entries.
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
"""Compared exactly for each query, beyond those it keeps"""


@dataclass(frozen=True)
class Retrieval:
    """What each query found. Means are over the queries that have something to find."""

    nearest_QK: Tensor
    """Rows of the nearest candidates, nearest first; -1 where there are fewer candidates"""
    is_hit_QK: Tensor
    """Whether they are relevant"""
    candidates_Q: Tensor
    """Images left to each query"""
    relevant_Q: Tensor
    """Of these, how many are relevant"""
    average_precision_Q: Tensor | None
    """Over the whole ranking, if asked for; NaN where there is nothing relevant"""

    @property
    def answerable_Q(self) -> Tensor:
        return self.relevant_Q > 0

    @property
    def num_unanswerable(self) -> int:
        return int((~self.answerable_Q).sum())

    def precision_at(self, k: int) -> float:
        """The mean fraction of relevant images among the k nearest, or among all where there are fewer."""
        if not 1 <= k <= self.nearest_QK.shape[1]:
            raise ValueError(f"k is {k}, but the {self.nearest_QK.shape[1]} nearest were kept")
        hits = self.is_hit_QK[self.answerable_Q, :k].sum(1).double()
        return float((hits / self.candidates_Q[self.answerable_Q].clamp(max=k)).mean())

    @property
    def mean_average_precision(self) -> float:
        if self.average_precision_Q is None:
            raise ValueError(
                "average precision was not asked for; retrieve with whole_ranking=True"
            )
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
    """Each image queries all others; those of its label are relevant. Of equally near ones the first counts.

    >>> codes = Labelled(torch.tensor([[0.0], [1.0], [5.0], [5.5]]), torch.tensor([0, 0, 1, 1]))
    >>> retrieve(codes).precision_at(1)
    1.0
    """
    num = len(codes)
    if num < 2:
        raise ValueError(f"there are {num} images; to find one takes at least two")
    if not 1 <= k < num:
        raise ValueError(f"k is {k} for {num} images; give 1 to {num - 1}")
    factors = factors or {}
    if exclude is not None:
        check_factors(exclude, factors, num)
    points = centred(codes.precise(metric))
    points.mul_(_power_of_two(points))
    rows = torch.arange(num, device=points.device)
    found = Retrieval(
        nearest_QK=rows.new_empty(num, k),
        is_hit_QK=torch.empty(num, k, dtype=torch.bool, device=rows.device),
        candidates_Q=rows.new_empty(num),
        relevant_Q=rows.new_empty(num),
        average_precision_Q=points.new_empty(num) if whole_ranking else None,
    )
    used = frozenset() if exclude is None else exclude.names()
    own = {name: factors[name].to(points.device) for name in used}
    distances = _Distances(points)
    for chunk in rows.split(distances.rows):
        removed = chunk[:, None] == rows
        if exclude is not None:
            removed |= exclude.holds({name: ids[chunk] for name, ids in own.items()}, own)
        relevant = (codes.labels[chunk][:, None] == codes.labels) & ~removed
        found.candidates_Q[chunk] = (~removed).sum(1)
        found.relevant_Q[chunk] = relevant.sum(1)
        if whole_ranking:
            nearest = _rank_all(distances.precise(chunk, removed), relevant, k, found, chunk)
        else:
            nearest = _nearest(distances, chunk, removed, k)
        is_left = torch.arange(k, device=nearest.device) < found.candidates_Q[chunk][:, None]
        found.is_hit_QK[chunk] = relevant.gather(1, nearest) & is_left
        found.nearest_QK[chunk] = nearest.where(is_left, -1)
    return found


class _Distances:
    """Squared distances of a few queries to all, less |q|², which is the same in a row.

    Each has one place for all chunks: what is kept between large blocks that are freed would keep the next
    blocks from fitting there, and memory would grow with every chunk.
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
        """A place, and which codes are equal if any are."""
        identity_N = identities(self.points_ND)
        has_equals = bool((identity_N.diff() != 1).any())
        return self.points_ND.new_empty(self._shape), identity_N if has_equals else None

    def rough(self, queries: Tensor, removed_QG: Tensor) -> Tensor:
        """(Q, G) in float32, infinite where a candidate is removed."""
        points, squares, place = self._rough
        place = place[: len(queries)]
        with products_in("ieee", points.device):
            torch.addmm(squares, points[queries], points.T, alpha=-2, out=place)
        return place.masked_fill_(removed_QG, torch.inf)

    def rough_error(self, queries: Tensor) -> Tensor:
        """No rough distance of these queries is further than this from the true one, (Q, 1)."""
        norm_N = self.squares_N.sqrt()
        unit = torch.finfo(torch.float32).eps * (self.points_ND.shape[1] + 8)
        return (unit * norm_N.max() * (2 * norm_N[queries] + norm_N.max())).float()[:, None]

    def precise(self, queries: Tensor, removed_QG: Tensor) -> Tensor:
        """(Q, G) in float64, where equal codes tie, whatever the rounding."""
        place, identity_N = self._precise
        place = place[: len(queries)]
        torch.addmm(self.squares_N, self.points_ND[queries], self.points_ND.T, alpha=-2, out=place)
        distance = place if identity_N is None else place[:, identity_N]
        return distance.masked_fill_(removed_QG, torch.inf)

    def exact(self, query_P: Tensor, other_P: Tensor) -> Tensor:
        """|q - g|² of single pairs, a few at a time."""
        step = max(1, _CHUNK_BYTES // (8 * max(1, self.points_ND.shape[1])))
        parts = [
            (self.points_ND[query] - self.points_ND[other]).square().sum(1)
            for query, other in zip(query_P.split(step), other_P.split(step), strict=True)
        ]
        return torch.cat(parts)


def _nearest(distances: _Distances, queries: Tensor, removed_QG: Tensor, k: int) -> Tensor:
    """The k nearest, of equally near ones the first, (Q, K).

    Rough distances leave a few candidates that could be among them, whatever the rounding; these are compared
    exactly. Where they leave many, as in a collapsed embedding, all are compared in float64.
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
    distance_QG: Tensor, relevant_QG: Tensor, k: int, found: Retrieval, queries: Tensor
) -> Tensor:
    """The k nearest of a whole ranking, whose average precision is written into its place."""
    assert found.average_precision_Q is not None
    order = distance_QG.argsort(dim=1, stable=True)
    hits = relevant_QG.gather(1, order)
    place = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    precision = (hits * hits.cumsum(1) / place.double()).sum(1) / found.relevant_Q[queries]
    found.average_precision_Q[queries] = precision.to(found.average_precision_Q)
    return order[:, :k]
