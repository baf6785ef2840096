import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitset.errors import DataError
from orbitset.search import duplicates
from orbitset.search.duplicates import Group, find_groups


def _codes(num, seed, kind="random", dim=3):
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((num, dim))
    if kind == "tied":
        codes = rng.integers(-2, 3, (num, dim)) * rng.choice([1, -1, 0.0, -0.0])
    if kind == "repeated":
        codes = codes[rng.integers(0, max(1, num // 4), num)]
    if kind == "tight":  # far groups of codes that products in float32 cannot tell apart
        codes = 50.0 * rng.integers(0, 2, (num, 1)) + 1e-3 * codes
    if kind == "outlier":
        codes[:1] = 1e9
    if kind == "tiny":
        codes = 1e-25 * codes
    return codes.astype(np.float32)


def _by_loop(codes, threshold, names):
    """Groups as a flood fill finds them, medoids by summing all distances."""
    exact = codes.astype(np.float64)
    distance = np.square(exact[:, None] - exact[None]).sum(-1)
    near = distance <= threshold
    left, groups = set(range(len(codes))), []
    while left:
        members, waiting = set(), [min(left)]
        while waiting:
            row = waiting.pop()
            if row not in members:
                members.add(row)
                waiting += np.flatnonzero(near[row]).tolist()
        left -= members
        members = sorted(members)
        if len(members) > 1:
            sums = distance[np.ix_(members, members)].sum(1)
            pairs = (int(near[np.ix_(members, members)].sum()) - len(members)) // 2
            groups.append((members, sums, pairs))
    return distance, groups


@settings(deadline=None)
@given(
    num=st.integers(0, 40), seed=st.integers(0, 99), rows=st.sampled_from([3, 8, 1024]),
    columns=st.sampled_from([4, 8, 2048]), doubtful=st.sampled_from([0, 2**14]),
    kind=st.sampled_from(["random", "tied", "repeated", "tight", "outlier", "tiny"]),
    threshold=st.sampled_from([0.0, 0.5, 1.0, 4.0, 1e-6, 1e-50, 1e300]),
)  # fmt: skip
def test_groups_are_those_of_a_flood_fill(num, seed, rows, columns, doubtful, kind, threshold):
    codes = _codes(num, seed, kind)
    names = [f"{(7 * row) % 41:02d}.png" for row in range(num)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_ROWS", rows)
        patch.setattr(duplicates, "_COLUMNS", columns)
        patch.setattr(duplicates, "_MOST_DOUBTFUL", doubtful)
        found = find_groups(codes, threshold=threshold, names=names)
    _check(found, codes, threshold, names, is_exact=kind == "tied")


@pytest.mark.parametrize("doubtful", [0, 2**14])
@pytest.mark.parametrize(
    ("kind", "threshold"), [("tight", 1e-6), ("outlier", 0.03), ("tiny", 1e-51)]
)
def test_what_rounding_hides_is_found(monkeypatch, kind, threshold, doubtful):
    monkeypatch.setattr(duplicates, "_MOST_DOUBTFUL", doubtful)
    codes = _codes(300, 0, kind)
    names = [str(row) for row in range(300)]
    found = find_groups(codes, threshold=threshold)
    assert len(found) > 3
    _check(found, codes, threshold, names)


def _check(found, codes, threshold, names, *, is_exact=False):
    distance, wanted = _by_loop(codes, threshold, names)
    assert found == sorted(found, key=lambda group: (-len(group), group.names[0]))
    by_members = {tuple(sorted(group.rows)): group for group in found}
    assert len(found) == len(wanted)
    for members, sums, pairs in wanted:
        group = by_members[tuple(members)]
        first = group.rows[0]
        assert group.num_pairs == pairs
        assert sums[members.index(first)] <= sums.min() * (1 + 1e-12)
        if is_exact:
            assert first == members[int(sums.argmin())]
        assert group.names == tuple(names[row] for row in group.rows)
        assert group.distances == pytest.approx(distance[first, group.rows], rel=1e-12, abs=0)
        order = list(zip(group.distances, group.rows, strict=True))[1:]
        assert order == sorted(order) and group.distances[0] == 0


def test_equal_codes_are_one_group_with_all_pairs():
    codes = np.ones((3000, 2), np.float32)
    codes[:10] = 5
    large, small = find_groups(codes, threshold=0)
    assert (len(large), large.rows[:3], large.num_pairs) == (2990, (10, 11, 12), 2990 * 2989 // 2)
    assert (len(small), small.num_pairs, set(small.distances)) == (10, 45, {0.0})


def test_chains_are_one_group_even_if_their_ends_are_far_apart():
    order = np.random.default_rng(0).permutation(3000)
    [chain] = find_groups(order[:, None].astype(np.float32), threshold=1)
    assert len(chain) == 3000 and chain.num_pairs == 2999
    assert order[chain.rows[0]] in (1499, 1500)
    assert chain.distances[-1] == 1500**2


def test_groups_are_the_same_for_any_tiles(monkeypatch):
    codes = _codes(500, 0)
    wanted = find_groups(codes, threshold=0.05)
    monkeypatch.setattr(duplicates, "_ROWS", 70)
    monkeypatch.setattr(duplicates, "_COLUMNS", 30)
    assert find_groups(codes, threshold=0.05) == wanted and len(wanted) > 10


def test_the_codes_stay_as_they_are():
    codes = _codes(50, 0, "repeated")
    before = codes.copy()
    find_groups(codes, threshold=1)
    assert np.array_equal(codes, before)


def test_groups_of_equal_size_are_in_the_order_of_their_first_names():
    codes = np.array([[0.0], [9.0], [0.0], [9.0]])
    assert find_groups(codes, threshold=0, names=["é", "b", "c", "d"]) == [
        Group(("b", "d"), (1, 3), (0.0, 0.0), 1),
        Group(("é", "c"), (0, 2), (0.0, 0.0), 1),
    ]


@pytest.mark.parametrize("threshold", [-1.0, np.nan, np.inf])
def test_wrong_thresholds_are_refused(threshold):
    with pytest.raises(ValueError, match="threshold is"):
        find_groups(_codes(3, 0), threshold=threshold)


def test_wrong_codes_are_refused():
    with pytest.raises(ValueError, match="2 names for 3 codes"):
        find_groups(_codes(3, 0), threshold=1, names=["a", "b"])
    with pytest.raises(DataError, match="the code of b has entries"):
        find_groups(np.array([[0.0], [np.nan]]), threshold=1, names=["a", "b"])
