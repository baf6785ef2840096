import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from orbitset.config import to_dict, with_settings
from orbitset.errors import ConfigError, RunError
from orbitset.protocols import OneShot, Pairs
from orbitset.recipes.affine_images import affine_digits
from orbitset.report.comparison import write_comparison
from orbitset.results.comparison import compare
from orbitset.run_folder import Run

SPLITS, EVALUATIONS = 5, 4


def _scores(seed):
    """Made-up accuracies of the two sides at each evaluation, (2, evaluations, splits)."""
    return np.random.default_rng(seed).uniform(0.3, 0.9, (2, EVALUATIONS, SPLITS))


def _summary(va, te):
    return {"mean": (va + te).mean() / 2, "sd": 0.05, "va": va.tolist(), "te": te.tolist()}


def make_run(path, made_up, *settings, method="OJ", seed=0, epochs=8.0):
    """A finished run as train leaves it, but for its weights, with scores of our choice.

    Before training all is right, and it must not count.
    """
    asked = [f"evaluation.splits={SPLITS}", f"seed={seed}", *settings]
    run = Run(path)
    run.create(to_dict(with_settings(affine_digits(method), asked)))
    va_ES, te_ES = _scores(made_up)
    ones = _summary(np.ones(SPLITS), np.ones(SPLITS))
    run.append(
        "metrics.jsonl", {"step": 0, "epoch": 0.0, "accuracy": ones, "accuracy_cosine": ones}
    )
    for i, (va, te) in enumerate(zip(va_ES, te_ES, strict=True)):
        record = {"step": 10 * (i + 1), "epoch": epochs * (i + 1) / EVALUATIONS}
        record["accuracy"] = _summary(va, te)
        record["accuracy_cosine"] = _summary(te, va)
        run.append("metrics.jsonl", record)
    run.write_json("results.json", {"rows": [], "protocol": OneShot.about.to_json()})
    run.write_json("environment.json", {})
    (run / "arrays.npz").touch()
    return run


def _stopped(made_up, *, cosine=False):
    """The oracle: for each split what the other side scored when this side was best."""
    va_ES, te_ES = _scores(made_up)[::-1] if cosine else _scores(made_up)
    scores = []
    for split in range(SPLITS):
        best = max(range(EVALUATIONS), key=lambda at: va_ES[at][split])
        scores.append(te_ES[best][split])
    return np.array(scores)


def _edit(run, change):
    """Change the records of a run."""
    records = run.records()
    change(records)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run / "metrics.jsonl").write_text(text)


@pytest.fixture
def runs(tmp_path):
    return [
        make_run(tmp_path / "OJ-0", 1),
        make_run(tmp_path / "OJ-1", 2, seed=1),
        make_run(tmp_path / "OE", 3, method="OE"),
        make_run(tmp_path / "AE", 4, method="AE", epochs=3.0),
    ]


def test_rows_are_early_stopped_and_averaged_over_seeds_within_a_split(runs):
    rows = {(row.metric, row.method): row for row in compare(runs).rows}
    assert list(rows) == [
        (m, g) for m in ("accuracy", "accuracy_cosine") for g in ("OJ", "OE", "AE")
    ]
    for metric, cosine in (("accuracy", False), ("accuracy_cosine", True)):
        oj, oe = rows[metric, "OJ"], rows[metric, "OE"]
        seeds = np.array([_stopped(made_up, cosine=cosine) for made_up in (1, 2)])
        assert oj.mean == pytest.approx(seeds.mean())
        assert oj.sd == pytest.approx(np.std(seeds.mean(0), ddof=1))
        assert (oj.n, oj.repeated, oj.seeds, oj.paper) == (SPLITS, "splits", 2, None)
        half = stats.t.ppf(0.975, 1) * seeds.mean(1).std(ddof=1) / np.sqrt(2)
        assert oj.seeds_high - oj.mean == pytest.approx(half)
        assert oj.mean - oj.seeds_low == pytest.approx(half)
        assert oe.mean == pytest.approx(_stopped(3, cosine=cosine).mean())
        assert oe.seeds == 1 and oe.seeds_low is None


@pytest.mark.parametrize("correction", ["bonferroni", "none"])
def test_tests_are_those_of_scipy_times_the_comparisons(runs, correction):
    compared = compare(runs, correction=correction)
    times = 2 if correction == "bonferroni" else 1
    oj = (_stopped(1) + _stopped(2)) / 2
    tests = {(t["against"], t["test"]): t for t in compared.tests if t["metric"] == "accuracy"}
    assert len(tests) == 2 * 3 and len(compared.tests) == 2 * 2 * 3
    for label, made_up in (("OE", 3), ("AE", 4)):
        difference = oj - _stopped(made_up)
        t, p = stats.ttest_rel(oj, _stopped(made_up))
        paired = tests[label, "paired-t"]
        assert (paired["statistic"], paired["p"]) == pytest.approx((t, p))
        assert paired["p_corrected"] == pytest.approx(min(1, times * p))
        assert paired["difference"] == pytest.approx(difference.mean())
        halves = t * np.sqrt(1 / SPLITS) / np.sqrt(1 / SPLITS + 1)
        p = 2 * stats.t.sf(abs(halves), SPLITS - 1)
        assert tests[label, "corrected-t"]["p"] == pytest.approx(p)
        p = stats.wilcoxon(difference).pvalue
        assert tests[label, "wilcoxon"]["p_corrected"] == pytest.approx(min(1, times * p))
    shown = {row.method: row for row in compared.rows if row.metric == "accuracy"}
    assert shown["OJ"].p_corrected is shown["OJ"].test is None
    assert shown["AE"].p_corrected == tests["AE", "corrected-t"]["p_corrected"]
    assert shown["AE"].test == "corrected-t"


def test_against_chooses_what_is_tested(runs):
    tests = compare(runs, against="AE", correction="holm").tests
    assert {test["method"] for test in tests} == {"AE"}
    assert {test["against"] for test in tests} == {"OJ", "OE"}
    with pytest.raises(ConfigError, match="did you mean OE"):
        compare(runs, against="OEE")
    with pytest.raises(ConfigError, match="did you mean bonferroni"):
        compare(runs, correction="bonferoni")


def test_curves_are_means_over_seeds_with_the_spread_over_draws(runs):
    curves = dict(compare(runs).curves)
    assert [at["epoch"] for at in curves["OJ"]] == [0, 2, 4, 6, 8]
    assert [at["epoch"] for at in curves["AE"]] == [0, 0.75, 1.5, 2.25, 3]
    both = np.array([_scores(1), _scores(2)])
    last = curves["OJ"][-1]["accuracy"]
    assert last["mean"] == pytest.approx(both[:, :, -1].mean())
    assert last["sd"] == pytest.approx(0.05)  # what every record says


def test_differences_name_each_groups_value_but_no_seeds(tmp_path, runs):
    other = make_run(tmp_path / "slow", 5, "train.learning_rate=0.1", method="EX")
    found = compare([*runs, other]).differences
    assert found["method"] == {"OJ": "OJ", "OE": "OE", "AE": "AE", "EX": "EX"}
    assert found["train.learning_rate"] == {"OJ": 0.003, "OE": 0.003, "AE": 0.003, "EX": 0.1}
    weights = {"OJ": 10.0, "OE": "–", "AE": "–", "EX": "–"}
    assert found["loss.discriminate_weight"] == weights, "OJ's alone, and not what it is by default"
    assert set(found) == {"method", "train.learning_rate", "loss.discriminate_weight"}


def test_groups_of_one_method_are_labelled_by_what_differs_or_by_folder(tmp_path):
    margins = [make_run(tmp_path / f"{m}", i, f"loss.margin={m}") for i, m in enumerate((1, 2))]
    other = make_run(tmp_path / "OE", 3, method="OE")
    labels = [label for label, _ in compare([*margins, other]).curves]
    assert labels == ["OJ, loss.margin=1.0", "OJ, loss.margin=2.0", "OE"]

    many = ["loss.margin=3", "loss.scale=own-dimension", "encoder.channels=4,8"]
    wide = make_run(tmp_path / "OJ-wide" / "seed-0", 4, *many)
    labels = [label for label, _ in compare([*margins, wide]).curves]
    assert labels == ["OJ, 1", "OJ, 2", "OJ-wide"]

    less = ["loss.margin=4", "loss.scale=own-dimension", "encoder.channels=4,8,8"]
    same_name = make_run(tmp_path / "again" / "OJ-wide", 5, *less)
    labels = [label for label, _ in compare([wide, same_name]).curves]
    channels = ["[4, 8]", "[4, 8, 8]"]
    assert labels == [
        f"OJ, encoder.channels={c}, loss.margin={m}"
        for c, m in zip(channels, (3.0, 4.0), strict=True)
    ]


def test_what_has_no_part_in_the_scores_makes_no_groups(tmp_path):
    aside = ["evaluation.tsne_points=0", "train.checkpoint_every_s=5", "name=x"]
    seeds = [make_run(tmp_path / "0", 1), make_run(tmp_path / "1", 2, *aside, seed=1)]
    found = compare([*seeds, make_run(tmp_path / "AE", 3, method="AE")])
    assert [row.seeds for row in found.rows] == [2, 1, 2, 1]


def test_a_folder_of_runs_stands_for_them(tmp_path, runs):
    run = Run(tmp_path / "study")
    names = ["OJ/seed-0", "OJ/seed-1", "OE"]
    run.create({"name": "study", "runs": names})
    for name, each in zip(names, runs[:3], strict=True):
        shutil.copytree(each.path, run / name)
    assert compare([run]) == compare(runs[:3])
    assert compare([run, runs[3]]) == compare(runs)
    shutil.rmtree(run / "OJ" / "seed-1")
    with pytest.raises(RunError, match=r"is not finished.*OJ/seed-1"):
        compare([run])
    run.write_json("config.json", {"name": "study", "runs": [3]})
    with pytest.raises(RunError, match=r"study/config\.json is damaged"):
        compare([run])


def test_written_comparison_holds_tables_tests_and_curves(tmp_path, runs):
    out = tmp_path / "out"
    compared = compare(runs)
    write_comparison(out, compared)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(before) == {"results.md", "results.csv", "tests.json", "curves.png"}
    assert json.loads(before["tests.json"])["tests"] == compared.tests
    assert json.loads(before["tests.json"])["differences"] == compared.differences
    assert before["curves.png"].startswith(b"\x89PNG")
    write_comparison(out, compare(runs[:3]))
    assert b"AE" not in (out / "results.md").read_bytes()


def test_a_folder_of_others_is_not_written_into(tmp_path, runs):
    compared = compare(runs)
    out = tmp_path / "out"
    write_comparison(out, compared)
    (out / "config.json").write_text("{}")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "results.csv").touch()
    for folder in (out, runs[0].path, tmp_path, theirs):
        with pytest.raises(RunError, match="was not written by compare") as caught:
            write_comparison(folder, compared)
        assert caught.value.exit_code == 2
    with pytest.raises(RunError, match="is a file"):
        write_comparison(out / "config.json", compared)
    assert json.loads((runs[0] / "results.json").read_text())["rows"] == []


def test_curves_of_one_method_have_colours_of_their_own(tmp_path, monkeypatch):
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))
    )
    runs = [make_run(tmp_path / f"{m}", i, f"loss.margin={m}") for i, m in enumerate((1, 2))]
    write_comparison(tmp_path / "out", compare(runs))
    axes = drawn[0].axes[0]
    lines = [to_rgba(line.get_color()) for line in axes.get_lines()]
    assert len(set(lines)) == 2
    assert lines == [to_rgba(line.get_color()) for line in axes.get_legend().legend_handles]


def test_one_run_or_one_configuration_is_nothing_to_compare(runs):
    for count in (0, 1):
        with pytest.raises(ConfigError, match=f"at least two runs to compare, not {count}"):
            compare(runs[:count])
    with pytest.raises(ConfigError, match="all 2 runs are seeds of one configuration"):
        compare(runs[:2])


def test_the_same_run_twice_is_refused_by_name(tmp_path, runs):
    copy = Run(tmp_path / "copy")
    shutil.copytree(runs[2].path, copy.path)
    with pytest.raises(ConfigError, match=r"OE and .*copy are the same configuration.*seed, 0"):
        compare([*runs, copy])


@pytest.mark.parametrize(
    "setting",
    [
        "data=mnist",
        "orbits.affine.shear=0.1",
        "orbits.members=9",
        "orbits.canvas_px=48",
        "evaluation.on=validation",
        "evaluation.seed=3",
        "evaluation.draws=7",
        "evaluation.test_images=99",
        "evaluation.splits=6",
    ],
)
def test_other_protocols_are_refused_by_what_differs(tmp_path, runs, setting):
    other = make_run(tmp_path / "other", 5, setting, method="EX")
    name, value = setting.split("=")
    with pytest.raises(ConfigError, match=rf"different protocols: {name}: .* → {value}$"):
        compare([*runs, other])


def test_batches_are_no_part_of_the_protocol(tmp_path, runs):
    other = make_run(tmp_path / "other", 5, "orbits.members_per_batch=2")
    compared = compare([runs[0], other])
    assert compared.rows[1].method == "OJ, orbits.members_per_batch=2"


@pytest.mark.parametrize("name", ["results.json", "metrics.jsonl"])
def test_an_unfinished_run_is_refused_with_how_to_go_on(runs, name):
    (runs[2] / name).unlink()
    with pytest.raises(RunError, match="OE is not finished") as caught:
        compare(runs)
    assert "--resume" in caught.value.hint and caught.value.exit_code == 1


@pytest.mark.parametrize("splits", [0, 1])
def test_fewer_than_two_splits_are_refused(tmp_path, splits):
    settings = [f"evaluation.splits={splits}"]
    runs = [make_run(tmp_path / m, i, *settings, method=m) for i, m in enumerate(("OJ", "OE"))]
    for run in runs:
        _edit(run, lambda records: [_keep_splits(record, splits) for record in records])
    with pytest.raises(RunError, match=f"OJ was evaluated on {splits} splits") as caught:
        compare(runs)
    assert caught.value.exit_code == 2


def _keep_splits(record, splits):
    for measure in ("accuracy", "accuracy_cosine"):
        for side in ("va", "te"):
            record[measure][side] = record[measure][side][:splits]


def test_runs_from_before_there_were_splits_are_refused(runs):
    def forget(records):
        for record in records:
            del record["accuracy"]["va"], record["accuracy"]["te"]

    _edit(runs[0], forget)
    with pytest.raises(RunError, match="OJ-0 was evaluated on 0 splits"):
        compare(runs)


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records.clear(),
        lambda records: records.__delitem__(slice(1, None)),
        lambda records: records[2].update(step="x"),
        lambda records: records[2].pop("accuracy"),
        lambda records: records[2].pop("accuracy_cosine"),
        lambda records: records[2].pop("epoch"),
        lambda records: records[2]["accuracy"].update(te=3),
        lambda records: records[2]["accuracy"].update(mean=None),
        lambda records: records[2]["accuracy"]["te"].pop(),
        lambda records: [_keep_splits(record, SPLITS - 1) for record in records],
        lambda records: records[2]["accuracy"]["va"].__setitem__(0, None),
        lambda records: records[2]["accuracy_cosine"]["te"].__setitem__(0, "x"),
    ],
)
def test_damaged_metrics_are_refused_by_the_files_name(runs, change):
    _edit(runs[2], change)
    with pytest.raises(RunError, match=r"OE/metrics\.jsonl") as caught:
        compare(runs)
    assert caught.value.exit_code == 1


def test_metrics_that_end_amid_a_line_or_are_no_text_are_refused(runs):
    name = runs[2] / "metrics.jsonl"
    whole = name.read_bytes()
    for content in (whole[:-9], b"\xff" + whole, b""):
        name.write_bytes(content)
        with pytest.raises(RunError, match=r"OE/metrics\.jsonl is damaged"):
            compare(runs)


def test_seeds_evaluated_at_other_epochs_are_refused(runs):
    _edit(runs[1], lambda records: records[-1].update(epoch=99.0))
    with pytest.raises(RunError, match="OJ-0.*OJ-1.*epochs differ"):
        compare(runs)


def test_a_configuration_of_another_version_is_refused_by_name(runs):
    config = runs[2].config
    runs[2].write_json("config.json", {**config, "colour": "red"})
    with pytest.raises(RunError, match=r"OE/config\.json cannot be used: .*'colour'"):
        compare(runs)


def make_observed_run(path, config, made_up, *, images=None):
    """As train leaves it, with made-up scores of both sides, or of the test side where there is no other."""
    run = Run(path)
    run.create(to_dict(config))
    va_EM, te_EM = _scores(made_up)
    for at in range(EVALUATIONS):
        record = {"step": 10 * at, "epoch": float(at)}
        for column, measure in enumerate(("auc", "top1")):
            sides = {"va": [va_EM[at, column]], "te": [te_EM[at, column]]}
            once = {"mean": te_EM[at, column], "sd": None, "n": 1, "repeated": "runs"}
            record[measure] = once | (sides if config.evaluation.validation else {})
        run.append("metrics.jsonl", record)
    about = replace(Pairs.about, has_swapped_sides=bool(config.evaluation.validation))
    run.write_json("results.json", {"rows": [], "protocol": about.to_json()})
    run.write_json("environment.json", {} if images is None else {"data": images})
    (run / "arrays.npz").touch()
    return run


@pytest.fixture
def observed_runs(tmp_path, small_faces):
    return [
        make_observed_run(
            tmp_path / f"faces/{method}-{seed}", small_faces(method, f"seed={seed}"), 10 * at + seed
        )
        for at, method in enumerate(("OJ", "OT"))
        for seed in (2, 0, 1)
    ]


def _stopped_once(made_up, column):
    """What the test side had when the other was best, training having begun."""
    va_E, te_E = _scores(made_up)[:, :, column]
    return te_E[1 + int(np.argmax(va_E[1:]))]


def test_runs_of_observed_orbits_are_paired_over_seeds(observed_runs):
    compared = compare(observed_runs, correction="none")
    rows = {(row.metric, row.method): row for row in compared.rows}
    assert list(rows) == [(m, g) for m in ("auc", "top1") for g in ("OJ", "OT")]
    assert "Every seed is a training of its own" in compared.about_tests
    for column, metric in enumerate(("auc", "top1")):
        oj, ot = ([_stopped_once(first + seed, column) for seed in (0, 1, 2)] for first in (0, 10))
        row = rows[metric, "OJ"]
        assert (row.mean, row.sd) == pytest.approx((np.mean(oj), np.std(oj, ddof=1)))
        assert (row.n, row.repeated, row.seeds) == (3, "seeds", 3)
        tests = {t["test"]: t for t in compared.tests if t["metric"] == metric}
        assert set(tests) == {"paired-t", "wilcoxon"}
        t, p = stats.ttest_rel(oj, ot)
        assert (tests["paired-t"]["statistic"], tests["paired-t"]["p"]) == pytest.approx((t, p))
        assert (tests["paired-t"]["repeats"], tests["paired-t"]["repeated"]) == (3, "seeds")
    points = dict(compared.curves)["OJ"]
    assert set(points[0]) == {"epoch", "auc", "top1"} and len(points) == EVALUATIONS


def test_without_the_same_seeds_there_is_a_table_and_no_test(tmp_path, observed_runs):
    for some in (observed_runs[:1] + observed_runs[3:4], observed_runs[:3] + observed_runs[3:5]):
        compared = compare(some)
        assert compared.tests == [] and len(compared.rows) == 4
        assert "needs the same two or more" in compared.about_tests
    write_comparison(tmp_path / "out", compared)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"curves-auc.png", "curves-top1.png", "results.md"} <= written
    assert "curves.png" not in written
    assert "needs the same" in json.loads((tmp_path / "out/tests.json").read_text())["about_tests"]


def test_figures_of_an_earlier_comparison_do_not_stay(tmp_path, runs, observed_runs):
    out = tmp_path / "out"
    write_comparison(out, compare(runs))
    write_comparison(out, compare(observed_runs))
    assert {path.name for path in out.glob("*.png")} == {"curves-auc.png", "curves-top1.png"}
    write_comparison(out, compare(runs))
    assert {path.name for path in out.glob("*.png")} == {"curves.png"}


def test_without_a_validation_side_the_end_of_training_counts(tmp_path, small_faces):
    runs = [
        make_observed_run(tmp_path / method, small_faces(method, split="session=1,2/4"), at)
        for at, method in enumerate(("OJ", "OT"))
    ]
    found = [row.mean for row in compare(runs).rows if row.metric == "auc"]
    assert found == pytest.approx([_scores(at)[1][-1, 0] for at in (0, 1)])


def test_observed_runs_of_other_splits_images_or_kinds_are_refused(tmp_path, runs, small_faces):
    one = make_observed_run(tmp_path / "one", small_faces(), 1, images={"sha256": "a"})
    other = make_observed_run(tmp_path / "x", small_faces("OT", split="session=1,3/2/4"), 2)
    with pytest.raises(ConfigError, match=r"different protocols: evaluation\.train: .*") as caught:
        compare([one, other])
    assert caught.value.hint is None
    study = Run(tmp_path / "study")
    study.create({"name": "study", "runs": ["one", "x"]})
    for run in (one, other):
        shutil.copytree(run.path, study / run.path.name)
    with pytest.raises(ConfigError, match="different protocols") as caught:
        compare([study])
    assert "orbitset report compares" in caught.value.hint
    unknown = make_observed_run(tmp_path / "z", small_faces("OT"), 2)
    assert len(compare([one, unknown]).rows) == 4
    smaller = make_observed_run(tmp_path / "s", small_faces("OT", "orbits.size_px=32"), 2)
    with pytest.raises(ConfigError, match=r"different protocols: orbits\.size_px: 16 → 32"):
        compare([one, smaller])
    changed = make_observed_run(tmp_path / "y", small_faces("OT"), 2, images={"sha256": "b"})
    with pytest.raises(ConfigError, match="held other images when .*y was trained"):
        compare([one, changed])
    with pytest.raises(ConfigError, match="one has computed orbits and the other observed"):
        compare([one, runs[0]])


def test_runs_with_and_without_augmentation_are_compared(tmp_path, small_faces):
    plain = make_observed_run(tmp_path / "plain", small_faces(), 1)
    config = small_faces("OT")
    augmented = replace(config, orbits=config.observed.augmented(16))
    compared = compare([plain, make_observed_run(tmp_path / "augmented", augmented, 2)])
    assert [row.method for row in compared.rows] == ["OJ", "OT"] * 2
    assert "orbits.affine.rotation_deg" in compared.differences


def test_of_runs_with_other_measures_of_one_s_own_those_that_both_have_are_compared(tmp_path):
    one = make_run(tmp_path / "one", 1)
    other = make_run(tmp_path / "other", 2)
    other.write_json("config.json", {**other.config, "measures": ["mine:purity"]})
    _edit(other, lambda records: [record.update(purity={"mean": 0.5}) for record in records])
    compared = compare([one, other])
    assert {row.metric for row in compared.rows} == {"accuracy", "accuracy_cosine"}
    (labels,) = compared.alone.values()
    assert list(compared.alone) == ["purity"] and len(labels) == 1 and "mine:purity" in labels[0]
    assert compare([other, one]).alone == compared.alone
    assert "measures" in compared.differences
