"""Held to scipy and statsmodels on the same numbers, and to formulas written out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from orbitset.errors import ConfigError
from orbitset.evaluation.statistics import (
    adjusted_p,
    compare_with,
    mean_interval,
    paired_t_test,
    wilcoxon_test,
)

_scores = st.lists(st.floats(0, 1, width=32), min_size=3, max_size=12)


def _pair(seed, repeats=10):
    generator = np.random.default_rng(seed)
    base = generator.normal(0.5, 0.05, repeats)
    return base + generator.normal(0.02, 0.02, repeats), base


@pytest.mark.parametrize("seed", range(5))
def test_paired_t_is_scipys(seed):
    a, b = _pair(seed)
    ours, theirs = paired_t_test(a, b), stats.ttest_rel(a, b)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-10)
    assert ours.statistic == pytest.approx(theirs.statistic, rel=1e-10)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval()), rel=1e-9)
    assert ours.repeats == 10 and ours.difference == pytest.approx((a - b).mean())


@pytest.mark.parametrize("seed", range(5))
def test_interval_is_statsmodels(seed):
    values, _ = _pair(seed)
    ours = mean_interval(values)
    assert (ours.low, ours.high) == pytest.approx(DescrStatsW(values).tconfint_mean(0.05))


@pytest.mark.parametrize("seed", range(5))
def test_wilcoxon_is_scipys(seed):
    a, b = _pair(seed)
    b[0] = a[0]  # a difference of zero is left out
    assert wilcoxon_test(a, b).p == pytest.approx(stats.wilcoxon(a, b).pvalue)


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_corrections_by_their_definitions(p):
    """Holm: in rising order the i-th of n is multiplied by n - i, and is no smaller than those before it."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    expected, least = {}, 0.0
    for rank, i in enumerate(order):
        least = expected[i] = max(least, min(1.0, (len(p) - rank) * p[i]))
    assert adjusted_p(p, "holm") == [expected[i] for i in range(len(p))]
    assert adjusted_p(p, "bonferroni") == [min(1.0, len(p) * value) for value in p]
    assert adjusted_p(p, "none") == p


@pytest.mark.parametrize("p", [[0.2], [0.01, 0.04, 0.03, 0.04], [1e-9, 0.5, 0.9, 0.02, 0.0]])
def test_corrections_are_statsmodels(p):
    for correction in ("holm", "bonferroni"):
        expected = multipletests(p, method=correction)[1]
        assert adjusted_p(p, correction) == pytest.approx(list(expected), abs=1e-12)


def test_corrected_t_by_its_formula():
    """Ten splits into halves: the variance of the mean is (1/10 + 1) times that of the differences."""
    a, b = _pair(3)
    difference = a - b
    expected = difference.mean() / math.sqrt((1 / 10 + 1) * difference.var(ddof=1))
    ours = paired_t_test(a, b, test_share=1)
    assert ours.statistic == pytest.approx(expected)
    assert ours.p == pytest.approx(2 * stats.t.sf(abs(expected), 9))
    plain = paired_t_test(a, b, test_share=0)
    assert plain.p == paired_t_test(a, b).p and plain.test == ours.test == "corrected-t"


@given(a=_scores)
def test_a_method_does_not_differ_from_itself(a):
    for found in (
        paired_t_test(a, a), paired_t_test(a, a, test_share=1), wilcoxon_test(a, a),
    ):  # fmt: skip
        assert found.p == 1 and found.difference == 0


def test_equal_differences_leave_no_doubt():
    found = paired_t_test([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
    assert found.p == 0 and found.statistic == math.inf and found.low == found.high == 0.5


def test_one_method_against_all_others():
    generator = np.random.default_rng(1)
    scores = {name: generator.normal(mean, 0.01, 10).tolist() for name, mean in
              (("OJ", 0.66), ("OE", 0.49), ("EX", 0.655))}  # fmt: skip
    results = compare_with("OJ", scores)
    assert list(results) == ["OE", "EX"]
    for other, result in results.items():
        assert result.test == "paired-t"
        assert result.p == pytest.approx(stats.ttest_rel(scores["OJ"], scores[other]).pvalue)
    corrected = compare_with("OJ", scores, test="corrected-t", test_share=0.5)["OE"]
    assert corrected == paired_t_test(scores["OJ"], scores["OE"], test_share=0.5)
    ranks = compare_with("OJ", scores, test="wilcoxon")["EX"]
    assert ranks == wilcoxon_test(scores["OJ"], scores["EX"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_t_test([0.5], [0.4]), "at least two"),
        (lambda: paired_t_test([0.5, 0.6], [0.4, 0.5, 0.6]), "the same repeats"),
        (lambda: paired_t_test([0.5, math.nan], [0.4, 0.5]), "NaN"),
        (lambda: mean_interval([[0.5, 0.6]]), "a list of at least two"),
        (lambda: paired_t_test([1, 2], [3, 4], test_share=-1), "test_share is -1"),
        (lambda: adjusted_p([0.5, 1.5]), "between 0 and 1"),
        (lambda: compare_with("OJ", {"OJ": [1, 2]}), "only method"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_words(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unknown_names_are_refused_with_a_near_one():
    with pytest.raises(ConfigError, match="wilcoxon"):
        compare_with("OJ", {"OJ": [1, 2], "OE": [3, 4]}, test="wilcoxson")
