"""`orbitset reproduce` and reports of studies, as processes."""

import json
import shutil

import pytest

from orbitset.config import with_settings
from orbitset.datasets.mnist import data_root, is_mnist_folder
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.study import Line, Study
from orbitset.run_folder import Run
from orbitset.runs.study import run_study

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "orbits.canvas_px=16",
    "train.epochs=0.003",
    "train.evaluations=1",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.tsne_points=0",
    "evaluation.splits=3",
]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("studies") / "run")
    lines = [Line(label=m, config=with_settings(affine_digits(m), SMALL)) for m in ("OJ", "OE")]
    run_study(Study(name="small", lines=tuple(lines), seeds=(0,), cut_down="cut down: tiny"), run)
    return run


def test_a_report_is_computed_from_the_metrics_and_not_from_old_results(orbitset, study):
    done = orbitset("report", study.path, "--json")
    rows = json.loads(done.stdout)["rows"]
    (study / "results.json").write_text(json.dumps({"rows": []}))
    again = orbitset("report", study.path, "--json")
    assert json.loads(again.stdout)["rows"] == rows
    ours = next(r for r in rows if r["method"] == "OJ" and r["metric"] == "accuracy")
    assert (ours["n"], ours["repeated"], ours["seeds"]) == (3, "splits", 1)
    names = {path.name for path in (study / "tables").iterdir()}
    assert names == {"results.md", "results.csv", "tests.csv"}


def renamed(run, name):
    for config in run.path.rglob("config.json"):
        config.write_text(config.read_text().replace('"name": "small"', f'"name": "{name}"'))


def test_going_on_says_that_a_new_study_would_have_other_settings(orbitset, study, tmp_path):
    run = Run(tmp_path / "run")
    shutil.copytree(study.path, run.path)
    renamed(run, "affine-mnist")
    go_on = ("reproduce", "affine-mnist", "--resume", "--out", run.path, "-q")
    # it was cut down, and is not compared
    assert "would have others" not in orbitset(*go_on).stderr
    run.write_json("config.json", run.config | {"cut_down": None})
    said = orbitset(*go_on).stderr
    assert "goes on with the settings it was started with" in said and "ST added" in said


def test_another_experiment_is_not_gone_on_with(orbitset, fails, study):
    done = orbitset("reproduce", "affine-mnist", "--resume", "--out", study.path)
    fails(done, 2, "holds small, not affine-mnist")


def test_what_was_left_out_is_said_at_the_end(orbitset, study, tmp_path):
    run = Run(tmp_path / "run")
    shutil.copytree(study.path, run.path)
    renamed(run, "affine-mnist")
    (run / "OE/seed-0/left_out.json").write_text('{"rows": []}')
    done = orbitset("reproduce", "affine-mnist", "--resume", "--out", run.path, "-q")
    assert f"could not be used: {run / 'OE/seed-0/left_out.json'} says what" in done.stderr


def test_a_packed_study_is_reported_and_compared_as_its_folder_is(orbitset, fails, study, tmp_path):
    out = tmp_path / "packed"
    done = orbitset("report", study.path, "--pack", out, "--json")
    assert done.returncode == 0, done.stderr
    assert len(list(out.iterdir())) == 5
    assert orbitset("report", out, "--json").stdout == done.stdout
    assert (out / "report.html").read_bytes() == (study / "report.html").read_bytes()
    compared = [orbitset("compare", folder, "--json").stdout for folder in (study.path, out)]
    assert compared[0] == compared[1] and json.loads(compared[0])["rows"]
    fails(orbitset("report", study / "OE/seed-0", "--pack", out), 2, "holds no study")


def test_a_table_says_what_was_repeated_and_stays_narrow(orbitset, study):
    done = orbitset("report", study.path)
    assert "3 splits, 1 seed" in done.stdout and "cut down: tiny" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_wrong_wishes_are_refused_before_anything_is_written(orbitset, fails, tmp_path, study):
    out = ["--out", tmp_path / "run"]
    reproduce = ["reproduce", "affine-mnist", *out]
    fails(orbitset("reproduce", "afine-mnist", *out), 2, "did you mean affine-mnist?")
    fails(orbitset(*reproduce, "--methods", "OJ,OX"), 2, "'OX'", "OJ-STN")
    fails(orbitset(*reproduce, "--seeds", 0), 2, "seeds is 0")
    fails(orbitset(*reproduce, "--epochs", -1), 2, "above 0")
    fails(orbitset(*reproduce, "--resume", "--overwrite"), 2, "contradict")
    fails(orbitset("reproduce", "affine-mnist", "--out", study.path), 2, "already holds a run")
    other = ["--out", study.path, "--resume", "--methods", "OJ"]
    fails(orbitset("reproduce", "affine-mnist", *other), 2, "started with other settings")
    assert not (tmp_path / "run").exists()


def test_a_study_is_neither_evaluated_nor_trained_as_a_run(orbitset, fails, study):
    fails(orbitset("evaluate", study.path), 1, "name one of them")
    done = orbitset("train", "--resume", "--out", study.path)
    fails(done, 2, "orbitset reproduce small --resume")


def test_an_unfinished_study_says_how_to_go_on(orbitset, fails, tmp_path, study):
    run = Run(tmp_path / "run")
    run.create(study.config)
    fails(
        orbitset("report", run.path), 1, "not finished: 2 of 2", "orbitset reproduce small --resume"
    )


@pytest.mark.skipif(not is_mnist_folder(data_root() / "mnist"), reason="MNIST is not here")
def test_two_methods_of_the_papers_experiment_go_through(orbitset, tmp_path):
    cut = ["--epochs", 0.0004, "--seeds", 1, "--test-images", 200, "--methods", "AE,OT-STN"]
    settings = (*SMALL[:2], "evaluation.draws=5", "evaluation.tsne_points=50")
    small = [part for setting in settings for part in ("--set", setting)]
    done = orbitset("reproduce", "affine-mnist", *cut, *small, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    methods = {row["method"] for row in json.loads(done.stdout)["rows"]}
    assert methods == {"pixels", "untrained", "AE", "OT-STN"}
    mark = "cut down: 2 of 8 methods, 0.0004 epochs instead of"
    assert all(row["cut_down"].startswith(mark) for row in json.loads(done.stdout)["rows"])
