import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitset.errors import ConfigError, DataError
from orbitset.search import distances
from orbitset.search.examples import Examples, leave_one_out_threshold


def _draw(num, seed, is_tied, classes=3):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, 2, (num, 2)) if is_tied else rng.standard_normal((num, 2))
    return codes.astype(np.float32), [f"class {c}" for c in rng.integers(0, classes, num)]


def _class_distances(codes, labels, query, by):
    """By class, in the order of the first examples."""
    found = {}
    for label in dict.fromkeys(labels):
        own = np.array(
            [c for c, each in zip(codes, labels, strict=True) if each == label], np.float64
        )
        own = own.mean(0, keepdims=True) if by == "mean" else own
        found[label] = min(float(np.square(query - each).sum()) for each in own)
    return found


@settings(deadline=None)
@given(
    num=st.integers(1, 12), queries=st.integers(0, 5), seed=st.integers(0, 99), is_tied=st.booleans(),
    by=st.sampled_from(["nearest", "mean"]), above=st.sampled_from([None, 0.0, 1.0]),
    chunk=st.sampled_from([1, 2**25]),
)  # fmt: skip
def test_classes_are_those_of_a_loop(num, queries, seed, is_tied, by, above, chunk):
    codes, labels = _draw(num, seed, is_tied)
    asked, _ = _draw(queries, seed + 1, is_tied)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "CHUNK_BYTES", chunk)
        found = Examples(codes, labels, by=by).classify(asked, reject_above=above)
    assert len(found) == queries
    for query, one in zip(asked.astype(np.float64), found, strict=True):
        wanted = _class_distances(codes, labels, query, by)
        ranked = sorted(wanted, key=lambda label: wanted[label])
        assert one.distance == pytest.approx(wanted[ranked[0]], abs=1e-12)
        if by == "nearest":  # means may be rounded apart
            assert one.nearest == ranked[0]
            assert one.runner_up == (ranked[1] if len(ranked) > 1 else None)
            is_rejected = above is not None and wanted[ranked[0]] > above
            assert one.label == (None if is_rejected else ranked[0])
        if len(ranked) > 1:
            assert one.runner_up_distance == pytest.approx(wanted[ranked[1]], abs=1e-12)
        else:
            assert one.runner_up is None and one.runner_up_distance is None


def test_of_equally_near_classes_the_first_example_counts():
    known = Examples(np.array([[1.0], [-1.0], [1.0]]), ["z", "a", "m"])
    [found] = known.classify(np.array([[0.0]]))
    assert (found.label, found.runner_up) == ("z", "a") and found.runner_up_distance == 1.0


def test_a_mean_is_not_its_nearest_example():
    codes, labels = np.array([[0.0], [10.0], [6.0]]), ["far", "far", "near"]
    query = np.array([[9.0]])
    assert Examples(codes, labels).classify(query)[0].label == "far"
    assert Examples(codes, labels, by="mean").classify(query)[0].label == "near"


def test_what_is_exactly_at_the_limit_is_accepted():
    known = Examples(np.array([[0.0]]), ["a"])
    found = known.classify(np.array([[2.0], [2.001]]), reject_above=4.0)
    assert [one.label for one in found] == ["a", None] and found[1].nearest == "a"


def _left_out(codes, labels, by):
    same, other = [], []
    for i, label in enumerate(labels):
        rest = [j for j in range(len(labels)) if j != i]
        found = _class_distances(
            codes[rest], [labels[j] for j in rest], codes[i].astype(np.float64), by
        )
        same += [found[label]] if label in found else []
        other += [min((d for each, d in found.items() if each != label), default=np.inf)]
    return np.array(same), np.array(other)


@settings(deadline=None)
@given(
    num=st.integers(1, 12), seed=st.integers(0, 99), is_tied=st.booleans(),
    by=st.sampled_from(["nearest", "mean"]), chunk=st.sampled_from([1, 2**25]),
)  # fmt: skip
def test_the_threshold_makes_the_fewest_errors(num, seed, is_tied, by, chunk):
    codes, labels = _draw(num, seed, is_tied)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "CHUNK_BYTES", chunk)
        found = leave_one_out_threshold(Examples(codes, labels, by=by))
    if sum(labels.count(label) > 1 for label in set(labels)) < 2:
        assert found is None
        return
    same, other = _left_out(codes, labels, by)

    def error(threshold):
        return ((same > threshold).mean() + (other <= threshold).mean()) / 2

    edges = np.concatenate([same, other])
    least = min(error(edge * (1 + 1e-9) + 1e-12) for edge in edges)  # means may be rounded apart
    if found is None:
        assert least >= 0.5 - 1e-9
    else:
        assert error(found) == pytest.approx(least)


def test_the_threshold_lies_in_the_middle_of_the_widest_best_gap():
    codes = np.array([[0.0], [1.0], [10.0], [12.0]])
    known = Examples(codes, ["a", "a", "b", "b"])
    # to the rest of the class: 1, 1, 4, 4; to the other class: 100, 81, 81, 121
    assert leave_one_out_threshold(known) == (4 + 81) / 2
    assert [one.label for one in known.classify(codes, reject_above=42.5)] == list("aabb")


@pytest.mark.parametrize(
    ("labels", "why"),
    [("abcd", "no class has two"), ("aaaa", "one class"), ("aabc", "one has two")],
)
def test_too_few_examples_have_no_threshold(labels, why):
    assert leave_one_out_threshold(Examples(_draw(4, 0, False)[0], labels)) is None, why


def test_examples_that_say_nothing_have_no_threshold():
    assert leave_one_out_threshold(Examples(np.ones((4, 2)), "aabb")) is None
    mixed = np.array([[0.0], [9.0], [0.0], [9.0]])
    assert leave_one_out_threshold(Examples(mixed, "aabb")) is None


def test_wrong_input_is_refused():
    codes, labels = _draw(4, 0, False)
    with pytest.raises(ValueError, match="3 labels for 4 examples"):
        Examples(codes, labels[:3])
    with pytest.raises(ValueError, match="there are no examples"):
        Examples(codes[:0], [])
    with pytest.raises(ConfigError, match="by is 'median'"):
        Examples(codes, labels, by="median")
    with pytest.raises(DataError, match="row 0"):
        Examples(np.full((1, 2), np.nan), ["a"])
    with pytest.raises(ValueError, match="must have 2"):
        Examples(codes, labels).classify(np.zeros((1, 3)))
    for wrong in (-1.0, np.nan):
        with pytest.raises(ValueError, match="reject_above is"):
            Examples(codes, labels).classify(codes, reject_above=wrong)
