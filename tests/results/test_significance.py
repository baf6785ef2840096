"""Tests between methods, held to scipy and to the formula of Nadeau and Bengio."""

import numpy as np
import pytest
from scipy import stats

from orbitset.results.significance import over_seeds, paired_tests, planned_tests, score_row
from orbitset.results.stopping import Scores

SPLITS = 10


def made_up(seed, mean=0.5, *, seeds=3, splits=SPLITS, repeated="splits"):
    scores = mean + 0.05 * np.random.default_rng(seed).standard_normal((seeds, splits))
    return Scores(scores, np.full((seeds, splits), 3.0), repeated)


@pytest.fixture
def scores():
    return {"OJ": made_up(0, 0.7), "OE": made_up(1, 0.6), "AE": made_up(2, 0.69)}


def corrected_p(a, b, share):
    """2003: the variance of the mean is (1/J + tested/trained) times that of the differences."""
    difference = a - b
    error = np.sqrt((1 / len(difference) + share) * difference.var(ddof=1))
    return 2 * stats.t.sf(abs(difference.mean()) / error, len(difference) - 1)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_table_shows_the_test_that_respects_overlapping_splits(scores, share):
    tests = paired_tests("OJ", scores, tested_share=share)
    assert len(tests) == 2 * 3
    for label in ("OE", "AE"):
        row = score_row(label, "accuracy", scores[label], tests)
        p = corrected_p(scores["OJ"].by_split, scores[label].by_split, share)
        assert row.p_corrected == pytest.approx(min(1, 2 * p))
        assert (row.test, row.correction) == ("corrected-t", "bonferroni x 2")
        by_t = stats.ttest_rel(scores["OJ"].by_split, scores[label].by_split).pvalue
        assert row.p_corrected > by_t, "which takes splits for independent"
    ours = score_row("OJ", "accuracy", scores["OJ"], tests)
    assert ours.p_corrected is ours.test is ours.correction is None


def test_over_seeds_the_paired_t_test_stands_for_itself():
    seeds = {
        label: made_up(at, mean, seeds=4, splits=1, repeated="seeds")
        for at, (label, mean) in enumerate((("OJ", 0.7), ("OT", 0.6)))
    }
    tests = paired_tests("OJ", seeds, correction="none")
    assert {test["test"] for test in tests} == {"paired-t", "wilcoxon"}
    row = score_row("OT", "auc", seeds["OT"], tests)
    expected = stats.ttest_rel(seeds["OJ"].by_seed, seeds["OT"].by_seed)
    assert row.p_corrected == pytest.approx(expected.pvalue)
    assert (row.test, row.correction, row.n) == ("paired-t", "none", 4)


def test_comparisons_made_elsewhere_count_too(scores):
    for correction, times in (("bonferroni", 5), ("none", 1)):
        tests = paired_tests("OJ", scores, correction=correction, comparisons=5)
        for test in tests:
            assert test["p_corrected"] == pytest.approx(min(1, times * test["p"]))
            assert test["p_bonferroni"] == pytest.approx(min(1, 5 * test["p"]))
    holm = paired_tests("OJ", scores, correction="holm", comparisons=5)
    smallest = min((t for t in holm if t["test"] == "paired-t"), key=lambda test: test["p"])
    assert smallest["p_corrected"] == smallest["p_holm"] == pytest.approx(5 * smallest["p"])
    assert smallest["correction"] == "holm x 5"


def test_a_row_has_the_spread_over_repeats_and_the_interval_over_seeds(scores):
    row = score_row("OE", "accuracy", scores["OE"])
    assert row.mean == pytest.approx(scores["OE"].score_SR.mean())
    assert row.sd == pytest.approx(scores["OE"].score_SR.mean(0).std(ddof=1))
    assert (row.n, row.repeated, row.seeds, row.epoch) == (SPLITS, "splits", 3, 3)
    by_seed = scores["OE"].score_SR.mean(1)
    expected = stats.t.interval(0.95, 2, by_seed.mean(), stats.sem(by_seed))
    assert (row.seeds_low, row.seeds_high) == pytest.approx(expected)
    once = score_row("OE", "accuracy", made_up(3, seeds=1, splits=1))
    assert once.sd is once.seeds_low is once.seeds_high is None and once.n == 1


def test_differences_over_seeds_are_of_the_pairs_that_there_are(scores):
    (found,) = over_seeds(scores, [("OJ", "AE"), ("OJ", "EX"), ("EX", "OJ")])
    difference = scores["OJ"].by_seed - scores["AE"].by_seed
    assert (found["method"], found["against"], found["repeats"]) == ("OJ", "AE", 3)
    expected = stats.t.interval(0.95, 2, difference.mean(), stats.sem(difference))
    assert (found["low"], found["high"]) == pytest.approx(expected)
    once = {label: made_up(0, seeds=1) for label in ("OJ", "AE")}
    assert over_seeds(once, [("OJ", "AE")]) == []


def test_oj_is_tested_against_the_papers_methods_and_losses_from_outside():
    labels = ("AE", "OE", "OJ", "my_losses:own", "ST")
    tests, reason = planned_tests({label: made_up(at) for at, label in enumerate(labels)})
    assert reason is None and {test["method"] for test in tests} == {"OJ"}
    assert {test["against"] for test in tests} == {"OE", "my_losses:own"}
    assert {test["correction"] for test in tests} == {"bonferroni x 4"}  # EX and OT are the others


def test_without_oj_the_first_method_is_tested_against_every_other():
    labels = ("OT", "AE", "OE")
    tests, reason = planned_tests({label: made_up(at) for at, label in enumerate(labels)})
    assert reason is None and {test["method"] for test in tests} == {"OT"}
    assert {test["against"] for test in tests} == {"AE", "OE"}
    assert {test["correction"] for test in tests} == {"bonferroni x 2"}


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ({"OE": made_up(0)}, "nothing was trained that OE is tested against"),
        ({"OJ": made_up(0), "ST": made_up(1)}, "nothing was trained that OJ is tested against"),
        ({"OJ": made_up(0, splits=1), "OE": made_up(1, splits=1)}, "need at least two; OJ has 1"),
        ({"OJ": made_up(0), "OE": made_up(1, splits=5)}, "scored on the 10 splits of OJ"),
    ],
)
def test_where_there_is_no_test_it_says_why(scores, reason):
    tests, text = planned_tests(scores)
    assert tests == [] and reason in text
