"""Retrieval: every query ranks the other images by distance; what is near should show the same thing.

Candidates that a rule excludes are removed before ranking, and a query never finds itself. A query that is
left without any relevant candidate cannot be answered: it is counted, and never scored.

Shapes: Q queries, G images to be found, K places at the top of the ranking, D code entries.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.evaluation.exclusion import Factors, Rule, check_factors
from orbitset.evaluation.labelled import Labelled, Metric

_CHUNK_BYTES = 2**25


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
    if not 1 <= k < max(2, num):
        raise ValueError(f"k is {k} for {num} images; give 1 to {num - 1}")
    factors = factors or {}
    if exclude is not None:
        check_factors(exclude, factors, num)
    points = codes.prepared(metric).double()
    # distances stay, rounding errors shrink, whole numbers stay exact; a copy, since the codes are not ours
    points = points.sub(points[0]) if points is codes.codes else points.sub_(points[0].clone())
    identity_N = _identities(points)
    has_equals = bool((identity_N != torch.arange(num, device=points.device)).any())
    squares = points.square().sum(1)
    rows = torch.arange(num, device=points.device)
    chunks = rows.split(max(1, _CHUNK_BYTES // (8 * num)))
    # Places for all results and one for distances: small results left between large blocks that are freed
    # would keep the next blocks from fitting there, and memory would grow with every chunk.
    place = points.new_empty(len(chunks[0]), num)
    found = Retrieval(
        nearest_QK=rows.new_empty(num, k),
        is_hit_QK=torch.empty(num, k, dtype=torch.bool, device=rows.device),
        candidates_Q=rows.new_empty(num),
        relevant_Q=rows.new_empty(num),
        average_precision_Q=points.new_empty(num) if whole_ranking else None,
    )
    for chunk in chunks:
        # |q|² is the same in a row
        distance = torch.addmm(squares, points[chunk], points.T, alpha=-2, out=place[: len(chunk)])
        if has_equals:  # they must tie, whatever the rounding
            distance = distance[:, identity_N]
        removed = chunk[:, None] == rows
        if exclude is not None:
            own = {name: factors[name].to(points.device) for name in exclude.names()}
            removed |= exclude.holds({name: ids[chunk] for name, ids in own.items()}, own)
        relevant = (codes.labels[chunk][:, None] == codes.labels) & ~removed
        _rank(distance.masked_fill_(removed, torch.inf), removed, relevant, k, found, chunk)
    return found


def _rank(
    distance_QG: Tensor,
    removed_QG: Tensor,
    relevant_QG: Tensor,
    k: int,
    found: Retrieval,
    queries: Tensor,
) -> None:
    """Write what a few queries find into its place."""
    found.candidates_Q[queries] = (~removed_QG).sum(1)
    found.relevant_Q[queries] = relevant_QG.sum(1)
    if found.average_precision_Q is not None:
        order = distance_QG.argsort(dim=1, stable=True)
        nearest = order[:, :k]
        hits = relevant_QG.gather(1, order)
        place = torch.arange(1, hits.shape[1] + 1, device=hits.device)
        precision = (hits * hits.cumsum(1) / place).sum(1) / found.relevant_Q[queries]
        found.average_precision_Q[queries] = precision.to(found.average_precision_Q)
    else:
        nearest = _first_nearest(distance_QG, k)
    is_left = torch.arange(k, device=nearest.device) < found.candidates_Q[queries][:, None]
    found.is_hit_QK[queries] = relevant_QG.gather(1, nearest) & is_left
    found.nearest_QK[queries] = nearest.where(is_left, -1)


def _first_nearest(distance_QG: Tensor, k: int) -> Tensor:
    """The k nearest, of equally near ones the first: topk promises no order among equals."""
    if k == 1:
        least = distance_QG.amin(1, keepdim=True)
        return (distance_QG == least).int().argmax(1, keepdim=True)
    furthest = distance_QG.topk(k, dim=1, largest=False).values[:, -1:]
    # all that could be among them, in order of distance and then of row
    count = int((distance_QG <= furthest).sum(1).max())
    near = distance_QG.topk(min(count, distance_QG.shape[1]), dim=1, largest=False)
    rows, by_row = near.indices.sort(dim=1)
    values = near.values.gather(1, by_row)
    return rows.gather(1, values.argsort(dim=1, stable=True))[:, :k]


def _identities(points_ND: Tensor) -> Tensor:
    """For each row the number of the first row equal to it, found by a hash of its bits and then checked."""
    generator = torch.Generator().manual_seed(0)
    limit = torch.iinfo(torch.int64).max
    factors_D = torch.randint(-limit, limit, points_ND.shape[1:], generator=generator) | 1
    factors_D = factors_D.to(points_ND.device)
    rows = torch.arange(len(points_ND), device=points_ND.device)
    chunks = rows.split(max(1, _CHUNK_BYTES // (8 * points_ND.shape[1])))
    hash_N = torch.cat(
        [((points_ND[c] + 0.0).view(torch.int64) * factors_D).sum(1) for c in chunks]
    )
    place_N = hash_N.unique(return_inverse=True)[1]
    if not all(_are_equal(points_ND, c, _first_of(place_N)) for c in chunks):
        place_N = points_ND.unique(dim=0, return_inverse=True)[1]
    return _first_of(place_N)


def _are_equal(points_ND: Tensor, rows: Tensor, first_N: Tensor) -> bool:
    others = rows[first_N[rows] != rows]
    return torch.equal(points_ND[others], points_ND[first_N[others]])


def _first_of(place_N: Tensor) -> Tensor:
    rows = torch.arange(len(place_N), device=place_N.device)
    first = torch.full((int(place_N.max()) + 1,), len(rows), device=rows.device)
    return first.scatter_reduce(0, place_N, rows, "amin")[place_N]
