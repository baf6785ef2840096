"""Clustering: do codes fall into groups by themselves, and do these groups agree with the labels?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.evaluation.labelled import Labelled, Metric


@dataclass(frozen=True)
class Clustering:
    """The clusters of k-means, and how well they agree with the labels."""

    clusters_N: Tensor
    nmi: float
    """Normalized mutual information of clusters and labels: 0 to 1."""
    ari: float
    """Adjusted Rand index of clusters and labels: 1 if they agree, 0 on average by chance."""


def cluster_scores(
    codes: Labelled, *, metric: Metric = "euclidean", seed: int = 0, restarts: int = 10
) -> Clustering:
    """Run scikit-learn's k-means with as many clusters as labels, and compare its clusters with the labels.

    The best of `restarts` starts with k-means++ counts. Codes are in float64.

    >>> codes = Labelled(torch.tensor([[0.0], [0.1], [9.0], [9.1]]), torch.tensor([3, 3, 5, 5]))
    >>> clustering = cluster_scores(codes)
    >>> clustering.nmi, clustering.ari
    (1.0, 1.0)
    """
    num_labels = len(codes.labels.unique())
    if num_labels < 2:
        raise ValueError(f"there are {num_labels} labels; give images of at least two")
    if restarts < 1:
        raise ValueError(f"restarts is {restarts}; give at least 1")
    from sklearn.cluster import KMeans  # imported late: it takes a second to load
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    means = KMeans(num_labels, n_init=restarts, random_state=seed)
    clusters = means.fit_predict(codes.precise(metric).cpu().numpy())
    labels = codes.labels.cpu().numpy()
    return Clustering(
        clusters_N=torch.from_numpy(clusters).long().to(codes.labels.device),
        nmi=float(normalized_mutual_info_score(labels, clusters)),
        ari=float(adjusted_rand_score(labels, clusters)),
    )
