"""Whole small runs, through the command line where the process itself matters."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from orbitset.config import with_settings
from orbitset.errors import ConfigError, DataError, RunError
from orbitset.experiments import affine_digits, affine_images, load_run, train
from orbitset.runs import Run

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "train.epochs=0.05",
    "train.evaluations=3",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.tsne_points=50",
]


def _small(method="OJ", *settings):
    return with_settings(affine_digits(method), [*SMALL, *settings])


@pytest.mark.parametrize("method", ["OJ", "OT", "OE", "ST", "EX", "AE"])
def test_every_method_trains_to_a_finished_run(tmp_path, method):
    run = Run(tmp_path / "run")
    results = train(_small(method, "train.epochs=0.005"), run)
    rows = {(row["method"], row["metric"]): row for row in results["rows"]}
    assert {"pixels", "untrained", method} == {name for name, _ in rows}
    assert rows[method, "accuracy"]["n"] == 5
    assert rows[method, "accuracy"]["repeated"] == "draws"
    assert json.loads((run / "results.json").read_text()) == results
    with np.load(run / "arrays.npz") as arrays:
        assert arrays["rectified"].shape == (12, 1, 32, 32)
        assert arrays["tsne"].shape == (50, 2)


def test_untrained_row_is_the_encoder_before_the_first_step(tmp_path):
    run = Run(tmp_path / "run")
    results = train(_small("OE", "train.epochs=0.005"), run)
    untrained = next(r for r in results["rows"] if r["method"] == "untrained")
    assert run.records()[0]["step"] == 0
    assert untrained["mean"] == run.records()[0]["accuracy"]["mean"]


def test_loaded_run_gives_the_codes_it_was_saved_with(tmp_path):
    train(_small("OJ", "train.epochs=0.005"), Run(tmp_path / "run"))
    _, first, _ = load_run(Run(tmp_path / "run"))
    _, second, _ = load_run(Run(tmp_path / "run"))
    images = torch.rand(4, 1, 32, 32)
    assert torch.equal(first.encode(images), second.encode(images))
    assert not first.training


def test_resume_with_other_settings_names_what_differs(tmp_path):
    run = Run(tmp_path / "run")
    train(_small("OJ", "train.epochs=0.005"), run)
    with pytest.raises(ConfigError, match=r"loss\.margin: 0\.2 → 0\.9"):
        changed = with_settings(_small("OJ", "train.epochs=0.005"), ["loss.margin=0.9"])
        train(changed, run, resume=True)


def test_existing_run_is_left_alone_without_resume_or_overwrite(tmp_path):
    run = Run(tmp_path / "run")
    train(_small("OJ", "train.epochs=0.005"), run)
    before = {p.name: p.read_bytes() for p in run.path.iterdir() if p.is_file()}
    with pytest.raises(RunError, match="already holds a run"):
        train(_small("OJ", "train.epochs=0.005"), run)
    assert before == {p.name: p.read_bytes() for p in run.path.iterdir() if p.is_file()}


def test_wrong_data_is_found_before_an_existing_run_is_overwritten(tmp_path):
    run = Run(tmp_path / "run")
    train(_small("OJ", "train.epochs=0.005"), run)
    before = (run / "results.json").read_bytes()
    with pytest.raises(DataError):
        train(replace(_small(), data=str(tmp_path)), run, overwrite=True)
    assert (run / "results.json").read_bytes() == before


def test_images_without_labels_are_trained_and_judged_by_invariance(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 14, 14), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    config = affine_images(str(tmp_path / "images.npy"), 14, 24)
    config = with_settings(config, [*SMALL, "orbits.orbits_per_batch=6", "train.epochs=0.1"])
    rows = train(config, Run(tmp_path / "run"))["rows"]
    assert {row["metric"] for row in rows} == {"invariance", "selectivity"}


def _command(out, *more):
    settings = [part for setting in SMALL for part in ("--set", setting)]
    every_step = ["--set", "train.checkpoint_every_s=0", "--set", "train.epochs=0.2"]
    base = [sys.executable, "-m", "orbitset", "train", "affine-digits", "--out", str(out)]
    return [*base, *settings, *every_step, "--device", "cpu", *more]


def test_killed_at_any_moment_and_resumed_gives_bit_identical_metrics(tmp_path):
    subprocess.run(_command(tmp_path / "whole", "--quiet"), check=True, capture_output=True)
    rng = random.Random(0)
    killed = 0
    for _ in range(20):
        process = subprocess.Popen(
            _command(tmp_path / "killed", "--resume", "--quiet"), stderr=subprocess.PIPE
        )
        _wait_for_a_step(tmp_path / "killed", process)
        time.sleep(rng.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            break
        killed += 1
        if killed == 5:
            process = subprocess.run(
                _command(tmp_path / "killed", "--resume", "--quiet"), stderr=subprocess.PIPE
            )
            break
    assert killed >= 3, process.stderr
    for name in ("metrics.jsonl", "results.json", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


def _wait_for_a_step(folder, process):
    """Until this process has written a checkpoint of its own, or ended."""
    path = folder / "checkpoint" / "latest.safetensors"
    before = path.stat().st_mtime_ns if path.exists() else None
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime_ns != before:
            return
        time.sleep(0.01)
