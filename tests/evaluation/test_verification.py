import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_python
from sklearn.metrics import roc_auc_score, roc_curve

from orbitset.evaluation import verification
from orbitset.evaluation.exclusion import Same
from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.verification import _Ranks, verify

RULES = {
    "none": None,
    "the paper's": Same("person") & (Same("view") | Same("light")),
    "one view": Same("view"),
    "not one light": ~Same("light"),
}
ONE_LONG_CODE = torch.tensor([[1], [1e200], [2]], dtype=torch.float64)
FARS = (0.0, 1e-3, 0.1, 0.3, 0.5, 0.99)


def _codes(num, seed, kind="tied", classes=3, dim=3):
    """Whole numbers with many ties, the same with copies, or reals with copies."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-2, 3, (num, dim), generator=generator).double()
    if kind == "real":
        codes = torch.randn(num, dim, dtype=torch.float64, generator=generator)
    if kind != "tied":
        codes = codes[torch.randint(0, max(1, num // 2), (num,), generator=generator)]
    labels = torch.randint(0, classes, (num,), generator=generator)
    labels[: min(3, num)] = torch.tensor([0, 0, 1])[:num]
    factors = {
        name: torch.randint(0, size, (num,), generator=generator)
        for name, size in (("view", 3), ("light", 2))
    }
    return Labelled(codes, labels), {**factors, "person": labels}


def _by_loop(codes, factors=None, rule=None):
    """Distances of same and of different pairs, and how many pairs are left out."""
    same, different, left_out = [], [], 0
    for i, j in combinations(range(len(codes)), 2):
        one, other = ({n: ids[k : k + 1] for n, ids in (factors or {}).items()} for k in (i, j))
        if rule is not None and rule.holds(one, other).item():
            left_out += 1
            continue
        distance = float((codes.codes[i].double() - codes.codes[j].double()).square().sum())
        (same if codes.labels[i] == codes.labels[j] else different).append(distance)
    return np.array(same), np.array(different), left_out


def _auc(same, different):
    """From the ranks alone: one label could hardly have such distances."""
    ranks = _Ranks(same.double().repeat(2))
    return int(ranks.below(different.double())) / (2 * len(same) * len(different))


def _sklearn_auc(same, different):
    is_same = np.repeat([1, 0], [len(same), len(different)])
    return roc_auc_score(is_same, -np.concatenate((same, different)))


def _eer(same, different):
    """From scikit-learn's curve, where straight lines between its points cross FAR = FRR."""
    is_same = np.repeat([1, 0], [len(same), len(different)])
    scores = -np.concatenate((same, different))
    far, tar, _ = roc_curve(is_same, scores, drop_intermediate=False)
    gap = 1 - tar - far
    after = int((gap <= 0).argmax())
    part = gap[after - 1] / (gap[after - 1] - gap[after])
    return far[after - 1] + part * (far[after] - far[after - 1])


@settings(deadline=None, max_examples=150)
@given(
    same=st.lists(st.integers(-4, 4), min_size=1, max_size=30),
    different=st.lists(st.integers(-4, 4), min_size=1, max_size=30),
    unit=st.sampled_from([1.0, 5e-324, 1e300, 0.1]),
)
def test_auc_of_distances_is_that_of_scikit_learn(same, different, unit):
    one, other = (torch.tensor(d, dtype=torch.float64) * unit for d in (same, different))
    doubled = sum(int(s < d) + int(s <= d) for s in same for d in different)
    assert _auc(one, other) == doubled / (2 * len(same) * len(different))
    assert _auc(one, other) == pytest.approx(_sklearn_auc(one, other), abs=1e-12)


def test_neighbouring_numbers_are_told_apart():
    low = torch.tensor([1.0], dtype=torch.float64)
    high = torch.nextafter(low, low + 1)
    assert _auc(low, high) == 1 and _auc(high, low) == 0 and _auc(low, low) == 0.5
    assert _auc(torch.cat((low, high)), torch.cat((high, low))) == 0.5


def _check_against(found, same, different):
    """All that was found against sorted lists of distances."""
    assert (found.num_same, found.num_different) == (len(same), len(different))
    doubled = sum((s < different).sum() + (s <= different).sum() for s in same)
    assert found.doubled_wins == doubled
    assert found.auc == pytest.approx(_sklearn_auc(same, different), abs=1e-12)
    assert found.eer == pytest.approx(_eer(same, different), abs=1e-12)
    every = np.unique(np.concatenate((same, different)))
    for far in FARS:
        allowed = [t for t in every if (different <= t).sum() / len(different) <= far]
        threshold = max(allowed, default=-np.inf)
        assert found.at(far).threshold == threshold
        assert found.at(far).tar == (same <= threshold).sum() / len(same)


@settings(deadline=None, max_examples=60)
@given(
    num=st.integers(3, 16), seed=st.integers(0, 99), kind=st.sampled_from(["tied", "copied"]),
    rule=st.sampled_from(list(RULES)), classes=st.sampled_from([2, 3, 9]),
    budget=st.sampled_from([900, 3000, 2**29]),
)  # fmt: skip
def test_it_equals_a_loop_over_pairs(num, seed, kind, rule, classes, budget):
    codes, factors = _codes(num, seed, kind, classes)
    same, different, left_out = _by_loop(codes, factors, RULES[rule])
    asked = {"factors": factors, "exclude": RULES[rule], "fars": FARS, "budget_bytes": budget}
    if len(same) == 0 or len(different) == 0:
        with pytest.raises(ValueError, match="no pair of"):
            verify(codes, **asked)
        return
    found = verify(codes, **asked)
    assert found.num_excluded == left_out
    _check_against(found, same, different)


@settings(deadline=None, max_examples=25)
@given(
    num=st.integers(4, 30), seed=st.integers(0, 99), kind=st.sampled_from(["tied", "copied", "real"])
)  # fmt: skip
def test_memory_and_order_change_nothing(num, seed, kind):
    codes, factors = _codes(num, seed, kind)
    rule = RULES["one view"] if seed % 2 else None
    order = torch.randperm(num, generator=torch.Generator().manual_seed(seed))
    turned = Labelled(codes.codes[order], codes.labels[order])
    factors_turned = {name: ids[order] for name, ids in factors.items()}
    try:
        found = verify(codes, factors=factors, exclude=rule)
    except ValueError:
        return
    small = verify(codes, factors=factors, exclude=rule, budget_bytes=3000)
    other = verify(turned, factors=factors_turned, exclude=rule)
    for one in (small, other):
        assert one.doubled_wins == found.doubled_wins
        assert (one.num_same, one.num_different) == (found.num_same, found.num_different)
        assert (one.num_excluded, one.eer) == (found.num_excluded, found.eer)
        for a, b in zip(one.points, found.points, strict=True):
            assert (a.far, a.tar) == (b.far, b.tar)
            assert a.threshold == pytest.approx(b.threshold, rel=1e-12)


@pytest.mark.parametrize("far", [0.29, 0.57, np.nextafter(0.34, 0), np.nextafter(0.67, 0)])
def test_a_rate_is_reached_though_its_product_with_the_pairs_is_rounded(far):
    """0.29 * 100 is less than 29 in floats, and 29 / 100 is still not more than 0.29."""
    codes = torch.cat((torch.arange(10.0), torch.arange(10.0) * 100 + 50)).double()[:, None]
    labels = torch.arange(20) // 10
    _, different, _ = _by_loop(Labelled(codes, labels))
    assert len(np.unique(different)) == len(different) == 100
    most = max(count for count in range(101) if count / 100 <= far)
    [point] = verify(Labelled(codes, labels), fars=[far]).points
    assert point.far == most / 100
    assert (different <= point.threshold).sum() == most


@pytest.mark.parametrize("mostly_same", [False, True])
def test_either_kind_can_be_the_rarer(mostly_same):
    codes, _ = _codes(40, 3, "copied", classes=20)
    if mostly_same:
        codes = Labelled(
            codes.codes, torch.zeros(40, dtype=torch.int64).index_fill(0, torch.tensor([7]), 1)
        )
    same, different, _ = _by_loop(codes)
    assert (len(same) > len(different)) == mostly_same
    for budget in (3000, 2**29):
        _check_against(verify(codes, fars=FARS, budget_bytes=budget), same, different)


def test_codes_in_float32_are_compared_in_float64():
    generator = torch.Generator().manual_seed(0)
    codes = 1e4 + torch.randn(120, 16, generator=generator)
    labels = torch.arange(120) % 5
    same, different, _ = _by_loop(Labelled(codes, labels))
    for values in (codes, codes.double()):
        found = verify(Labelled(values, labels), fars=FARS)
        assert found.auc == pytest.approx(_sklearn_auc(same, different), abs=1e-6)
        assert found.at(0.5).threshold == pytest.approx(np.quantile(different, 0.5), rel=0.05)


def test_one_code_far_away_does_not_spoil_the_others():
    codes, _ = _codes(60, 1, "real")
    far = Labelled(
        torch.cat((torch.full((1, 3), 1e9), codes.codes)),
        torch.cat((torch.tensor([0]), codes.labels)),
    )
    same, different, _ = _by_loop(far)
    assert verify(far, fars=()).auc == pytest.approx(_sklearn_auc(same, different), abs=1e-6)


def test_cosine_distances_are_one_less_the_cosine():
    codes = Labelled(torch.randn(40, 4), torch.arange(40) % 3)
    stretched = Labelled(codes.codes * torch.arange(1, 41)[:, None], codes.labels)
    unit = torch.nn.functional.normalize(stretched.codes.double())
    same, different, _ = _by_loop(Labelled(unit, codes.labels))
    found = verify(stretched, metric="cosine", fars=[0.2])
    assert found.auc == pytest.approx(_sklearn_auc(same, different), abs=1e-6)
    one_less = 1 - (unit @ unit.T).flatten()
    assert (one_less - found.at(0.2).threshold).abs().min() < 1e-12


def test_copies_with_other_labels_tie_to_the_last_bit():
    generator = torch.Generator().manual_seed(4)
    few = torch.randn(5, 64, dtype=torch.float64, generator=generator)
    codes = Labelled(few.repeat(8, 1), torch.arange(40) // 20)
    for budget in (4000, 30_000, 2**29):
        found = verify(codes, fars=[0.0], budget_bytes=budget)
        same, different, _ = _by_loop(codes)
        doubled = sum((s < different).sum() + (s <= different).sum() for s in same)
        assert found.doubled_wins == doubled
        assert (found.at(0.0).tar, found.at(0.0).threshold) == (0.0, -torch.inf)


def test_rates_that_were_not_computed_cannot_be_read():
    codes, _ = _codes(10, 2)
    with pytest.raises(ValueError, match="FAR 0.2 is not among 0.1; pass it"):
        verify(codes, fars=[0.1]).at(0.2)
    with pytest.raises(ValueError, match="not among none"):
        verify(codes, fars=()).at(0.1)
    assert np.isnan(verify(codes, fars=()).eer)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"fars": [1.0]}, "FAR 1.0"),
        ({"fars": [-0.1]}, "FAR -0.1"),
        ({"budget_bytes": 0}, "budget_bytes is 0"),
        ({"exclude": Same("session")}, "reads session"),
        ({"exclude": Same("person")}, "no pair of same labels that Same.'person'. leaves"),
        ({"exclude": ~Same("person")}, "no pair of different labels"),
        ({"metric": "taxi"}, "metric is 'taxi'"),
    ],
)
def test_wrong_wishes_are_refused(asked, word):
    codes, factors = _codes(12, 2)
    with pytest.raises(ValueError, match=word):
        verify(codes, **{"factors": factors, **asked})


@pytest.mark.parametrize(
    ("codes", "word"),
    [
        (Labelled(torch.ones(1, 2), torch.tensor([0])), "1 images; give at least two"),
        (Labelled(torch.ones(3, 2), torch.tensor([0, 1, 2])), "no pair of same labels; give several"),
        (Labelled(torch.ones(3, 2), torch.tensor([0, 0, 0])), "no pair of different labels; give"),
        (Labelled(torch.ones(3, 2).double() * 1e200, torch.tensor([0, 0, 1])), "scale the codes down"),
        (Labelled(ONE_LONG_CODE, torch.tensor([0, 0, 1])), "scale the codes down"),
    ],
)  # fmt: skip
def test_codes_without_both_kinds_of_pairs_are_refused(codes, word):
    with pytest.raises(ValueError, match=word):
        verify(codes)


def test_values_are_looked_up_in_pieces_by_several_threads():
    generator = torch.Generator().manual_seed(0)
    same, different = (
        torch.randint(0, 500, (num,), generator=generator) for num in (70_000, 80_000)
    )
    assert _auc(same, different) == pytest.approx(_sklearn_auc(same, different), abs=1e-12)
    spread = torch.randn(70_000, generator=generator).exp(), different**4
    assert _auc(*spread) == pytest.approx(_sklearn_auc(*spread), abs=1e-12)


def test_gradients_are_neither_needed_nor_in_the_way():
    codes, _ = _codes(30, 2, "real")
    wanted = verify(codes)
    assert verify(Labelled(codes.codes.clone().requires_grad_(), codes.labels)) == wanted
    with torch.inference_mode():
        assert verify(Labelled(codes.codes.clone(), codes.labels)) == wanted


def test_operating_points_take_four_passes_over_the_pairs(monkeypatch):
    shifts, count = [], verification._digit_counts
    monkeypatch.setattr(
        verification, "_digit_counts", lambda *args: shifts.append(args[1]) or count(*args)
    )
    verify(_codes(12, 2)[0])
    assert shifts == [48, 32, 16, 0]


def test_codes_are_left_as_they_are():
    codes, _ = _codes(10, 2)
    before = codes.codes.clone()
    verify(codes)
    assert torch.equal(codes.codes, before)


MEASURE = """
import resource, torch
from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.verification import verify
def run(num, fars):
    codes = Labelled(torch.randn(num, 8), torch.arange(num) % {classes})
    verify(codes, fars=fars, budget_bytes=2**23)
run(300, (0.1,))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(3000, {fars})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
@pytest.mark.parametrize(("classes", "fars"), [(100, (0.1,)), (2, ())])
def test_memory_stays_within_what_was_given(classes, fars):
    """4.5 million pairs would be 34 MiB; 8 MiB are allowed, and as much for copies and the allocator."""
    code = MEASURE.format(classes=classes, fars=fars)
    ran = run_python(code)
    assert int(ran.stdout) < 16 * 1024, ran.stderr
