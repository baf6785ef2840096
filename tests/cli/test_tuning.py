"""`orbitset tune`: what it prints, how it is killed and goes on, what it refuses."""

import io
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import numpy as np
import pytest

from orbitset.cli.main import main
from orbitset.runs import Run

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
]
SETTINGS = [part for setting in SMALL for part in ("--set", setting)]


def _command(*arguments):
    return [sys.executable, "-m", "orbitset", "tune", *map(str, arguments)]


def _tune(*arguments):
    """As a process would do it, but in this one, which has torch loaded already."""
    printed, said = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["orbitset", "tune", *map(str, arguments)])
        with redirect_stdout(printed), redirect_stderr(said):
            main()
    return SimpleNamespace(code=ended.value.code, stdout=printed.getvalue(), stderr=said.getvalue())


def _refuses(done, *texts):
    assert done.code == 2, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    for text in texts:
        assert text in done.stderr


def _stop(out, how, *more):
    """Start a search, and stop it in the middle of its second trial."""
    process = subprocess.Popen(
        _command("affine-digits", "--out", out, "--quiet", *more), stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not list(out.glob("trials/*/001/checkpoint/*.safetensors")):
        time.sleep(0.01)
    process.send_signal(how)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0, "it ended before it could be stopped"
    return error


def _completed(out):
    methods = Run(out).read_json("results.json")["methods"]
    return {method: [t["number"] for t in found["trials"]] for method, found in methods.items()}


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tune"
    asked = ["--methods", "oj,EX", "--trials", 2, "--images", 300, *SETTINGS]
    return out, _tune("affine-digits", *asked, "--out", out)


def test_help_shows_an_example_and_json():
    done = _tune("--help")
    assert "Example: orbitset tune" in done.stdout and "--json" in done.stdout


def test_a_narrow_table_has_settings_to_paste(search):
    out, done = search
    assert done.code == 0, done.stderr
    best = Run(out).read_json("results.json")["methods"]["OJ"]["best"]
    assert max(map(len, done.stdout.splitlines())) <= 80
    own = done.stdout.split("\nOJ ")[1].split("\nEX ")[0].split("\n", 1)[1]
    pasted = [text for text in shlex.split(own.replace("\\\n", " ")) if text != "--set"]
    assert pasted == best["settings"]
    assert re.search(rf"^OJ +{best['value']:.3f} +0", done.stdout, re.M)
    assert "OJ 2/2  best 0." in done.stderr and "left" in done.stderr


def test_a_finished_search_is_printed_again_by_resuming_it(search):
    out, _ = search
    done = _tune("affine-digits", "--resume", "--out", out, "--json", "--quiet")
    assert json.loads(done.stdout) == Run(out).read_json("results.json")
    assert done.stderr == ""
    assert Run(out).resume_command == f"orbitset tune affine-digits --resume --out {out}"


def test_a_killed_search_goes_on_to_exactly_as_many_trials(tmp_path):
    """With processes of its own, which must not outlive it."""
    out = tmp_path / "run"
    more = ["--methods", "OE", "--trials", 2, "--images", 1500, "--jobs", 2, *SETTINGS]
    _stop(out, signal.SIGKILL, *more)
    assert not (out / "results.json").exists()
    done = _tune("affine-digits", "--out", out, "--resume", *more)
    assert done.code == 0, done.stderr
    assert _completed(out) == {"OE": [0, 1]}
    assert "resumed" in Run(out / "trials/OE/001").read_json("environment.json")


def test_ctrl_c_says_how_to_go_on(tmp_path):
    out = tmp_path / "my search"
    more = ["--methods", "AE", "--trials", 2, "--images", 1500, *SETTINGS]
    error = _stop(out, signal.SIGINT, *more)
    assert "Traceback" not in error
    advice = shlex.split(error.split("go on with: ")[1].splitlines()[0])
    assert advice[:2] == ["orbitset", "tune"]
    done = _tune(*advice[2:], "--quiet")
    assert done.code == 0, done.stderr
    assert _completed(out) == {"AE": [0, 1]}


def test_wrong_input_is_refused_and_nothing_is_written(tmp_path):
    out = ["--out", tmp_path / "run"]
    _refuses(_tune("affine-digits", "--methods", "OJ,OI", *out), "'OI'", "did you mean")
    _refuses(_tune("affine-digits", "--trials", 0, *out), "trials is 0")
    _refuses(_tune("afine-digits", *out), "did you mean affine-digits?")
    _refuses(_tune("affine-digits", "--set", "train.epochs=3", *out), "train.epochs", "--images")
    assert not (tmp_path / "run").exists()


def test_a_search_is_not_overwritten_nor_taken_for_another(search):
    out, _ = search
    before = (out / "results.json").read_bytes()
    _refuses(_tune("affine-digits", "--out", out, *SETTINGS), "already holds a run", "--resume")
    _refuses(_tune("affine-digits", "--out", out, "--overwrite"), "--overwrite")
    _refuses(_tune("affine-digits", "--out", out, "--resume", "--images", 7), "images: 300 → 7")
    _refuses(_tune("affine-mnist", "--out", out, "--resume"), "holds a search of affine-digits")
    assert (out / "results.json").read_bytes() == before


def test_own_images_are_searched(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 14, 14), dtype=np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    more = ["--methods", "ST", "--trials", 1, "--images", 200, "--out", tmp_path / "run", *SETTINGS]
    done = _tune(tmp_path / "mine.npz", *more)
    assert done.code == 0, done.stderr
    advice = shlex.split(Run(tmp_path / "run").resume_command)
    assert _tune(*advice[2:]).stdout == done.stdout
