import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from orbitset.evaluation.clustering import adjusted_rand, cluster_scores, normalized_mutual_info
from orbitset.evaluation.labelled import Labelled

GROUPED = st.integers(1, 40).flatmap(
    lambda num: st.tuples(
        *[
            st.integers(1, 8).flatmap(
                lambda groups: st.lists(st.integers(-groups, groups), min_size=num, max_size=num)
            )
        ]
        * 2
    )
)


def _check(labels, clusters):
    one, other = torch.as_tensor(labels), torch.as_tensor(clusters)
    expected = normalized_mutual_info_score(labels, clusters)
    assert normalized_mutual_info(one, other) == pytest.approx(expected, abs=1e-12)
    expected = adjusted_rand_score(labels, clusters)
    assert adjusted_rand(one, other) == pytest.approx(expected, abs=1e-12)


@pytest.mark.filterwarnings("ignore:The number of unique classes is greater than 50%")
@settings(deadline=None, max_examples=200)
@given(GROUPED)
def test_measures_are_those_of_scikit_learn(grouped):
    _check(*grouped)


@pytest.mark.filterwarnings("ignore:The number of unique classes is greater than 50%")
@pytest.mark.parametrize(
    ("labels", "clusters"),
    [
        ([0] * 9, [4] * 9),
        ([0] * 9, list(range(9))),
        (list(range(9)), [4] * 9),
        (list(range(9)), list(range(9, 0, -1))),
        ([0, 0, 1, 1], [0, 1, 0, 1]),
        ([5], [6]),
    ],
)
def test_single_groups_and_single_images_are_grouped_too(labels, clusters):
    _check(labels, clusters)


def test_large_counts_do_not_overflow():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (300_000,), generator=generator).int()
    clusters = (labels + (torch.rand(300_000, generator=generator) < 0.2)) % 3
    _check(labels.numpy(), clusters.numpy())


def test_names_of_groups_do_not_matter():
    generator = torch.Generator().manual_seed(1)
    labels, clusters = torch.randint(0, 4, (2, 50), generator=generator)
    for measure in (normalized_mutual_info, adjusted_rand):
        renamed = measure(labels, torch.tensor([30, -1, 2**40, 5])[clusters])
        assert renamed == pytest.approx(measure(labels, clusters), abs=1e-14)
        assert measure(clusters, labels) == pytest.approx(measure(labels, clusters), abs=1e-14)


@pytest.mark.parametrize("measure", [normalized_mutual_info, adjusted_rand])
def test_groups_that_cannot_be_compared_are_refused(measure):
    none = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="no images"):
        measure(none, none)
    with pytest.raises(ValueError, match="one of each per image"):
        measure(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="one of each per image"):
        measure(torch.zeros(3, 2), torch.zeros(3, 2))


def _blobs(spread):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 4
    means = 10 * torch.randn(4, 5, generator=generator)
    return Labelled(means[labels] + spread * torch.randn(60, 5, generator=generator), labels)


def test_groups_that_lie_apart_are_found_and_noise_is_not():
    found = cluster_scores(_blobs(0.1))
    assert found.nmi == pytest.approx(1) and found.ari == 1
    assert found.clusters_N.shape == (60,) and len(found.clusters_N.unique()) == 4
    noise = cluster_scores(_blobs(1000.0), restarts=2)
    assert noise.nmi < 0.3 and abs(noise.ari) < 0.2


def test_a_seed_gives_the_same_clusters():
    one, other = (cluster_scores(_blobs(8.0), seed=3, restarts=1) for _ in range(2))
    assert torch.equal(one.clusters_N, other.clusters_N)
    assert one.nmi == normalized_mutual_info(_blobs(8.0).labels, one.clusters_N)


def test_cosine_ignores_lengths():
    codes = _blobs(0.1)
    stretched = Labelled(codes.codes * torch.arange(1, 61)[:, None], codes.labels)
    assert cluster_scores(stretched, metric="cosine").ari == 1


def test_wrong_wishes_are_refused():
    with pytest.raises(ValueError, match="there are 1 labels"):
        cluster_scores(Labelled(torch.randn(3, 2), torch.zeros(3)))
    with pytest.raises(ValueError, match="restarts is 0"):
        cluster_scores(_blobs(1.0), restarts=0)
