import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

from orbitset.evaluation import retrieval
from orbitset.evaluation.exclusion import Same
from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.retrieval import retrieve


def _codes(num, seed, kind="random", classes=3, dim=4):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(num, dim, dtype=torch.float64, generator=generator)
    if kind == "tied":
        codes = torch.randint(-1, 2, (num, dim), generator=generator).double()
    if kind == "near":  # float32 cannot tell them apart
        codes = 1 + 1e-7 * codes
    if kind == "huge":
        codes = 1e140 * codes
    labels = torch.randint(0, classes, (num,), generator=generator)
    factors = {
        name: torch.randint(0, size, (num,), generator=generator)
        for name, size in (("view", 3), ("light", 2))
    }
    return Labelled(codes, labels), {**factors, "person": labels}


def _by_loop(codes, excluded, k):
    """For each query: nearest rows, hits, candidates, relevant, average precision."""
    found = []
    for q in range(len(codes)):
        left = [g for g in range(len(codes)) if g != q and not excluded(q, g)]
        left.sort(key=lambda g: (float((codes.codes[q] - codes.codes[g]).square().sum()), g))
        hits = [bool(codes.labels[g] == codes.labels[q]) for g in left]
        at = [sum(hits[: i + 1]) / (i + 1) for i in range(len(hits)) if hits[i]]
        found.append((left[:k], hits[:k], len(left), sum(hits), np.mean(at) if at else None))
    return found


@settings(deadline=None)
@given(
    num=st.integers(3, 20), seed=st.integers(0, 99), k=st.integers(1, 4),
    kind=st.sampled_from(["random", "tied", "near", "huge"]), with_rule=st.booleans(),
    whole=st.booleans(), chunk=st.sampled_from([64, 2**20]), candidates=st.sampled_from([-9, 64]),
)  # fmt: skip
def test_it_equals_a_loop(num, seed, kind, k, with_rule, whole, chunk, candidates):
    k = min(k, num - 1)
    codes, factors = _codes(num, seed, kind)
    rule = Same("person") & (Same("view") | Same("light")) if with_rule else None

    def excluded(q, g):
        same = {name: bool(ids[q] == ids[g]) for name, ids in factors.items()}
        return with_rule and same["person"] and (same["view"] or same["light"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_CHUNK_BYTES", chunk)
        patch.setattr(retrieval, "_MOST_CANDIDATES", candidates)
        found = retrieve(codes, k=k, factors=factors, exclude=rule, whole_ranking=whole)
    expected = _by_loop(codes, excluded, k)
    for q, (rows, hits, candidates, relevant, precision) in enumerate(expected):
        assert found.nearest_QK[q].tolist() == rows + [-1] * (k - len(rows))
        assert found.is_hit_QK[q].tolist() == hits + [False] * (k - len(hits))
        assert (found.candidates_Q[q], found.relevant_Q[q]) == (candidates, relevant)
        if whole and precision is not None:
            assert found.average_precision_Q[q].item() == pytest.approx(precision)
    answerable = [row for row in expected if row[3]]
    assert found.num_unanswerable == len(expected) - len(answerable)
    if answerable:
        wanted = np.mean([sum(row[1]) / min(k, row[2]) for row in answerable])
        assert found.precision_at(k) == pytest.approx(wanted)
        if whole:
            wanted = np.mean([row[4] for row in answerable])
            assert found.mean_average_precision == pytest.approx(wanted)


def test_a_query_without_anything_to_find_is_counted_and_not_scored():
    codes = Labelled(torch.tensor([[0.0], [0.1], [9.0]]), torch.tensor([0, 0, 1]))
    found = retrieve(codes, whole_ranking=True)
    assert found.num_unanswerable == 1 and not found.answerable_Q[2]
    assert found.precision_at(1) == found.mean_average_precision == 1.0


def test_the_papers_exclusion_leaves_all_but_32():
    rows = torch.cartesian_prod(torch.arange(4), torch.arange(13), torch.arange(20))
    factors = dict(zip(("person", "view", "light"), rows.T, strict=True))
    codes = Labelled(torch.randn(len(rows), 3), factors["person"])
    found = retrieve(
        codes, factors=factors, exclude=Same("person") & (Same("view") | Same("light"))
    )
    assert (len(rows) - found.candidates_Q == 32).all()
    assert (found.relevant_Q == 260 - 32).all()


def test_precision_at_1_is_that_of_pytorch_metric_learning():
    codes, _ = _codes(80, 5)
    knn = CustomKNN(LpDistance(normalize_embeddings=False))
    theirs = AccuracyCalculator(
        include=("precision_at_1",), k=1, device=torch.device("cpu"), knn_func=knn
    )
    expected = theirs.get_accuracy(codes.codes.float(), codes.labels)["precision_at_1"]
    assert retrieve(codes).precision_at(1) == pytest.approx(expected)


def test_cosine_ignores_lengths():
    codes, _ = _codes(30, 2)
    stretched = Labelled(codes.codes * torch.arange(1, 31)[:, None], codes.labels)
    one, other = (retrieve(c, metric="cosine", k=3) for c in (codes, stretched))
    assert torch.equal(one.nearest_QK, other.nearest_QK)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": 30}, "k is 30 for 30 images"),
        ({"exclude": Same("session")}, "reads session"),
    ],
)
def test_wrong_wishes_are_refused(asked, word):
    codes, factors = _codes(30, 2)
    with pytest.raises(ValueError, match=word):
        retrieve(codes, **{"factors": factors, **asked})


def test_what_was_not_kept_cannot_be_asked_for():
    codes, _ = _codes(10, 2)
    with pytest.raises(ValueError, match="only the 1 nearest"):
        retrieve(codes).precision_at(2)
    with pytest.raises(ValueError, match="whole_ranking"):
        _ = retrieve(codes).mean_average_precision


@pytest.mark.parametrize("num", [0, 1])
def test_to_find_something_takes_two_images(num):
    with pytest.raises(ValueError, match="at least two"):
        retrieve(Labelled(torch.zeros(num, 3), torch.zeros(num)))


def test_codes_that_are_being_learned_can_be_looked_at():
    codes = torch.rand(6, 3, requires_grad=True)
    assert retrieve(Labelled(codes, torch.arange(6) % 2)).candidates_Q.tolist() == [5] * 6


def test_codes_are_left_as_they_are():
    codes, _ = _codes(10, 2)
    before = codes.codes.clone()
    retrieve(codes)
    assert torch.equal(codes.codes, before)


@pytest.mark.parametrize("k", [1, 3])
def test_neighbours_that_float32_would_confuse_are_compared_exactly(k, monkeypatch):
    """Codes far from the centre: rounding moves their float32 distances by more than they differ."""
    monkeypatch.setattr(retrieval, "_MOST_CANDIDATES", 2**20)  # never all in float64
    codes, _ = _codes(60, 5)
    codes.codes[:30, 0] += 1000
    rough = torch.cdist(codes.codes.float(), codes.codes.float())
    wrong = rough.fill_diagonal_(torch.inf).topk(k, largest=False).indices
    wanted = torch.tensor([row[0] for row in _by_loop(codes, lambda q, g: False, k)])
    assert not torch.equal(wrong, wanted)
    assert torch.equal(retrieve(codes, k=k).nearest_QK, wanted)


@pytest.mark.parametrize("row", [0, 100])
def test_an_outlier_anywhere_spoils_no_other_querys_answer(row):
    codes, _ = _codes(200, 3, dim=8)
    wanted = [
        rows[0] if rows else -1 for rows, *_ in _by_loop(codes, lambda q, g: row in (q, g), 1)
    ]
    far = codes.codes.clone()
    far[row] = 1e8
    found = retrieve(Labelled(far, codes.labels)).nearest_QK[:, 0].tolist()
    assert [one for q, one in enumerate(found) if q != row] == [
        one for q, one in enumerate(wanted) if q != row
    ]
