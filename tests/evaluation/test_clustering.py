import math

import pytest
import torch

from orbitset.evaluation.clustering import cluster_scores
from orbitset.evaluation.labelled import Labelled


def _blobs(spread):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 4
    means = 10 * torch.randn(4, 5, generator=generator)
    return Labelled(means[labels] + spread * torch.randn(60, 5, generator=generator), labels)


def test_measures_equal_their_formulas():
    """Two labels, of which one cluster holds 3 + 1 images and the other 0 + 2."""
    codes = torch.tensor([[0.0], [0.1], [0.2], [0.1], [9.0], [9.1]])
    found = cluster_scores(Labelled(codes, torch.tensor([7, 7, 7, 4, 4, 4])))
    assert found.clusters_N.bincount().sort().values.tolist() == [2, 4]
    entropy = -sum(p * math.log(p) for p in (2 / 3, 1 / 3))
    shared = sum(p * math.log(p / q) for p, q in ((3 / 6, 2 / 6), (1 / 6, 2 / 6), (2 / 6, 1 / 6)))
    assert found.nmi == pytest.approx(2 * shared / (math.log(2) + entropy))
    together, in_labels, in_clusters = 3 + 0 + 1, 3 + 3, 6 + 1  # of 15 pairs of images
    chance = in_labels * in_clusters / 15
    assert found.ari == pytest.approx(
        (together - chance) / ((in_labels + in_clusters) / 2 - chance)
    )


def test_groups_that_lie_apart_are_found_and_noise_is_not():
    found = cluster_scores(_blobs(0.1))
    assert found.nmi == pytest.approx(1) and found.ari == 1
    assert found.clusters_N.shape == (60,) and len(found.clusters_N.unique()) == 4
    noise = cluster_scores(_blobs(1000.0), restarts=2)
    assert noise.nmi < 0.3 and abs(noise.ari) < 0.2


def test_a_seed_gives_the_same_clusters():
    one, other = (cluster_scores(_blobs(8.0), seed=3, restarts=1) for _ in range(2))
    assert torch.equal(one.clusters_N, other.clusters_N)
    assert (one.nmi, one.ari) == (other.nmi, other.ari)


def test_cosine_ignores_lengths():
    codes = _blobs(0.1)
    stretched = Labelled(codes.codes * torch.arange(1, 61)[:, None], codes.labels)
    assert cluster_scores(stretched, metric="cosine").ari == 1


def test_wrong_wishes_are_refused():
    with pytest.raises(ValueError, match="there are 1 labels"):
        cluster_scores(Labelled(torch.randn(3, 2), torch.zeros(3)))
    with pytest.raises(ValueError, match="restarts is 0"):
        cluster_scores(_blobs(1.0), restarts=0)
