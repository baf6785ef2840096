"""The paper's protocol on faces: its splits, and a whole small study with its table and page."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from orbitset.config import with_settings
from orbitset.errors import ConfigError, DataError
from orbitset.recipes.faces import (
    IMAGES,
    METHODS,
    ONCE,
    PAPER,
    heads_study,
    multi_pie_study,
    splits_2_1_1,
    splits_3_1,
)
from orbitset.recipes.study import Line, Study
from orbitset.report import write_report
from orbitset.results.recorded import read_recorded, stored_study
from orbitset.results.summary import summarise
from orbitset.run_folder import Run
from orbitset.runs.study import run_study


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "face-cache"))


def test_splits_are_the_papers():
    two = splits_2_1_1()
    assert len(two) == 6
    for split in two:
        assert sorted((*split.train, *split.validation, *split.test)) == ["1", "2", "3", "4"]
        assert split.validation < split.test
    assert {split.train for split in two} == set(itertools.combinations("1234", 2))
    assert [split.test for split in splits_3_1()] == [("1",), ("2",), ("3",), ("4",)]
    assert all(len(split.train) == 3 and not split.validation for split in splits_3_1())


def test_the_whole_study_has_every_method_and_one_budget():
    study = heads_study()
    table = [line for line in study.lines if line.role == "method"]
    curves = [line for line in study.lines if line.role == "curve"]
    assert study.labels == list(METHODS)
    assert study.cut_down is None
    for label in METHODS:
        count = 2 if label in ONCE else 6
        assert sum(line.label == label for line in table) == count
    assert [line.split for line in curves if line.label == "OJ"] == ["124-3", "123-4"]
    for line in study.lines:
        per_epoch = 129 * 20 * 13 * len(line.config.evaluation.train)
        assert line.config.train.epochs * per_epoch == pytest.approx(IMAGES)
        assert line.config.encoder.channels == (64, 128, 256, 512)
        assert line.config.encoder.contrast == "local"
        assert line.config.evaluation.exclude == ("view", "light")
    assert not any(line.paper for line in study.lines), "the paper's numbers are of other images"


def test_only_the_first_split_of_a_method_keeps_pictures():
    study = heads_study(seeds=2)
    kept = [
        (line.name, seed)
        for line, seed in study.runs()
        if study.config_of(line, seed).evaluation.pictures
    ]
    assert kept == [(f"{label}, 12-3-4", 0) for label in METHODS]


def test_smaller_studies_say_what_is_cut():
    assert "20 people, 6 lights" in heads_study(is_small=True).cut_down
    cut = heads_study(methods=["oj", "ot"], images=1000).cut_down
    assert cut == "cut down: 2 of 6 methods; 1,000 images per training instead of 300,000"
    with pytest.raises(ConfigError, match="seeds is 0"):
        heads_study(seeds=0)


def test_multi_pie_has_the_papers_numbers_and_says_how_many_subjects_there_are(tmp_path):
    from orbitset.datasets.multi_pie import CAMERAS, SESSIONS, path_of

    with pytest.raises(DataError, match="is not a folder"):
        multi_pie_study(tmp_path / "none")
    for session in SESSIONS:
        for camera in CAMERAS:
            path = tmp_path / path_of("001", f"0{session}", "01", camera.replace("_", ""), "00")
            path.parent.mkdir(parents=True)
            path.touch()
    study = multi_pie_study(tmp_path, on_problem="skip")
    assert study.cut_down.startswith("cut down: 1 subjects instead of 129; 988 images missing, the")
    (first, *_) = study.lines
    assert first.config.orbits.canonical == "view=051"
    assert first.config.orbits.on_problem == "skip"
    assert first.config.train.epochs == IMAGES / 26
    assert {line.label: line.paper for line in study.lines if line.paper} == PAPER


@pytest.fixture(scope="module")
def done(tmp_path_factory, small_faces):
    """Six splits for OJ, OT and EX, two for AE, and curves over the 3-1 splits."""
    run = Run(tmp_path_factory.mktemp("faces-study") / "run")
    small = ("train.epochs=2", "train.evaluate_at=0.5,1")
    lines = []
    for role, splits in (("method", splits_2_1_1()), ("curve", splits_3_1())):
        for number, split in enumerate(splits):
            for method in ("OJ", "OT", "EX", "AE"):
                if method == "AE" and number > 1:
                    continue
                parts = "/".join(
                    ",".join(part) for part in (split.train, split.validation, split.test) if part
                )
                config = small_faces(method, *small, split=f"session={parts}")
                lines.append(Line(label=method, split=split.name, role=role, config=config))
    study = Study(name="small-faces", lines=tuple(lines), seeds=(0,), cut_down="cut down: tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "face-cache"))
        run_study(study, run)
    return run


def row_of(results, method, metric):
    (found,) = (
        row for row in results["rows"] if (row["method"], row["metric"]) == (method, metric)
    )
    return found


def test_each_split_is_stopped_on_its_own_session(done):
    results = summarise(read_recorded(done))
    for metric, (chosen_on, scored_on) in (
        ("auc", ["va", "te"]),
        ("auc_swapped", ["te", "va"]),
    ):
        scores = []
        for split in splits_2_1_1():
            records = Run(done / f"OT/{split.name}/seed-0").records()[1:]
            sides = [
                [record["auc"][side][0] for record in records] for side in (chosen_on, scored_on)
            ]
            scores.append(sides[1][int(np.argmax(sides[0]))])
        found = row_of(results, "OT", metric)
        assert found["mean"] == pytest.approx(np.mean(scores), abs=1e-12)
        assert found["sd"] == pytest.approx(np.std(scores, ddof=1), abs=1e-12)
        assert (found["n"], found["repeated"]) == (6, "splits")


def test_p_is_of_a_corrected_t_test_over_the_six_splits(done):
    results = summarise(read_recorded(done))
    scores = {}
    for method in ("OJ", "EX"):
        scores[method] = []
        for split in splits_2_1_1():
            records = Run(done / f"{method}/{split.name}/seed-0").records()[1:]
            best = int(np.argmax([record["auc"]["va"][0] for record in records]))
            scores[method].append(records[best]["auc"]["te"][0])
    difference = np.subtract(scores["OJ"], scores["EX"])
    # one session is scored, two are trained on
    error = np.sqrt((1 / 6 + 1 / 2) * difference.var(ddof=1))
    wanted = 2 * stats.t.sf(abs(difference.mean()) / error, 5)
    assert row_of(results, "EX", "auc")["p_corrected"] == pytest.approx(min(1, 3 * wanted))
    against = {test["against"] for test in results["tests"]}
    assert against == {"OT", "EX"}, "AE has fewer splits"
    assert row_of(results, "AE", "auc")["n"] == 2


def test_pixels_are_the_mean_over_the_splits_test_sessions(done):
    results = summarise(read_recorded(done))
    means = [
        row["mean"]
        for split in splits_2_1_1()
        for row in Run(done / f"OJ/{split.name}/seed-0").read_json("results.json")["rows"]
        if (row["method"], row["metric"]) == ("pixels", "auc")
    ]
    found = row_of(results, "pixels", "auc")
    assert found["mean"] == pytest.approx(np.mean(means))
    assert found["n"] == 6


def test_curves_are_over_the_3_1_splits(done):
    curve = summarise(read_recorded(done))["curves"]["OJ"]
    records = [Run(done / f"OJ/{split.name}/seed-0").records() for split in splits_3_1()]
    assert len(curve) == 4
    for at, point in enumerate(curve):
        values = [of_split[at]["auc"]["mean"] for of_split in records]
        assert point["auc"]["mean"] == pytest.approx(np.mean(values))
        assert point["auc"]["sd"] == pytest.approx(np.std(values, ddof=1))


def test_the_page_has_every_table_and_figure(done):
    page = write_report(done, summarise(read_recorded(done))).read_text()
    names = {path.stem for path in (done / "figures").glob("*.png")}
    assert names == {"accuracy", "auc", "top1", "tsne", "orbits", "retrieval", "decoded"}
    for text in ("Verification AUC", "Top-1 retrieval", "sides swapped", "cut down: tiny"):
        assert text in page
    assert "images of the same person with the same" in page
    assert (done / "tables" / "results.md").is_file()


def test_the_page_says_where_to_read_what_was_left_out(done):
    first = done.config["runs"][0]
    (done / first / "left_out.json").write_text('{"rows": []}')
    page = write_report(done, summarise(read_recorded(done))).read_text()
    (done / first / "left_out.json").unlink()
    assert f"{first}/left_out.json says what, and why" in page


def test_a_stopped_study_goes_on_where_it_was(done, tmp_path, monkeypatch):
    study = stored_study(done)
    two = replace(study, lines=study.lines[:2], cut_down=None)
    run = Run(tmp_path / "run")
    run_study(two, run)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("results.json")}
    monkeypatch.setattr(
        "orbitset.runs.workers.train", lambda *_, **__: pytest.fail("trained again")
    )
    run_study(two, run, resume=True)
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("results.json")}
    changed = replace(two.lines[0], config=with_settings(two.lines[0].config, ["loss.margin=9"]))
    with pytest.raises(ConfigError, match=r"OJ, 12-3-4 loss.margin: None → 9.0"):
        run_study(replace(two, lines=(changed, two.lines[1])), run, resume=True)
