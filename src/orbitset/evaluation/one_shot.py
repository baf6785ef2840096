"""Recognition from labelled examples: one-shot as in the paper, k-shot, k-NN and a linear probe.

All take a gallery, queries, and `labelled_sets`: for each of several draws the rows of the gallery whose
labels are known, see `draw_labelled_sets`. Without it the whole gallery is labelled. A query whose own orbit
is among the labelled examples is left out of that draw; a draw that leaves no query is not counted.

Shapes: R draws, L labelled examples per draw, Q queries, U different examples, D code entries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.evaluation.exclusion import Factors, Rule, check_factors
from orbitset.evaluation.labelled import Labelled, Metric, draw_labelled_sets
from orbitset.evaluation.score import Score

_CHUNK_ENTRIES = 2**24


@dataclass(frozen=True)
class Accuracy:
    """Accuracy over repeated draws of the labelled examples.

    Draws share one trained model and one set of queries, so their spread says how much the choice of
    labelled examples matters, not how much training does.
    """

    per_draw: Tensor
    """(R,) float64, without draws that left no query to score"""
    per_query: Tensor
    """(Q,) float64: the share of draws in which each query was right; NaN if it was left out of all"""

    @property
    def mean(self) -> float:
        return float(self.per_draw.mean())

    @property
    def sd(self) -> float | None:
        """Standard deviation over draws; None for a single one."""
        return float(self.per_draw.std()) if len(self.per_draw) > 1 else None

    @property
    def interval(self) -> tuple[float, float]:
        """The 2.5th and 97.5th percentiles over draws."""
        levels = torch.tensor([0.025, 0.975], dtype=self.per_draw.dtype)
        low, high = torch.quantile(self.per_draw, levels).tolist()
        return low, high

    def score(self, sides: Mapping[str, Sequence[float]] | None = None) -> Score:
        """The same in the form that all measures share."""
        return Score(
            mean=self.mean,
            sd=self.sd,
            interval=self.interval,
            n=len(self.per_draw),
            repeated="draws",
            sides=sides or {},
        )


def knn_accuracy(
    gallery: Labelled,
    queries: Labelled,
    *,
    k: int = 1,
    metric: Metric = "euclidean",
    labelled_sets: Tensor | None = None,
) -> Accuracy:
    """Accuracy of the majority among the k nearest labelled examples; of equally near ones the first counts.

    k = 1 with n labelled examples per class is n-shot recognition. All draws share one matrix product.

    >>> codes, labels = torch.eye(3), torch.arange(3)
    >>> knn_accuracy(Labelled(codes, labels), Labelled(codes + 0.1, labels)).mean
    1.0
    """
    set_RL = _checked_sets(gallery, queries, labelled_sets)
    if not 1 <= k <= set_RL.shape[1]:
        raise ValueError(
            f"k is {k} but {set_RL.shape[1]} examples are labelled; give 1 to {set_RL.shape[1]}"
        )
    labels_RL = gallery.labels[set_RL]
    parts = _distances(gallery, queries, set_RL, metric)
    predicted_QR = torch.cat([_vote(distance_QRL, labels_RL, k) for _, distance_QRL in parts])
    return _accuracy(predicted_QR, queries.labels, _of_other_orbits(gallery, queries, set_RL))


def one_shot_accuracy(
    codes: Labelled,
    *,
    draws: int = 100,
    seed: int = 0,
    metric: Metric = "euclidean",
    factors: Factors | None = None,
    exclude: Rule | None = None,
) -> Accuracy:
    """One random image of each class is labelled; all others have the class of the nearest of these.

    The rule removes examples that are too much like a query, as in retrieval. A query is left out of the
    draws in which no example of its class is left.

    >>> codes = Labelled(torch.tensor([[0.0], [1.0], [5.0], [5.5]]), torch.tensor([0, 0, 1, 1]))
    >>> one_shot_accuracy(codes, draws=3).per_draw.tolist()
    [1.0, 1.0, 1.0]
    """
    factors = factors or {}
    if exclude is not None:
        check_factors(exclude, factors, len(codes))
    set_RL = draw_labelled_sets(codes.labels, shots=1, draws=draws, seed=seed)
    used_U, place_RL = set_RL.unique(return_inverse=True)
    of_used = {name: ids[used_U] for name, ids in factors.items()}
    labels_RL, predicted, scored = codes.labels[set_RL], [], []
    for rows_Q, distance_QRL in _distances(codes, codes, set_RL, metric):
        removed_QU = rows_Q[:, None] == used_U
        if exclude is not None:
            of_queries = {name: ids[rows_Q] for name, ids in factors.items()}
            removed_QU |= exclude.holds(of_queries, of_used)
        removed_QRL = removed_QU[:, place_RL.flatten()].unflatten(1, place_RL.shape)
        predicted.append(_vote(distance_QRL.masked_fill_(removed_QRL, torch.inf), labels_RL, 1))
        is_own_QRL = codes.labels[rows_Q, None, None] == labels_RL
        scored.append((is_own_QRL & ~removed_QRL).any(2))
    return _accuracy(torch.cat(predicted), codes.labels, torch.cat(scored))


def _distances(
    gallery: Labelled, queries: Labelled, set_RL: Tensor, metric: Metric
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a few queries, and their squared distances to the labelled examples of each draw, less |q|²,
    which is the same for all of a query's distances, (Q, R, L)."""
    used_U, place = set_RL.unique(return_inverse=True)
    # In float64, since |u|^2 - 2uq loses small distances; equal examples share a column, so they tie.
    used_UD, column_U = gallery.prepared(metric)[used_U].double().unique(dim=0, return_inverse=True)
    column_RL = column_U[place.view(set_RL.shape)]
    # Distances stay, rounding errors shrink, whole numbers stay exact. The median lies among most codes,
    # however far away one of them is.
    centre = used_UD[(used_UD - used_UD.median(0).values).square().sum(1).argmin()]
    used_UD, query_QD = used_UD - centre, queries.prepared(metric).double() - centre
    rows = max(1, _CHUNK_ENTRIES // max(set_RL.numel(), len(used_U)))
    for rows_Q in torch.arange(len(queries), device=query_QD.device).split(rows):
        distance_QU = used_UD.square().sum(1) - 2 * (query_QD[rows_Q] @ used_UD.T)
        yield rows_Q, distance_QU[:, column_RL.flatten()].unflatten(1, column_RL.shape)


def linear_probe_accuracy(
    gallery: Labelled,
    queries: Labelled,
    *,
    metric: Metric = "euclidean",
    labelled_sets: Tensor | None = None,
) -> Accuracy:
    """Accuracy of a logistic regression learned on the labelled examples, on standardised codes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    set_RL = _checked_sets(gallery, queries, labelled_sets)
    codes, query_codes = (
        part.prepared(metric).double().cpu().numpy() for part in (gallery, queries)
    )
    labels = gallery.labels.cpu().numpy()
    predicted = []
    for rows in set_RL.cpu().numpy():
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        predicted.append(torch.as_tensor(probe.fit(codes[rows], labels[rows]).predict(query_codes)))
    predicted_QR = torch.stack(predicted, 1).to(set_RL.device)
    return _accuracy(predicted_QR, queries.labels, _of_other_orbits(gallery, queries, set_RL))


def _checked_sets(gallery: Labelled, queries: Labelled, labelled_sets: Tensor | None) -> Tensor:
    if len(queries) == 0 or len(gallery) == 0:
        raise ValueError(
            f"there are {len(gallery)} gallery codes and {len(queries)} queries; give at least one each"
        )
    if gallery.codes.shape[1] != queries.codes.shape[1]:
        raise ValueError(
            f"gallery codes have {gallery.codes.shape[1]} entries but queries have "
            f"{queries.codes.shape[1]}; encode both with one model"
        )
    if labelled_sets is None:
        return torch.arange(len(gallery), device=gallery.labels.device)[None]
    if labelled_sets.ndim != 2 or 0 in labelled_sets.shape:
        raise ValueError(
            f"labelled_sets has shape {tuple(labelled_sets.shape)}; pass (draws, examples) rows"
        )
    if not 0 <= int(labelled_sets.min()) <= int(labelled_sets.max()) < len(gallery):
        raise ValueError(f"labelled_sets names rows outside the gallery of {len(gallery)} codes")
    return labelled_sets


def _vote(distance_QRL: Tensor, labels_RL: Tensor, k: int) -> Tensor:
    """The label of most of the k nearest, (Q, R); of equally many, the one whose example is nearest."""
    labels_QRL = labels_RL.expand(distance_QRL.shape)
    if k == 1:
        return labels_QRL.gather(2, distance_QRL.argmin(2, True)).squeeze(2)
    order_QRk = distance_QRL.argsort(dim=2, stable=True)[..., :k]
    labels_QRk = labels_QRL.gather(2, order_QRk)
    votes_QRk = (labels_QRk[..., :, None] == labels_QRk[..., None, :]).sum(-1)
    return labels_QRk.gather(2, votes_QRk.argmax(2, True)).squeeze(2)


def _of_other_orbits(gallery: Labelled, queries: Labelled, set_RL: Tensor) -> Tensor:
    """Whether a query's own orbit is not among the labelled examples of each draw, (Q, R)."""
    if gallery.orbits is None or queries.orbits is None:
        return queries.labels.new_ones((len(queries), len(set_RL)), dtype=torch.bool)
    own = [torch.isin(queries.orbits, gallery.orbits[row_L]) for row_L in set_RL]
    return ~torch.stack(own, 1)


def _accuracy(predicted_QR: Tensor, labels_Q: Tensor, is_scored_QR: Tensor) -> Accuracy:
    is_counted_R = is_scored_QR.any(0)
    if not is_counted_R.any():
        raise ValueError(
            "no query is left to score: every query's own orbit is among the labelled examples, or what is "
            "left of its class is excluded"
        )
    is_right_QR = is_scored_QR & (predicted_QR == labels_Q[:, None])
    per_draw_R = is_right_QR.sum(0).double() / is_scored_QR.sum(0)
    return Accuracy(
        per_draw=per_draw_R[is_counted_R].cpu(),
        per_query=(is_right_QR.sum(1).double() / is_scored_QR.sum(1)).cpu(),
    )
