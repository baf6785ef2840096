"""`orbitset compare` on runs that were trained: exit codes, what goes to stdout and stderr, files."""

import csv
import io
import json
import re
import shutil

import pytest

from orbitset.config import with_settings
from orbitset.recipes.affine_images import affine_digits
from orbitset.results.comparison import compare
from orbitset.run_folder import Run
from orbitset.runs.train import train

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "orbits.canvas_px=16",
    "train.epochs=0.005",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.splits=4",
    "evaluation.tsne_points=0",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of OJ with two seeds and of AE with one."""
    folder = tmp_path_factory.mktemp("runs")
    for name, method, seed in (("OJ-0", "OJ", 0), ("OJ-1", "OJ", 1), ("AE", "AE", 0)):
        settings = [*SMALL, f"seed={seed}"]
        train(with_settings(affine_digits(method), settings), Run(folder / name))
    return [folder / name for name in ("OJ-0", "OJ-1", "AE")]


def test_comparison_of_trained_runs_is_printed_and_written(orbitset, start, trained, tmp_path):
    out = tmp_path / "out"
    done = orbitset("compare", *trained, "--out", out)
    assert done.returncode == 0, done.stderr
    assert re.search(r"OJ +0\.\d{3} ± 0\.\d{3}  4 splits, 2 seeds", done.stdout)
    assert re.search(r"AE +0\.\d{3} ± 0\.\d{3}  4 splits, 1 seed  p \d", done.stdout)
    assert re.search(r"OJ +-?\d\.\d{3} – \d\.\d{3}", done.stdout)
    for text in ("OJ minus each other, paired over 4 splits", "share a training", "  method\n"):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert str(out) in done.stderr
    names = ["curves.png", "results.csv", "results.md", "tests.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    again = start("compare", *trained, "--out", out)
    assert again.communicate()[0] == done.stdout and again.returncode == 0


def test_json_is_one_object_with_what_python_gives(orbitset, trained):
    done = orbitset("compare", *trained, "--json", "--against", "AE", "--correction", "holm")
    found = json.loads(done.stdout)
    compared = compare(list(map(Run, trained)), against="AE", correction="holm")
    assert set(found) == {"rows", "tests", "about_tests", "differences", "alone"}
    assert found["differences"] == {
        "method": {"OJ": "OJ", "AE": "AE"},
        "loss.discriminate_weight": {"OJ": 10.0, "AE": "–"},
    }
    assert {test["against"] for test in found["tests"]} == {"OJ"}
    assert [row["mean"] for row in found["rows"]] == [row.mean for row in compared.rows]


def test_a_setting_that_one_method_has_is_named_if_it_was_changed(trained, tmp_path):
    changed = [*SMALL, "loss.margin=3", "loss.discriminate_weight=1"]
    train(with_settings(affine_digits("OT"), changed), Run(tmp_path / "OT"))
    found = compare([Run(trained[2]), Run(tmp_path / "OT")]).differences
    assert found == {"method": {"AE": "AE", "OT": "OT"}, "loss.margin": {"AE": "–", "OT": 3.0}}


def test_the_table_is_printed_alone_in_other_formats(orbitset, trained):
    first, *_ = csv.DictReader(io.StringIO(orbitset("compare", *trained, "--format", "csv").stdout))
    assert (first["method"], first["n"], first["seeds"]) == ("OJ", "4", "2")
    assert "| method | mean" in orbitset("compare", *trained, "--format", "markdown").stdout
    assert r"\toprule" in orbitset("compare", *trained, "--format", "latex").stdout


def test_wrong_use_is_a_sentence_and_writes_nothing(orbitset, fails, trained, tmp_path):
    out = ["--out", tmp_path / "out"]
    fails(orbitset("compare", trained[0], *out), 2, "at least two runs")
    fails(orbitset("compare", *trained, *out, "--format", "pdf"), 2, "--format is 'pdf'")
    fails(orbitset("compare", *trained, *out, "--json", "--format", "csv"), 2, "contradict")
    fails(orbitset("compare", *trained, *out, "--against", "AEE"), 2, "did you mean AE?")
    fails(orbitset("compare", *trained, *out, "--correction", "hol"), 2, "did you mean holm?")
    fails(orbitset("compare", trained[0], tmp_path / "nowhere", *out), 2, "no run folder at")
    assert not (tmp_path / "out").exists()
    fails(orbitset("compare", *trained, "--out", trained[0]), 2, "was not written by compare")


def test_damage_is_a_failure_that_names_the_file_and_writes_nothing(
    orbitset, fails, trained, tmp_path
):
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(trained[2], run)
    (run / "metrics.jsonl").write_text("[]\n")
    fails(orbitset("compare", trained[0], run, "--out", out), 1, f"{run}/metrics.jsonl is damaged")
    (run / "results.json").unlink()
    fails(orbitset("compare", trained[0], run, "--out", out), 1, "is not finished", "--resume")
    assert not out.exists()


def test_help_says_where_may_be_written(orbitset):
    text = re.sub(r"\s+", " ", orbitset("compare", "--help").stdout)
    assert "new, empty or of an earlier comparison" in text
