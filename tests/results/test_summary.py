"""Summaries of made-up metrics, held to loops and to scipy."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from orbitset.config import to_dict, with_settings
from orbitset.errors import RunError
from orbitset.protocols import OneShot
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.study import Line, Study
from orbitset.results.curves import mean_curve
from orbitset.results.recorded import read_recorded, read_training
from orbitset.results.stopping import stopped_scores
from orbitset.results.summary import summarise
from orbitset.run_folder import Run
from orbitset.training import TrainConfig

METHODS = ("OJ", "OT", "OE", "EX", "OT-STN")
SPLITS, SEEDS, EVALUATIONS = 10, (0, 1, 2), 4


def _study():
    lines = [
        Line(
            label=method,
            config=with_settings(affine_digits(method), ["train.epochs=1"]),
            paper={"accuracy": {"mean": 0.66, "sd": 0.027}} if method == "OJ" else {},
        )
        for method in METHODS
    ]
    return Study(name="made-up", lines=tuple(lines), seeds=SEEDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study's folder with random scores; before training the score is best, and must not be chosen."""
    run, study = Run(tmp_path_factory.mktemp("summary") / "run"), _study()
    run.create(study.describe(), kind="study")
    rng = np.random.default_rng(0)
    scores = {}
    for line in study.lines:
        base = 0.3 + 0.05 * METHODS.index(line.label)
        for seed in SEEDS:
            each = Run(run / line.path(seed))
            each.create(to_dict(study.config_of(line, seed)))
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
            each.write_json("results.json", {"rows": rows, "protocol": OneShot.about.to_json()})
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
    rows = {(r["method"], r["metric"]): r for r in summarise(read_recorded(run, study))["rows"]}
    for label in METHODS:
        for number, metric in enumerate(("accuracy", "accuracy_cosine")):
            row, expected = rows[label, metric], _by_hand(scores, label, number).mean(0)
            assert row["mean"] == pytest.approx(expected.mean())
            assert row["sd"] == pytest.approx(expected.std(ddof=1))
            assert (row["n"], row["repeated"], row["seeds"]) == (SPLITS, "splits", 3)
    ours = rows["OJ", "accuracy"]
    assert (ours["paper"], ours["paper_sd"]) == (0.66, 0.027)
    assert rows["OE", "accuracy"]["paper"] is None
    by_seed = _by_hand(scores, "OJ").mean(1)
    expected = stats.t.interval(0.95, 2, by_seed.mean(), stats.sem(by_seed))
    assert (ours["seeds_low"], ours["seeds_high"]) == pytest.approx(expected)
    assert rows["pixels", "accuracy"]["repeated"] == "draws"


def test_the_untrained_encoder_is_no_stopping_time(made):
    run, _, scores = made
    runs = [read_training(Run(run / f"OJ/seed-{seed}")) for seed in SEEDS]
    found = stopped_scores(runs, "accuracy", SPLITS)
    np.testing.assert_allclose(found.score_SR, _by_hand(scores, "OJ"))
    assert found.epoch_SR.min() > 0


def test_p_is_that_of_the_corrected_t_test_times_three_for_the_papers_three_comparisons(made):
    run, study, scores = made
    results = summarise(read_recorded(run, study))
    rows = {r["method"]: r for r in results["rows"] if r["metric"] == "accuracy"}
    ours = _by_hand(scores, "OJ").mean(0)
    for label in ("OT", "OE", "EX"):
        difference = ours - _by_hand(scores, label).mean(0)
        error = np.sqrt((1 / SPLITS + 1) * difference.var(ddof=1))  # for halves
        p = 2 * stats.t.sf(abs(difference.mean()) / error, SPLITS - 1)
        assert rows[label]["p_corrected"] == pytest.approx(min(1, 3 * p))
        assert (rows[label]["test"], rows[label]["correction"]) == ("corrected-t", "bonferroni x 3")
    assert rows["OJ"]["p_corrected"] is None and rows["OT-STN"]["p_corrected"] is None


def test_every_test_is_made_and_corrected_in_both_ways(made):
    run, study, scores = made
    tests = [t for t in summarise(read_recorded(run, study))["tests"] if t["metric"] == "accuracy"]
    by_hand = {label: _by_hand(scores, label).mean(0) for label in ("OJ", "OT", "OE", "EX")}
    for name in ("paired-t", "corrected-t", "wilcoxon"):
        found = {t["against"]: t for t in tests if t["test"] == name}
        expected = {}
        for label in ("OT", "OE", "EX"):
            difference = by_hand["OJ"] - by_hand[label]
            if name == "wilcoxon":
                expected[label] = stats.wilcoxon(difference).pvalue
            else:  # halves: the variance of the mean is (1/J + 1) times that of the differences
                overlap = 1.0 if name == "corrected-t" else 0.0
                error = np.sqrt((1 / SPLITS + overlap) * difference.var(ddof=1))
                expected[label] = 2 * stats.t.sf(abs(difference.mean()) / error, SPLITS - 1)
            assert found[label]["p"] == pytest.approx(expected[label])
        order = sorted(expected, key=expected.get)
        holm = 0.0
        for rank, label in enumerate(order):
            holm = max(holm, min(1, expected[label] * (3 - rank)))
            assert found[label]["p_holm"] == pytest.approx(holm)
            assert found[label]["p_bonferroni"] == pytest.approx(min(1, 3 * expected[label]))


def test_leaving_a_method_out_makes_the_others_no_more_significant(made):
    run, study, _ = made
    fewer = replace(study, lines=study.lines[:2])
    found, whole = (summarise(read_recorded(run, some))["tests"][0] for some in (fewer, study))
    assert found["against"] == whole["against"] == "OT"
    assert found["p_corrected"] == whole["p_corrected"]


def test_curves_are_means_over_seeds(made):
    run, _, _ = made
    runs = [read_training(Run(run / f"OJ/seed-{seed}")) for seed in SEEDS]
    curve = mean_curve(runs)
    assert [point["epoch"] for point in curve] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert curve[0]["accuracy"] == {"mean": pytest.approx(0.5), "sd": pytest.approx(0.1), "n": 3}


def test_a_run_that_lacks_an_evaluation_is_named(made, tmp_path):
    runs = []
    for seed in SEEDS:
        runs.append(Run(tmp_path / f"seed-{seed}"))
        shutil.copytree(made[0] / f"OJ/seed-{seed}", runs[-1].path)
    lines = (runs[1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (runs[1] / "metrics.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(RunError, match="twice: .*seed-1/metrics.jsonl has 3, others have 4"):
        mean_curve([read_training(run) for run in runs])


def test_a_curve_of_trainings_that_ended_early_is_over_what_all_have(made, tmp_path):
    runs = [read_training(Run(made[0] / f"OJ/seed-{seed}")) for seed in SEEDS]
    config = SimpleNamespace(train=TrainConfig(patience=3))
    runs = [replace(run, config=config) for run in runs]
    ended = replace(runs[1], records=runs[1].records[:2])
    assert mean_curve([runs[0], ended, runs[2]]) == mean_curve(runs)[:2]


def test_differences_over_seeds_pair_trainings_of_one_seed(made):
    run, study, scores = made
    found = [
        pair
        for pair in summarise(read_recorded(run, study))["over_seeds"]
        if pair["metric"] == "accuracy" and pair["method"] == "OT-STN"
    ]
    difference = _by_hand(scores, "OT-STN").mean(1) - _by_hand(scores, "OT").mean(1)
    low, high = stats.t.interval(0.95, 2, difference.mean(), stats.sem(difference))
    assert [(p["against"], p["repeats"]) for p in found] == [("OT", 3)]
    assert (found[0]["low"], found[0]["high"]) == pytest.approx((low, high))


def test_time_is_summed_over_seeds(made):
    run, study, _ = made
    assert summarise(read_recorded(run, study))["seconds"]["OJ"] == 2.0 * EVALUATIONS * len(SEEDS)


def test_results_are_plain_json(made):
    run, study, _ = made
    json.dumps(summarise(read_recorded(run, study)), allow_nan=False)
