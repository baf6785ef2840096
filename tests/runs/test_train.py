"""Whole small runs, through the command line where the process itself matters."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace

import numpy as np
import processes
import pytest
import torch
from torch import nn

from orbitset.config import with_settings
from orbitset.datasets.source import open_source
from orbitset.errors import ConfigError, DataError, RunError
from orbitset.evaluation.score import Score
from orbitset.models import load_model_folder
from orbitset.protocols import Numbers, Pairs
from orbitset.protocols.images import load_parts
from orbitset.recipes.affine_images import affine_digits, affine_images
from orbitset.recipes.affine_mnist import affine_mnist
from orbitset.recipes.compose import compose
from orbitset.recipes.experiment import read_experiment
from orbitset.recipes.request import Request
from orbitset.report import write_report
from orbitset.run_folder import Run
from orbitset.runs.demo import demo_configs
from orbitset.runs.evaluate import evaluate_run
from orbitset.runs.judge import Judge
from orbitset.runs.load import load_run
from orbitset.runs.prepare import build_protocol, open_images
from orbitset.runs.train import train
from orbitset.training.interruption import Interruption
from orbitset.training.progress import Silent

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


@pytest.mark.parametrize(
    "method", ["OJ", "OT", "OE", "ST", "EX", "AE", "OT-STN", "IN", "PR+R", "SG+R-STN"]
)
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


def test_loaded_run_scores_as_it_did_at_the_end_of_training(tmp_path):
    train(_small("OJ", "train.epochs=0.005"), Run(tmp_path / "run"))
    model, _, judge = load_run(Run(tmp_path / "run"))
    record = Run(tmp_path / "run").records()[-1]["accuracy"]
    assert judge.scores(judge.encoding(model))["accuracy"].to_json() == record
    assert not model.training


def test_records_hold_the_scores_of_both_sides_of_every_split(tmp_path):
    run = Run(tmp_path / "run")
    train(_small("OE", "train.epochs=0.005", "evaluation.splits=3"), run)
    for record in run.records():
        sides = record["accuracy"]["va"], record["accuracy"]["te"]
        assert [len(side) for side in sides] == [3, 3]
        assert min(map(min, sides)) <= record["accuracy"]["mean"] <= max(map(max, sides))
    train(_small("OE", "train.epochs=0.005", "evaluation.splits=0"), Run(tmp_path / "none"))
    assert "va" not in Run(tmp_path / "none").records()[-1]["accuracy"]


def test_evaluations_can_be_asked_for_by_epoch(tmp_path):
    run = Run(tmp_path / "run")
    settings = [setting for setting in SMALL if not setting.startswith("train.evaluations")]
    settings += ["train.epochs=0.02", "train.evaluate_at=0.005,0.01,7"]
    train(with_settings(affine_digits("AE"), settings), run)
    epochs = [record["epoch"] for record in run.records()]
    assert epochs[0] == 0 and len(epochs) == 4
    assert epochs[1:] == pytest.approx([0.005, 0.01, 0.02], abs=0.003)


def test_settings_can_be_chosen_without_looking_at_the_test_images(tmp_path):
    config = _small()
    on_test, on_validation = (
        load_parts(open_source(config.data), config.orbits, on) for on in ("test", "validation")
    )
    seen = {image.numpy().tobytes() for image in on_validation.test.images}
    labelled = {image.numpy().tobytes() for image in on_validation.validation.images}
    hidden = {image.numpy().tobytes() for image in on_test.test.images}
    assert not seen & hidden and not seen & labelled
    assert len(on_validation.test) + len(on_validation.validation) == len(on_test.validation)
    assert train(_small("OJ", "evaluation.on=validation"), Run(tmp_path / "run"))["rows"]


def test_resume_with_other_settings_names_what_differs(tmp_path):
    run = Run(tmp_path / "run")
    train(_small("OJ", "train.epochs=0.005"), run)
    with pytest.raises(ConfigError, match=r"loss\.margin: None → 0\.9"):
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


def test_images_without_labels_are_trained_and_judged_by_finding_them(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 14, 14), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    config = affine_images(str(tmp_path / "images.npy"), 14, 24, has_labels=False)
    small = [
        setting for setting in SMALL if not setting.startswith(("evaluation.d", "evaluation.ts"))
    ]
    config = with_settings(config, [*small, "orbits.orbits_per_batch=6", "train.epochs=0.1"])
    assert config.keeps_best
    rows = train(config, Run(tmp_path / "run"))["rows"]
    assert {row["metric"] for row in rows} == {"top1", "invariance", "selectivity"}


@pytest.mark.parametrize("method", ["OT", "OE", "ST", "EX", "AE"])
def test_every_method_trains_on_observed_orbits(tmp_path, small_faces, method):
    run = Run(tmp_path / "run")
    results = train(small_faces(method, "train.epochs=1", "train.evaluate_at=0.5"), run)
    found = {(row["method"], row["metric"]) for row in results["rows"]}
    names = ("auc", "top1", "accuracy")
    wanted = {(m, name) for m in ("pixels", "untrained", method) for name in names}
    assert found == wanted | {(method, f"{name}_stopped") for name in names}
    assert run.is_finished


def test_of_private_images_nothing_is_kept_that_shows_them(tmp_path, small_faces, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run(tmp_path / "run")
    config = small_faces("OJ", "is_private=true", "train.epochs=1", "train.evaluate_at=0.5")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Pairs, "figures", stop)
        train(config, run)
    assert not list(tmp_path.rglob("*.safetensors")), "not even while it was not finished"
    results = train(config, run, resume=True)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(RunError, match="its weights were not kept"):
        load_run(run)
    with np.load(run / "arrays.npz") as arrays:
        assert not set(arrays)
    assert not list(run.path.rglob("*.safetensors"))
    assert run.has_results
    assert train(config, run, resume=True) == results


def test_problems_stop_or_are_left_out_and_listed(tmp_path, small_faces, face_manifest):
    rows = face_manifest.read_text().splitlines()
    manifest = face_manifest.with_name("damaged.csv")
    manifest.write_text("\n".join(row for row in rows if not row.startswith("0010")))
    config = with_settings(small_faces("AE", "train.epochs=0.1"), [f"data={manifest}"])
    with pytest.raises(
        DataError, match=r"its orbit \(person p0, session 1, light 0\) has no member"
    ):
        train(with_settings(config, ["orbits.on_problem=stop"]), Run(tmp_path / "stop"))
    run = Run(tmp_path / "skip")
    train(config, run)
    (left,) = json.loads((run / "left_out.json").read_text())["rows"]
    assert (left["row"], left["others"]) == (2, [5])


def _arguments(out, *more):
    settings = [*SMALL, "train.checkpoint_every_s=0", "train.epochs=0.2"]
    base = ["train", "affine-digits", "--out", str(out), "--device", "cpu", *more]
    return [*base, *(part for setting in settings for part in ("--set", setting))]


@pytest.fixture(scope="module")
def finish(orbitset):
    """Goes on with a training until its end."""

    def go_on(out):
        done = orbitset(*_arguments(out, "--resume", "--quiet"))
        assert done.returncode == 0, done.stderr

    return go_on


def _same_results(a, b):
    for name in ("metrics.jsonl", "results.json", "model.safetensors"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, "-m", "orbitset", *_arguments(out, "--quiet")]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The same training as a kill right after the last step leaves it."""

    def stop(*_):
        raise KeyboardInterrupt

    run = Run(tmp_path_factory.mktemp("ended") / "run")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("orbitset.runs.train._finish", stop)
        train(_small("OJ", "train.checkpoint_every_s=0", "train.epochs=0.2"), run)
    assert (run / "checkpoint").exists()
    return run.path


def test_killed_at_any_moment_and_resumed_gives_bit_identical_metrics(tmp_path, whole, finish):
    out, rng, killed = tmp_path / "killed", random.Random(0), 0
    while killed < 5:
        process = processes.started(*_arguments(out, "--resume", "--quiet"))
        _wait_for_a_step(out, process)
        time.sleep(rng.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode != -signal.SIGKILL:
            break
        killed += 1
    assert killed >= 3
    finish(out)
    _same_results(whole, out)


def test_killed_while_starting_or_finishing_can_be_resumed(tmp_path, whole, ended, finish):
    """The folder as a kill leaves it: in the middle of the first write, before the environment,
    before the first checkpoint, and after the last step."""
    half = tmp_path / "half"
    half.mkdir()
    (half / ".config.json.1.part").write_text("{")
    finish(half)
    _same_results(whole, half)
    for name, left, missing in (
        ("start", whole, ["environment.json", "results.json", "arrays.npz", "report.html"]),
        ("end", ended, []),
    ):
        out = tmp_path / name
        shutil.copytree(left, out)
        for file in missing:
            (out / file).unlink()
        cut_off = (out / "metrics.jsonl").read_text() + '{"step": 99'
        (out / "metrics.jsonl").write_text(cut_off)
        finish(out)
        _same_results(whole, out)
        assert (out / "report.html").exists()


def test_killed_while_overwriting_does_not_pass_old_results_for_new(
    tmp_path, ended, orbitset, fails
):
    out = tmp_path / "run"
    shutil.copytree(ended, out)
    (out / "metrics.jsonl").unlink()  # cleared, with the old checkpoint still there
    done = orbitset(*_arguments(out, "--resume"))
    fails(done, 1, "does not hold the metrics that belong to its checkpoint")


def test_resumed_run_records_where_it_went_on(tmp_path, ended, finish):
    out = tmp_path / "run"
    shutil.copytree(ended, out)
    finish(out)
    environment = json.loads((out / "environment.json").read_text())
    assert len(environment["resumed"]) == 1
    assert "torch" in environment["resumed"][0]["versions"]


def test_a_finished_training_does_not_keep_the_state_to_resume_from(tmp_path, ended):
    run, config = Run(tmp_path / "run"), read_experiment(Run(ended).config)
    shutil.copytree(ended, run.path)
    results = train(config, run, resume=True)
    tensors = sorted(path.name for path in run.path.rglob("*.safetensors"))
    assert tensors == ["known.safetensors", "model.safetensors"]
    assert not (run / "checkpoint").exists()
    files = [path for path in run.path.iterdir() if path.is_file() and path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert train(config, run, resume=True) == results
    assert before == {path: path.stat().st_mtime_ns for path in before}
    shutil.copytree(ended / "checkpoint", run / "checkpoint")  # killed before it was removed
    assert train(config, run, resume=True) == results
    assert not (run / "checkpoint").exists()


def test_two_processes_do_not_write_one_run(tmp_path):
    run = Run(tmp_path / "run")
    with run.locked(), pytest.raises(RunError, match="another process is writing"):
        train(_small(), run)


class _Interrupt(Silent):
    """Asks a training to stop after so many steps."""

    def __init__(self, step, interruption):
        self.step, self.interruption = step, interruption

    def update(self, done, images, terms):
        self.interruption.is_requested |= done == self.step


def _stopped(config, run, step, **more):
    stop = Interruption()
    return train(config, run, progress=_Interrupt(step, stop), interruption=stop, **more)


def test_a_stopped_training_is_a_model_and_goes_on_as_if_it_had_not_been_stopped(tmp_path):
    config, run = _small(), Run(tmp_path / "stopped")
    train(config, Run(tmp_path / "whole"))
    steps = Run(tmp_path / "whole").records()[-1]["step"]
    for at in (10, 25):  # the second time it is resumed, and has other results already
        results = _stopped(config, run, at, resume=True)
        assert results["stopped"] == {"step": at, "steps": steps}
        assert results["notes"][0] == f"stopped after {at} of {steps} steps"
        assert not run.has_results and run.records()[-1]["step"] < at
        assert load_model_folder(run.path).description.trained.images > run.records()[-1]["images"]
        model, _, judge = load_run(run)
        rows = {(row["method"], row["metric"]): row["mean"] for row in results["rows"]}
        anew = judge.scores(judge.encoding(model))["accuracy"]
        assert anew.mean == rows["OJ", "accuracy"]
        assert "stopped after" in write_report(run).read_text()
    train(config, run, resume=True)
    _same_results(tmp_path / "whole", run.path)
    assert run.has_results and not (run / "checkpoint").exists()


@pytest.mark.parametrize("best", [0.25, 3.0])
def test_a_stopped_training_keeps_the_weights_that_were_best(
    tmp_path, small_faces, monkeypatch, best
):
    """By the scores of each evaluation, or of the one that is made where it stops."""
    scores = {0.25: (0.1, 0.9, 0.2, 0.3), 3.0: (0.1, 0.2, 0.3, 0.9)}[best]
    weights = []

    def record(self, model):
        weights.append(deepcopy(model.state_dict()))
        score = scores[len(weights) - 1]
        each = Score(mean=score, sides={"va": [score], "te": [score]}).to_json()
        return dict.fromkeys(self.protocol.about.measures, each)

    monkeypatch.setattr(Judge, "record", record)
    config = small_faces("OE", "train.epochs=3", "train.evaluate_at=0.25,1")
    run = Run(tmp_path / "run")
    step = _stopped(config, run, 11)["stopped"]["step"]
    assert [record["step"] < step for record in run.records()] == [True] * 3
    kept = weights[scores.index(0.9)]
    found = load_model_folder(run.path).network.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in found.items())


def test_a_killed_training_can_be_finished(tmp_path, ended, orbitset, fails):
    run = Run(tmp_path / "run")
    shutil.copytree(ended, run.path)
    done = orbitset("finish", run.path, "--quiet")
    assert done.returncode == 0 and run.is_finished, done.stderr

    class Stop(Silent):
        def update(self, done, images, terms):
            if done == 9:
                raise KeyboardInterrupt

    killed = Run(tmp_path / "killed")
    with pytest.raises(KeyboardInterrupt):
        train(_small("AE", "train.checkpoint_every_s=0"), killed, progress=Stop())
    model = ["export", killed.path, "--out", tmp_path / "model"]
    fails(orbitset(*model), 2, "not finished", f"orbitset finish {killed.path}")
    fails(orbitset("evaluate", killed.path), 2, "not finished", f"orbitset finish {killed.path}")
    done = orbitset("finish", killed.path, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "stopped after 8 of " in done.stderr
    assert f"orbitset train --resume --out {killed.path}" in done.stderr
    assert orbitset(*model).returncode == 0
    shutil.rmtree(killed / "checkpoint")
    fails(orbitset("finish", killed.path), 1, "has no checkpoint")


class Dropping(nn.Sequential):
    """A network that draws random numbers in training."""

    def __init__(self):
        super().__init__(nn.AvgPool2d(4), nn.Flatten(), nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("OJ", ["loss.mining=semihard-random"]),
        ("OJ", [f"encoder.backbone={__name__}:Dropping"]),
        ("IN+R", ["loss.memory=100", "loss.memory_after=15"]),
        ("PR", []),
    ],
)
def test_what_is_drawn_or_remembered_resumes_exactly(tmp_path, monkeypatch, method, settings):
    monkeypatch.setenv("ORBITSET_TRUST", __name__)
    config = _small(method, *settings, "train.checkpoint_every_s=0")
    train(config, Run(tmp_path / "a"))
    torch.rand(3)  # what others draw does not matter
    run = Run(tmp_path / "b")

    class Stop(Silent):
        def update(self, done, images, terms):
            if done == 20:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, run, progress=Stop())
    train(config, run, resume=True)
    _same_results(tmp_path / "a", run.path)


@pytest.mark.parametrize("method", ["EX", "OE"])
def test_interrupted_between_any_two_lines_resumes_exactly(tmp_path, method):
    """Ctrl-C may come inside the optimizer's step; the checkpoint must not be of a half-made step."""
    config = _small(method, "train.checkpoint_every_s=0")
    train(config, Run(tmp_path / "a"))
    run = Run(tmp_path / "b")
    steps = []

    class Interrupted(torch.optim.Adam):
        def step(self, closure=None):
            super().step(closure)
            steps.append(1)
            if len(steps) == 9:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch.optim, "Adam", Interrupted)
        train(config, run)
    train(config, run, resume=True)
    _same_results(tmp_path / "a", run.path)


def test_one_shot_task_is_the_same_for_every_method_and_seed():
    tasks = []
    for method, seed in (("OJ", 0), ("AE", 5)):
        config = _small(method, f"seed={seed}")
        tasks.append(build_protocol(config, open_images(config, "cpu")).task)
    first, second = tasks
    assert torch.equal(first.labelled_sets, second.labelled_sets)
    assert torch.equal(first.query_orbit, second.query_orbit)
    assert torch.equal(first.test.params_NMQ, second.test.params_NMQ)


def test_fresh_orbits_train_end_to_end(tmp_path):
    results = train(_small("OE", "orbits.mode=fresh", "train.epochs=0.005"), Run(tmp_path / "run"))
    assert results["rows"]


@pytest.mark.skipif("ORBITSET_DATA" not in os.environ, reason="ORBITSET_DATA names no data")
def test_affine_mnist_takes_a_few_steps(tmp_path):
    settings = ["train.epochs=0.0002", "train.evaluations=1", "evaluation.test_images=50"]
    config = with_settings(affine_mnist("OJ"), [*settings, "evaluation.tsne_points=0"])
    run = Run(tmp_path / "run")
    train(config, run)
    assert run.records()[-1]["images"] >= 330


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_orbit_joint_of_the_demo_is_at_least_twice_raw_pixels(tmp_path, seed):
    config = demo_configs(seed)[0]
    rows = train(config, Run(tmp_path / "run"))["rows"]
    accuracy = {row["method"]: row["mean"] for row in rows if row["metric"] == "accuracy"}
    print(seed, accuracy)
    assert config.method == "OJ"
    assert accuracy["OJ"] >= 2 * accuracy["pixels"]


def _wait_for_a_step(folder, process):
    """Until this process has written a checkpoint of its own, or ended."""
    path = folder / "checkpoint" / "latest.safetensors"
    before = path.stat().st_mtime_ns if path.exists() else None
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime_ns != before:
            return
        time.sleep(0.01)


def test_a_training_begins_with_the_weights_of_a_model(tmp_path):
    config = with_settings(_small(), ["train.epochs=0.02", "seed=3"])
    train(config, Run(tmp_path / "first"))
    begun = replace(config, init=str(tmp_path / "first"), seed=4)
    train(begun, Run(tmp_path / "second"))
    first, second = (Run(tmp_path / name).records() for name in ("first", "second"))
    assert second[0]["accuracy"]["mean"] == first[-1]["accuracy"]["mean"]
    assert first[0]["accuracy"]["mean"] != first[-1]["accuracy"]["mean"]
    about = [
        json.loads((tmp_path / name / "model.json").read_text()) for name in ("first", "second")
    ]
    assert about[1]["trained"]["init"] == about[0]["id"]
    for setting in ("encoder.contrast=local", "encoder.code_norm=unit", "encoder.pool=4"):
        with pytest.raises(ConfigError, match=rf"another network .*{setting.partition('=')[0]}"):
            train(with_settings(begun, [setting]), Run(tmp_path / "third"))
    shutil.rmtree(tmp_path / "first")  # it is not needed any more
    results = train(begun, Run(tmp_path / "second"), resume=True)
    assert "begun with" in {row["method"] for row in results["rows"]}


@pytest.mark.parametrize("moment", ["before its environment", "before its first checkpoint"])
def test_a_training_that_is_resumed_begins_with_the_weights_of_its_model(tmp_path, moment):
    train(_small("OJ", "train.epochs=0.02"), Run(tmp_path / "first"))
    begun = replace(_small("OJ", "train.epochs=0.01"), init=str(tmp_path / "first"))
    train(begun, Run(tmp_path / "whole"))

    def stop(*_, **__):
        raise KeyboardInterrupt

    run = Run(tmp_path / "run")
    owner, name = (Run, "note_environment") if "environment" in moment else (Silent, "start")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, stop)
        train(begun, run)
    assert not (run / "checkpoint").exists()
    train(begun, run, resume=True)
    _same_results(tmp_path / "whole", run.path)
    described = [Run(tmp_path / name).read_json("model.json") for name in ("first", "run")]
    assert described[1]["trained"]["init"] == described[0]["id"]


def test_private_images_are_learned_from_the_weights_of_a_model_after_a_resume(
    tmp_path, small_faces
):
    asked = ("train.epochs=1", "train.evaluate_at=0.5")
    train(small_faces("OJ", *asked), Run(tmp_path / "first"))
    begun = replace(small_faces("OJ", *asked), is_private=True, init=str(tmp_path / "first"))
    train(begun, Run(tmp_path / "whole"))

    class Stop(Silent):
        def update(self, done, images, terms):
            raise KeyboardInterrupt

    run = Run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(begun, run, progress=Stop())
    train(begun, run, resume=True)
    assert run.records() == Run(tmp_path / "whole").records()


INFO_NCE = """
import torch

def info_nce(codes, batch, *, temperature: float = 0.5):
    similarity = torch.nn.functional.normalize(codes) @ torch.nn.functional.normalize(codes).T
    others = ~torch.eye(len(codes), dtype=torch.bool)
    same = (batch.orbits[:, None] == batch.orbits) & others
    logits = (similarity / temperature).masked_fill(~others, -torch.inf).log_softmax(1)
    return -logits[same].mean()
"""


def test_a_loss_from_outside_is_trained_resumed_and_evaluated(tmp_path, monkeypatch):
    (tmp_path / "infonce_losses.py").write_text(INFO_NCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ORBITSET_TRUST", "infonce_losses")
    name = "infonce_losses:info_nce"

    def asked(*settings):
        settings = (*SMALL, "orbits.members_per_batch=2", "train.checkpoint_every_s=0", *settings)
        return compose(Request(source="affine-digits", method=name, settings=settings)).config

    config, run = asked("loss.temperature=0.2"), Run(tmp_path / "whole")
    results = train(config, run)
    assert {row["method"] for row in results["rows"]} == {"pixels", "untrained", name}
    assert (run.config["method"], run.config["loss"]) == (name, {"temperature": 0.2})
    train(asked(), Run(tmp_path / "warmer"))
    assert run.records()[0] == Run(tmp_path / "warmer").records()[0]
    assert run.records()[-1] != Run(tmp_path / "warmer").records()[-1]

    class Stop(Silent):
        def update(self, done, images, terms):
            if done == 20:
                raise KeyboardInterrupt

    again = Run(tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        train(config, again, progress=Stop())
    train(compose(Request(), resumed=again).config, again, resume=True)
    _same_results(run.path, again.path)
    anew = {row["metric"]: row for row in evaluate_run(run, Numbers(shots=(1,), draws=5))}
    (trained,) = (
        row for row in results["rows"] if (row["method"], row["metric"]) == (name, "accuracy")
    )
    assert anew["accuracy"] == trained
    with pytest.raises(ConfigError, match="does not use loss.margin, which belongs to OJ"):
        asked("loss.margin=3")
    with pytest.raises(ConfigError, match=r"loss\.temperature is 'cold'; give a number"):
        asked("loss.temperature=cold")


BAD = """
import torch

def of_many(codes, batch):
    return codes

def without_loss(codes, batch):
    return {"near": codes.mean()}

def failing(codes, batch):
    return codes.mean() * (1 / len([]))
"""


@pytest.mark.parametrize(
    ("loss", "error"),
    [
        (
            "of_many",
            r"the loss bad_losses:of_many gave a tensor of shape \(\d+, 16\); give one number",
        ),
        ("without_loss", "gave the terms near; give one number, or a dict of numbers with 'loss'"),
        ("failing", "division by zero"),
    ],
)
def test_a_loss_that_fails_on_the_first_batch_leaves_no_folder(tmp_path, monkeypatch, loss, error):
    (tmp_path / "bad_losses.py").write_text(BAD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ORBITSET_TRUST", "bad_losses")
    request = Request(source="affine-digits", method=f"bad_losses:{loss}", settings=tuple(SMALL))
    with pytest.raises((ConfigError, ZeroDivisionError), match=error):
        train(compose(request).config, Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_images_and_models_that_only_a_configuration_names_are_not_imported(tmp_path, monkeypatch):
    monkeypatch.setenv("ORBITSET_TRUST", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_code.py").write_text("open('sprung', 'w')")
    for setting in ("data", "encoder.backbone"):
        config = _small("OJ", f"{setting}=evil_code:thing")
        for load in (
            lambda config=config: open_images(config, "cpu"),
            lambda config=config: train(config, Run(tmp_path / "run")),
        ):
            with pytest.raises(ConfigError, match="code that a file names runs only if you trust"):
                load()
    assert not (tmp_path / "sprung").exists() and not (tmp_path / "run").exists()
