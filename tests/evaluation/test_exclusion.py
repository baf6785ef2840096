import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orbitset.evaluation.exclusion import Near, Same, check_factors

VALUES = st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=8)
RULES = [
    (Same("a"), lambda x, y: x[0] == y[0]),
    (~Same("a"), lambda x, y: x[0] != y[0]),
    (Same("a") & Same("b"), lambda x, y: x[0] == y[0] and x[1] == y[1]),
    (Same("a") | Same("b"), lambda x, y: x[0] == y[0] or x[1] == y[1]),
    (Same("a") & (Same("b") | Same("c")), lambda x, y: x[0] == y[0] and (x[1] == y[1] or x[2] == y[2])),
    (~(Same("a") | ~Same("b")), lambda x, y: not (x[0] == y[0] or x[1] != y[1])),
    (~~Same("c"), lambda x, y: x[2] == y[2]),
]  # fmt: skip


def _factors(rows):
    return {name: torch.tensor([row[i] for row in rows]) for i, name in enumerate("abc")}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 5))
def test_images_exactly_so_far_apart_are_not_near(frames, within):
    factors = {"frame": torch.tensor(frames)}
    expected = [[abs(one - other) < within for other in frames] for one in frames]
    assert Near("frame", within).holds(factors, factors).tolist() == expected


@given(st.lists(st.integers(0, 359), min_size=1, max_size=8), st.integers(1, 400))
def test_on_a_circle_the_shorter_way_counts(angles, within):
    factors = {"angle": torch.tensor(angles), "turn": torch.full((len(angles),), 360)}
    apart = [[min(abs(a - b), 360 - abs(a - b)) for b in angles] for a in angles]
    expected = [[distance < within for distance in row] for row in apart]
    assert Near("angle", within, "turn").holds(factors, factors).tolist() == expected


def test_rounding_brings_no_image_nearer():
    factors = {"angle": torch.tensor([0.5, 0.7, 0.1 + 0.2, 0.1], dtype=torch.float64)}
    assert Near("angle", 0.2).holds(factors, factors).sum() == 4


@pytest.mark.parametrize(("rule", "by_hand"), RULES, ids=[repr(rule) for rule, _ in RULES])
@given(queries=VALUES, gallery=VALUES)
def test_rules_equal_a_loop(rule, by_hand, queries, gallery):
    found = rule.holds(_factors(queries), _factors(gallery))
    assert found.shape == (len(queries), len(gallery))
    for (i, x), (j, y) in itertools.product(enumerate(queries), enumerate(gallery)):
        assert bool(found[i, j]) == by_hand(x, y)


def test_the_papers_rule_removes_32_images_with_the_query():
    """13 views and 20 lights of every person in one session."""
    rows = list(itertools.product(range(3), range(13), range(20)))
    columns = torch.tensor(rows).T
    factors = dict(zip(("person", "view", "light"), columns, strict=True))
    rule = Same("person") & (Same("view") | Same("light"))
    assert (rule.holds(factors, factors).sum(1) == 32).all()


def test_rules_name_their_factors_and_can_be_read():
    rule = Same("person") & ~Same("view")
    assert rule.names == {"person", "view"}
    assert repr(rule) == "(Same('person') & ~Same('view'))"
    assert Near("frame", 8).names == {"frame"}
    assert repr(Near("frame", 8)) == "Near('frame', 8)"
    assert Near("frame", 8, "all").names == {"frame", "all"}


def test_rules_are_not_put_together_with_words():
    with pytest.raises(TypeError, match="combine rules with &"):
        Same("person") and Same("view")


def test_missing_factors_are_named():
    factors = {"view": torch.tensor([1, 2])}
    with pytest.raises(ValueError, match="the rule reads person, but the factors are view"):
        check_factors(Same("person") & Same("view"), factors, 2)
    with pytest.raises(ValueError, match="one number per image"):
        check_factors(Same("view"), factors, 3)
    check_factors(~Same("view"), factors, 2)
