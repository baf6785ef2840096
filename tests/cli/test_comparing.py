"""`orbitset compare` on runs that were trained: exit codes, what goes to stdout and stderr, files."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys

import pytest

from orbitset.cli import main
from orbitset.config import with_settings
from orbitset.experiments import affine_digits, train
from orbitset.experiments.comparison import compare
from orbitset.runs import Run

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "train.epochs=0.005",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.splits=4",
    "evaluation.tsne_points=0",
]


@pytest.fixture
def orbitset_compare(monkeypatch, capsys):
    """The command line in this process, which saves loading torch for every call."""

    def run(*arguments):
        command = ["orbitset", "compare", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(command, ended.value.code, *capsys.readouterr())

    return run


def fails(done, code, *texts):
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    for text in texts:
        assert text in done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of OJ with two seeds and of AE with one."""
    folder = tmp_path_factory.mktemp("runs")
    for name, method, seed in (("OJ-0", "OJ", 0), ("OJ-1", "OJ", 1), ("AE", "AE", 0)):
        settings = [*SMALL, f"seed={seed}"]
        train(with_settings(affine_digits(method), settings), Run(folder / name))
    return [folder / name for name in ("OJ-0", "OJ-1", "AE")]


def test_comparison_of_trained_runs_is_printed_and_written(orbitset_compare, trained, tmp_path):
    out = tmp_path / "out"
    done = orbitset_compare(*trained, "--out", out)
    assert done.returncode == 0, done.stderr
    assert re.search(r"OJ +0\.\d{3} ± 0\.\d{3}  4 splits, 2 seeds", done.stdout)
    assert re.search(r"AE +0\.\d{3} ± 0\.\d{3}  4 splits, 1 seed  p \d", done.stdout)
    assert re.search(r"OJ +-?\d\.\d{3} – \d\.\d{3}", done.stdout)
    for text in ("OJ minus each other, paired over 4 splits", "share a training", "  method\n"):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert str(out) in done.stderr
    suffixes = ("csv", "json", "md", "tex")
    names = ["curves.png", *(f"results.{suffix}" for suffix in suffixes), "tests.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    command = [sys.executable, "-m", "orbitset", "compare", *trained, "--out", out]
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and again.stdout == done.stdout


def test_json_is_one_object_with_what_python_gives(orbitset_compare, trained):
    done = orbitset_compare(*trained, "--json", "--against", "AE", "--correction", "holm")
    found = json.loads(done.stdout)
    compared = compare(list(map(Run, trained)), against="AE", correction="holm")
    assert set(found) == {"rows", "tests", "differences"}
    assert found["differences"] == {"method": {"OJ": "OJ", "AE": "AE"}}
    assert {test["against"] for test in found["tests"]} == {"OJ"}
    assert [row["mean"] for row in found["rows"]] == [row["mean"] for row in compared.rows]


def test_the_table_is_printed_alone_in_other_formats(orbitset_compare, trained):
    first, *_ = csv.DictReader(io.StringIO(orbitset_compare(*trained, "--format", "csv").stdout))
    assert (first["method"], first["n"], first["seeds"]) == ("OJ", "4", "2")
    assert "| method | mean" in orbitset_compare(*trained, "--format", "markdown").stdout
    assert r"\toprule" in orbitset_compare(*trained, "--format", "latex").stdout


def test_wrong_use_is_a_sentence_and_writes_nothing(orbitset_compare, trained, tmp_path):
    out = ["--out", tmp_path / "out"]
    fails(orbitset_compare(trained[0], *out), 2, "at least two runs")
    fails(orbitset_compare(*trained, *out, "--format", "pdf"), 2, "--format is 'pdf'")
    fails(orbitset_compare(*trained, *out, "--json", "--format", "csv"), 2, "contradict")
    fails(orbitset_compare(*trained, *out, "--against", "AEE"), 2, "did you mean AE?")
    fails(orbitset_compare(*trained, *out, "--correction", "hol"), 2, "did you mean holm?")
    fails(orbitset_compare(trained[0], tmp_path / "nowhere", *out), 2, "no run folder at")
    assert not (tmp_path / "out").exists()
    fails(orbitset_compare(*trained, "--out", trained[0]), 2, "was not written by compare")


def test_damage_is_a_failure_that_names_the_file_and_writes_nothing(
    orbitset_compare, trained, tmp_path
):
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(trained[2], run)
    (run / "metrics.jsonl").write_text("[]\n")
    fails(orbitset_compare(trained[0], run, "--out", out), 1, f"{run}/metrics.jsonl is damaged")
    (run / "results.json").unlink()
    fails(orbitset_compare(trained[0], run, "--out", out), 1, "is not finished", "--resume")
    assert not out.exists()


def test_help_shows_an_example_and_where_may_be_written(orbitset_compare):
    text = re.sub(r"\s+", " ", orbitset_compare("--help").stdout)
    assert "Example: orbitset compare" in text
    assert "new, empty or of an earlier comparison" in text
