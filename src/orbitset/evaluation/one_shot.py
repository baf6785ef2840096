"""Recognition from labelled examples: one-shot as in the paper, k-shot, k-NN and a linear probe.

All have one interface: (gallery, queries) with `shots` labelled examples per class drawn `draws` times
from the gallery, or the whole gallery when shots is None. A query whose own orbit is among the labelled
examples is left out of that draw.

Shapes: R draws, L labelled examples per draw, Q queries, D code entries.
"""

import torch
from torch import Tensor

from orbitset.evaluation.labelled import Labelled, Metric, draw_labelled_sets
from orbitset.evaluation.results import Accuracy

_CHUNK_ENTRIES = 2**24


def one_shot_accuracy(
    gallery: Labelled,
    queries: Labelled,
    *,
    draws: int = 100,
    seed: int = 0,
    metric: Metric = "euclidean",
    labelled_sets: Tensor | None = None,
) -> Accuracy:
    """Nearest-neighbour accuracy from one labelled example per class, over repeated draws of them.

    >>> codes, labels = torch.eye(3), torch.arange(3)
    >>> one_shot_accuracy(Labelled(codes, labels), Labelled(codes + 0.1, labels), draws=5).mean
    1.0
    """
    return knn_accuracy(
        gallery,
        queries,
        k=1,
        shots=1,
        draws=draws,
        seed=seed,
        metric=metric,
        labelled_sets=labelled_sets,
    )


def knn_accuracy(
    gallery: Labelled,
    queries: Labelled,
    *,
    k: int = 1,
    shots: int | None = None,
    draws: int = 100,
    seed: int = 0,
    metric: Metric = "euclidean",
    labelled_sets: Tensor | None = None,
) -> Accuracy:
    """Accuracy of the majority among the k nearest labelled examples; of equally near, the first.

    k = 1 with `shots` examples per class is k-shot recognition. All draws share one matrix product.
    """
    set_RL = _labelled_sets(gallery, queries, shots, draws, seed, labelled_sets)
    if not 1 <= k <= set_RL.shape[1]:
        raise ValueError(
            f"k is {k} but {set_RL.shape[1]} examples are labelled; give 1 to {set_RL.shape[1]}"
        )
    used_U, place = set_RL.unique(return_inverse=True)
    place_RL = place.view(set_RL.shape)
    # In float64, since |u|^2 - 2uq loses small distances; equal examples share a column, so they tie.
    used_UD, column_U = gallery.prepared(metric)[used_U].double().unique(dim=0, return_inverse=True)
    column_RL = column_U[place_RL]
    query_codes = queries.prepared(metric).double()
    centre = used_UD[0]  # distances stay, rounding errors shrink, whole numbers stay exact
    used_UD = used_UD - centre
    labels_RL = gallery.labels[set_RL]
    right_R, right_Q, left_out_Q = _counts(set_RL, queries)
    rows = max(1, _CHUNK_ENTRIES // max(set_RL.numel(), len(used_U)))
    for chunk_Q in torch.arange(len(queries), device=set_RL.device).split(rows):
        # |q|^2 is the same for all of a query's distances and is left out
        products_QU = (query_codes[chunk_Q] - centre) @ used_UD.T
        distance_QU = used_UD.square().sum(1) - 2 * products_QU
        distance_QRL = distance_QU[:, column_RL.flatten()].unflatten(1, column_RL.shape)
        predicted_QR = _vote(distance_QRL, labels_RL, k)
        is_right_QR = predicted_QR == queries.labels[chunk_Q][:, None]
        is_own_QR = _own_orbit(gallery, queries, set_RL, chunk_Q)
        is_right_QR &= ~is_own_QR
        right_R += is_right_QR.sum(0)
        right_Q[chunk_Q], left_out_Q[chunk_Q] = is_right_QR.sum(1), is_own_QR.sum(1)
    return _accuracy(right_R, right_Q, left_out_Q, gallery, queries, set_RL)


def linear_probe_accuracy(
    gallery: Labelled,
    queries: Labelled,
    *,
    shots: int | None = None,
    draws: int = 1,
    seed: int = 0,
    metric: Metric = "euclidean",
    labelled_sets: Tensor | None = None,
    inverse_regularisation: float = 1.0,
) -> Accuracy:
    """Accuracy of a logistic regression learned on the labelled examples, on standardised codes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    set_RL = _labelled_sets(gallery, queries, shots, draws, seed, labelled_sets)
    gallery_codes = gallery.prepared(metric).double().cpu().numpy()
    query_codes = queries.prepared(metric).double().cpu().numpy()
    right_R, right_Q, left_out_Q = _counts(set_RL, queries)
    every = torch.arange(len(queries), device=set_RL.device)
    for r in range(len(set_RL)):
        rows = set_RL[r].cpu().numpy()
        scaler = StandardScaler().fit(gallery_codes[rows])
        probe = LogisticRegression(C=inverse_regularisation, max_iter=1000)
        probe.fit(scaler.transform(gallery_codes[rows]), gallery.labels[set_RL[r]].cpu().numpy())
        predicted = torch.as_tensor(probe.predict(scaler.transform(query_codes)))
        is_right = predicted.to(queries.labels.device) == queries.labels
        is_own = _own_orbit(gallery, queries, set_RL[r : r + 1], every).squeeze(1)
        is_right &= ~is_own
        right_R[r] = is_right.sum()
        right_Q += is_right
        left_out_Q += is_own
    return _accuracy(right_R, right_Q, left_out_Q, gallery, queries, set_RL)


def _labelled_sets(
    gallery: Labelled,
    queries: Labelled,
    shots: int | None,
    draws: int,
    seed: int,
    labelled_sets: Tensor | None,
) -> Tensor:
    """The sets to label, after a look at whether gallery and queries go together."""
    if len(queries) == 0 or len(gallery) == 0:
        raise ValueError(
            f"there are {len(gallery)} gallery codes and {len(queries)} queries; give at least one each"
        )
    if gallery.codes.shape[1] != queries.codes.shape[1]:
        raise ValueError(
            f"gallery codes have {gallery.codes.shape[1]} entries but queries have "
            f"{queries.codes.shape[1]}; encode both with one model"
        )
    if labelled_sets is not None:
        if labelled_sets.ndim != 2 or 0 in labelled_sets.shape:
            raise ValueError(
                f"labelled_sets has shape {tuple(labelled_sets.shape)}; pass (draws, examples) rows"
            )
        if not 0 <= int(labelled_sets.min()) <= int(labelled_sets.max()) < len(gallery):
            raise ValueError(
                f"labelled_sets names rows outside the gallery of {len(gallery)} codes"
            )
        return labelled_sets
    if shots is None:
        return torch.arange(len(gallery), device=gallery.labels.device)[None]
    return draw_labelled_sets(gallery.labels, shots=shots, draws=draws, seed=seed)


def _vote(distance_QRL: Tensor, labels_RL: Tensor, k: int) -> Tensor:
    """The label of most of the k nearest; of equally many, the one whose example is nearest."""
    if k == 1:
        return (
            labels_RL.expand(distance_QRL.shape).gather(2, distance_QRL.argmin(2, True)).squeeze(2)
        )
    order_QRk = distance_QRL.argsort(dim=2, stable=True)[..., :k]
    labels_QRk = labels_RL.expand(distance_QRL.shape).gather(2, order_QRk)
    votes_QRk = (labels_QRk[..., :, None] == labels_QRk[..., None, :]).sum(-1)
    return labels_QRk.gather(2, votes_QRk.argmax(2, True)).squeeze(2)


def _own_orbit(gallery: Labelled, queries: Labelled, set_RL: Tensor, chunk_Q: Tensor) -> Tensor:
    """Whether a query's orbit is among the labelled examples of a draw, (Q, R)."""
    if gallery.orbits is None or queries.orbits is None:
        return torch.zeros(len(chunk_Q), len(set_RL), dtype=torch.bool, device=set_RL.device)
    orbits_Q = queries.orbits[chunk_Q]
    return torch.stack([torch.isin(orbits_Q, gallery.orbits[row_L]) for row_L in set_RL], 1)


def _counts(set_RL: Tensor, queries: Labelled) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros to count in: right by draw, right by query, left out by query."""
    sizes = (len(set_RL), len(queries), len(queries))
    right_R, right_Q, left_out_Q = (
        torch.zeros(size, dtype=torch.int64, device=set_RL.device) for size in sizes
    )
    return right_R, right_Q, left_out_Q


def _accuracy(
    right_R: Tensor,
    right_Q: Tensor,
    left_out_Q: Tensor,
    gallery: Labelled,
    queries: Labelled,
    set_RL: Tensor,
) -> Accuracy:
    every = torch.arange(len(queries), device=set_RL.device)
    left_R = len(queries) - _own_orbit(gallery, queries, set_RL, every).sum(0)
    if (left_R == 0).any():
        raise ValueError(
            "no query is left to score: every query's own orbit is among the labelled examples"
        )
    scored_Q = len(set_RL) - left_out_Q
    return Accuracy((right_R.double() / left_R).cpu(), (right_Q.double() / scored_Q).cpu())
