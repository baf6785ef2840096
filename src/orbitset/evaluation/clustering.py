"""Clustering: do codes fall into groups by themselves, and are these the labels?

Both measures compare two ways to group the same images, whatever the groups are called. Counts are int64;
sums over them are taken in float64 or, where they must cancel, as Python's integers, which do not overflow.

Shapes: N images, L labels, C clusters, P pairs of a label and a cluster that occur together.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.evaluation.labelled import Labelled, Metric


@dataclass(frozen=True)
class Clustering:
    """What k-means found, and how well it agrees with the labels."""

    clusters_N: Tensor
    nmi: float
    ari: float


def cluster_scores(
    codes: Labelled, *, metric: Metric = "euclidean", seed: int = 0, restarts: int = 10
) -> Clustering:
    """k-means with as many clusters as labels, the best of `restarts` starts, against the labels.

    It is scikit-learn's, with k-means++ for each start, on codes in float64.

    >>> codes = Labelled(torch.tensor([[0.0], [0.1], [9.0], [9.1]]), torch.tensor([3, 3, 5, 5]))
    >>> found = cluster_scores(codes)
    >>> found.nmi, found.ari
    (1.0, 1.0)
    """
    num_labels = len(codes.labels.unique())
    if num_labels < 2:
        raise ValueError(f"there are {num_labels} labels; give images of at least two")
    if restarts < 1:
        raise ValueError(f"restarts is {restarts}; give at least 1")
    from sklearn.cluster import KMeans  # late: it takes a second to load

    means = KMeans(num_labels, n_init=restarts, random_state=seed)
    found = means.fit_predict(codes.precise(metric).cpu().numpy())
    clusters = torch.from_numpy(found).long().to(codes.labels.device)
    return Clustering(
        clusters_N=clusters,
        nmi=normalized_mutual_info(codes.labels, clusters),
        ari=adjusted_rand(codes.labels, clusters),
    )


def normalized_mutual_info(labels_N: Tensor, clusters_N: Tensor) -> float:
    """What labels and clusters tell about each other, over the mean of their entropies: 0 to 1.

    It is 1 where both have a single group, and so nothing to tell.

    >>> round(normalized_mutual_info(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 7, 7, 8])), 4)
    0.3437
    """
    counts = _counts(labels_N, clusters_N)
    if len(counts.label_L) == len(counts.cluster_C) == 1:
        return 1.0
    num = len(labels_N)
    together_P, label_P, cluster_P = (
        count.double() for count in (counts.together_P, counts.label_P, counts.cluster_P)
    )
    gain_P = together_P.log() - label_P.log() - cluster_P.log() + math.log(num)
    information = float((together_P / num * gain_P).sum())
    if information <= torch.finfo(torch.float64).eps:  # rounding errors alone
        return 0.0
    return min(1.0, 2 * information / (_entropy(counts.label_L) + _entropy(counts.cluster_C)))


def adjusted_rand(labels_N: Tensor, clusters_N: Tensor) -> float:
    """How many pairs of images are together in both or apart in both: 1 for all, 0 on average by chance.

    >>> round(adjusted_rand(torch.tensor([0, 0, 1, 2]), torch.tensor([7, 7, 8, 8])), 4)
    0.5714
    """
    counts = _counts(labels_N, clusters_N)
    num = len(labels_N)
    # ordered pairs of different images
    in_both, in_labels, in_clusters = (
        int(count.square().sum()) - num
        for count in (counts.together_P, counts.label_L, counts.cluster_C)
    )
    in_labels_only, in_clusters_only = in_labels - in_both, in_clusters - in_both
    if in_labels_only == in_clusters_only == 0:
        return 1.0
    apart = num * (num - 1) - in_both - in_labels_only - in_clusters_only
    above = 2 * (in_both * apart - in_labels_only * in_clusters_only)
    below = in_labels * (in_labels_only + apart) + in_clusters * (in_clusters_only + apart)
    return above / below


@dataclass(frozen=True)
class _Counts:
    """Images in each label and in each cluster; and for the pairs of them that occur together."""

    label_L: Tensor
    cluster_C: Tensor
    together_P: Tensor
    label_P: Tensor
    cluster_P: Tensor


def _counts(labels_N: Tensor, clusters_N: Tensor) -> _Counts:
    if labels_N.ndim != 1 or labels_N.shape != clusters_N.shape:
        raise ValueError(
            f"labels have shape {tuple(labels_N.shape)} and clusters {tuple(clusters_N.shape)}; "
            "give one of each per image"
        )
    if len(labels_N) == 0:
        raise ValueError("there are no images; give at least one label and its cluster")
    _, own_N, label_L = labels_N.unique(return_inverse=True, return_counts=True)
    clusters_N = clusters_N.to(labels_N.device)
    _, found_N, cluster_C = clusters_N.unique(return_inverse=True, return_counts=True)
    pair_P, together_P = (own_N * len(cluster_C) + found_N).unique(return_counts=True)
    return _Counts(
        label_L=label_L,
        cluster_C=cluster_C,
        together_P=together_P,
        label_P=label_L[pair_P // len(cluster_C)],
        cluster_P=cluster_C[pair_P % len(cluster_C)],
    )


def _entropy(counts: Tensor) -> float:
    part = counts.double() / counts.sum()
    return -float((part * part.log()).sum())
