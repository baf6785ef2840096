"""`orbitset tune`: what it prints, how it is killed and goes on, what it refuses."""

import json
import re
import shlex
import signal
import time

import numpy as np
import pytest

from orbitset.cli.tuning import _text
from orbitset.run_folder import Run

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "orbits.canvas_px=16",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
]
SETTINGS = [part for setting in SMALL for part in ("--set", setting)]


def _stop(process, out, how):
    """Stop a search in the middle of its second trial."""
    while process.poll() is None and not list(
        out.glob("trials/*/001/seed-0/checkpoint/*.safetensors")
    ):
        time.sleep(0.01)
    process.send_signal(how)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0, "it ended before it could be stopped"
    return error


def _completed(out):
    methods = Run(out).read_json("results.json")["methods"]
    return {method: [t["number"] for t in found["trials"]] for method, found in methods.items()}


@pytest.fixture(scope="module")
def search(orbitset, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tune"
    asked = ["--methods", "oj,EX", "--trials", 2, "--images", 300, *SETTINGS]
    return out, orbitset("tune", "affine-digits", *asked, "--out", out)


def test_a_narrow_table_has_settings_to_paste(search):
    out, done = search
    assert done.returncode == 0, done.stderr
    best = Run(out).read_json("results.json")["methods"]["OJ"]["best"]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.startswith("scored by one-shot accuracy on validation images\n")
    own = done.stdout.split("\nOJ ")[1].split("\nEX ")[0].split("\n", 1)[1]
    pasted = [text for text in shlex.split(own.replace("\\\n", " ")) if text != "--set"]
    assert pasted == best["settings"]
    assert re.search(rf"^OJ +{best['value']:.3f} +0", done.stdout, re.M)
    assert "OJ 2/2  best 0." in done.stderr and "left" in done.stderr


def test_a_finished_search_is_printed_again_by_resuming_it(orbitset, search):
    out, _ = search
    done = orbitset("tune", "affine-digits", "--resume", "--out", out, "--json", "--quiet")
    assert json.loads(done.stdout) == Run(out).read_json("results.json")
    assert done.stderr == ""
    assert Run(out).resume_command == f"orbitset tune affine-digits --resume --out {out}"


@pytest.mark.slow
def test_a_killed_search_goes_on_to_exactly_as_many_trials(orbitset, start, tmp_path):
    """With processes of its own, which must not outlive it."""
    out = tmp_path / "run"
    more = ["--methods", "OE", "--trials", 2, "--images", 1500, "--jobs", 2, *SETTINGS]
    _stop(start("tune", "affine-digits", "--out", out, "--quiet", *more), out, signal.SIGKILL)
    assert not (out / "results.json").exists()
    done = orbitset("tune", "affine-digits", "--out", out, "--resume", *more)
    assert done.returncode == 0, done.stderr
    assert _completed(out) == {"OE": [0, 1]}
    assert "resumed" in Run(out / "trials/OE/001/seed-0").read_json("environment.json")


def test_ctrl_c_says_how_to_go_on(orbitset, start, tmp_path):
    out = tmp_path / "my search"
    more = ["--methods", "AE", "--trials", 2, "--images", 1500, *SETTINGS]
    process = start("tune", "affine-digits", "--out", out, "--quiet", *more)
    error = _stop(process, out, signal.SIGINT)
    assert "Traceback" not in error
    advice = shlex.split(error.split("go on with it: ")[1].splitlines()[0])
    assert advice[:2] == ["orbitset", "tune"]
    done = orbitset(*advice[1:], "--quiet")
    assert done.returncode == 0, done.stderr
    assert _completed(out) == {"AE": [0, 1]}


def test_wrong_input_is_refused_and_nothing_is_written(orbitset, fails, tmp_path):
    out = ["--out", tmp_path / "run"]
    fails(orbitset("tune", "affine-digits", "--methods", "OJ,OI", *out), 2, "'OI'", "did you mean")
    fails(orbitset("tune", "affine-digits", "--trials", 0, *out), 2, "trials is 0")
    fails(orbitset("tune", "afine-digits", *out), 2, "did you mean affine-digits?")
    fails(
        orbitset("tune", "affine-digits", "--set", "train.epochs=3", *out),
        2,
        "train.epochs",
        "--images",
    )
    assert not (tmp_path / "run").exists()


def test_a_search_is_not_overwritten_nor_taken_for_another(orbitset, fails, search):
    out, _ = search
    before = (out / "results.json").read_bytes()
    fails(
        orbitset("tune", "affine-digits", "--out", out, *SETTINGS),
        2,
        "already holds a run",
        "--resume",
    )
    fails(orbitset("tune", "affine-digits", "--out", out, "--overwrite"), 2, "--overwrite")
    fails(
        orbitset("tune", "affine-digits", "--out", out, "--resume", "--images", 7),
        2,
        "images: 300 → 7",
    )
    fails(
        orbitset("tune", "affine-mnist", "--out", out, "--resume"),
        2,
        "holds a search of affine-digits",
    )
    assert (out / "results.json").read_bytes() == before


def test_own_images_are_searched(orbitset, tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 14, 14), dtype=np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    more = ["--methods", "ST", "--trials", 1, "--images", 200, "--out", tmp_path / "run", *SETTINGS]
    done = orbitset("tune", tmp_path / "mine.npz", *more)
    assert done.returncode == 0, done.stderr
    advice = shlex.split(Run(tmp_path / "run").resume_command)
    assert orbitset("tune", *advice[2:]).stdout == done.stdout


def test_grouped_images_are_searched_and_the_best_is_a_command(
    orbitset, fails, face_manifest, tmp_path
):
    orbits = ["--orbit", "person,session,light", "--label", "person"]
    asked = [*orbits, "--split", "session=1,2/3/4", "--augment"]
    more = [
        "--methods",
        "OT",
        "--trials",
        2,
        "--images",
        60,
        "--out",
        tmp_path / "run",
        *SETTINGS[:4],
    ]
    done = orbitset("tune", face_manifest, *asked, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("scored by one-shot accuracy on validation images\n")
    command = done.stdout.split("best settings:\n\n")[1].replace("\\\n", " ")
    words = shlex.split(command)
    assert words[:3] == ["orbitset", "train", str(face_manifest)]
    assert words[3 : 3 + len(asked)] == asked
    assert words.count("--augment") == 1 and "--no-augment" not in words
    trained = orbitset(*words[1:], "--epochs", 1, "--out", tmp_path / "trained")
    assert trained.returncode == 0, trained.stderr
    best = Run(tmp_path / "run").read_json("results.json")["methods"]["OT"]["best"]
    trial = Run(tmp_path / f"run/trials/OT/{best['trial']:03}/seed-0").config
    assert Run(tmp_path / "trained").config["orbits"] == trial["orbits"]
    assert Run(tmp_path / "trained").config["loss"] == trial["loss"]
    again = orbitset("tune", face_manifest, "--resume", "--out", tmp_path / "run")
    assert again.stdout == done.stdout
    refused = orbitset("tune", face_manifest, *orbits, "--split", "session=1,2/3", *more[:-6])
    fails(refused, 2, "no validation orbits", "--split")


def test_trials_that_score_the_same_are_said():
    best = {"measure": "top1", "epoch": 1.0, "options": [], "command": None}
    found = {
        name: {
            "best": {"value": max(values), **best},
            "trials": [{"value": value} for value in values],
        }
        for name, values in {"OT": (0.5, 1.0), "IN": (1.0, 0.75)}.items()
    }
    assert "2 of 4 trials scored 1.000: the validation images are too few" in _text(
        {"methods": found}
    )
    found["OT"]["trials"][1]["value"] = 0.9
    assert "trials scored" not in _text({"methods": found})
