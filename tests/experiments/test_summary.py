"""Summaries of made-up metrics, held to loops and to scipy."""

import json

import numpy as np
import pytest
from scipy import stats

from orbitset.config import with_settings
from orbitset.experiments import affine_digits
from orbitset.experiments.study import Line, Study
from orbitset.experiments.summary import stopped_scores, summarise
from orbitset.runs import Run

METHODS = ("OJ", "OT", "OE", "EX", "OT-STN")
SPLITS, SEEDS, EVALUATIONS = 10, (0, 1, 2), 4


def _study():
    lines = [
        Line(
            label=method,
            config=with_settings(affine_digits(method), ["train.epochs=1"]),
            paper={"accuracy": 0.66} if method == "OJ" else {},
        )
        for method in METHODS
    ]
    return Study(name="made-up", lines=tuple(lines), seeds=SEEDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study's folder with random scores; before training the score is best, and must not be chosen."""
    run, study = Run(tmp_path_factory.mktemp("summary") / "run"), _study()
    run.create(study.describe())
    rng = np.random.default_rng(0)
    scores = {}
    for line in study.lines:
        base = 0.3 + 0.05 * METHODS.index(line.label)
        for seed in SEEDS:
            each = Run(run / line.path(seed))
            each.create({"name": "made-up", "method": line.label})
            sides = base + 0.1 * rng.random((2, 2, EVALUATIONS, SPLITS))
            sides[:, :, 0] = 0.99
            scores[line.label, seed] = sides
            for at in range(EVALUATIONS):
                record = {"step": 10 * at, "epoch": 0.1 * at, "images": 100 * at}
                for number, name in enumerate(("accuracy", "accuracy_cosine")):
                    va, te = sides[number, :, at].tolist()
                    record[name] = {"mean": 0.5, "sd": 0.1, "va": va, "te": te}
                each.append("metrics.jsonl", record)
                each.append("timing.jsonl", {"step": 10 * at, "elapsed_s": 2.0})
            rows = [{"method": "pixels", "metric": "accuracy", "mean": 0.1, "sd": 0.01, "n": 5,
                     "repeated": "draws", "seeds": 1, "paper": None, "p_corrected": None}]  # fmt: skip
            each.write_json("results.json", {"rows": rows})
            for name in ("arrays.npz", "environment.json"):
                (each / name).write_text("{}")
    return run, study, scores


def _by_hand(scores, label, number=0):
    """Early-stopped scores (seeds, splits) by a loop."""
    found = np.zeros((len(SEEDS), SPLITS))
    for seed in SEEDS:
        va, te = scores[label, seed][number]
        for split in range(SPLITS):
            best = max(range(1, EVALUATIONS), key=lambda at: (va[at, split], -at))
            found[seed, split] = te[best, split]
    return found


def test_rows_are_means_and_deviations_over_splits_with_seeds_averaged(made):
    run, study, scores = made
    rows = {(r["method"], r["metric"]): r for r in summarise(run, study)["rows"]}
    for label in METHODS:
        for number, metric in enumerate(("accuracy", "accuracy_cosine")):
            row, expected = rows[label, metric], _by_hand(scores, label, number).mean(0)
            assert row["mean"] == pytest.approx(expected.mean())
            assert row["sd"] == pytest.approx(expected.std(ddof=1))
            assert (row["n"], row["repeated"], row["seeds"]) == (SPLITS, "splits", 3)
    assert rows["OJ", "accuracy"]["paper"] == 0.66 and rows["OE", "accuracy"]["paper"] is None
    assert rows["pixels", "accuracy"]["repeated"] == "draws"


def test_the_untrained_encoder_is_no_stopping_time(made):
    run, _, scores = made
    found = stopped_scores([Run(run / f"OJ/seed-{seed}") for seed in SEEDS], "accuracy")
    np.testing.assert_allclose(found.score_SR, _by_hand(scores, "OJ"))
    assert found.epoch_SR.min() > 0


def test_p_is_that_of_a_paired_t_test_times_three_for_the_papers_three_comparisons(made):
    run, study, scores = made
    results = summarise(run, study)
    rows = {r["method"]: r for r in results["rows"] if r["metric"] == "accuracy"}
    ours = _by_hand(scores, "OJ").mean(0)
    for label in ("OT", "OE", "EX"):
        p = stats.ttest_rel(ours, _by_hand(scores, label).mean(0)).pvalue
        assert rows[label]["p_corrected"] == pytest.approx(min(1, 3 * p))
    assert rows["OJ"]["p_corrected"] is None and rows["OT-STN"]["p_corrected"] is None
    tests = {(t["test"], t["against"]) for t in results["tests"] if t["metric"] == "accuracy"}
    assert tests == {
        (test, label)
        for test in ("paired-t", "corrected-t", "wilcoxon")
        for label in ("OT", "OE", "EX")
    }


def test_differences_over_seeds_pair_trainings_of_one_seed(made):
    run, study, scores = made
    found = [
        pair
        for pair in summarise(run, study)["over_seeds"]
        if pair["metric"] == "accuracy" and pair["method"] == "OT-STN"
    ]
    difference = _by_hand(scores, "OT-STN").mean(1) - _by_hand(scores, "OT").mean(1)
    low, high = stats.t.interval(0.95, 2, difference.mean(), stats.sem(difference))
    assert [(p["against"], p["repeats"]) for p in found] == [("OT", 3)]
    assert (found[0]["low"], found[0]["high"]) == pytest.approx((low, high))


def test_time_is_summed_over_seeds(made):
    run, study, _ = made
    assert summarise(run, study)["seconds"]["OJ"] == 2.0 * EVALUATIONS * len(SEEDS)


def test_results_are_plain_json(made):
    run, study, _ = made
    json.dumps(summarise(run, study), allow_nan=False)
