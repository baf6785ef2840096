"""How long a training is, and how much of it there is time for."""

import time
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from orbitset.config import with_settings
from orbitset.datasets.source import open_source
from orbitset.errors import ConfigError
from orbitset.protocols.images import Opened
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.experiment import read_experiment
from orbitset.run_folder import Run
from orbitset.runs.length import (
    Pace,
    _Timed,
    estimated,
    evaluation_steps,
    measure,
    num_steps,
    shortened,
    step_seconds,
)
from orbitset.runs.prepare import build_model, build_objective, open_images
from orbitset.runs.train import train
from orbitset.training.fit import TrainConfig
from orbitset.training.progress import Silent


@pytest.fixture(autouse=True)
def _timed_briefly(monkeypatch):
    monkeypatch.setattr("orbitset.runs.length._TIMED_S", 0.0)


@pytest.fixture(scope="module")
def planned(small_faces):
    config = small_faces("OE", "train.epochs=100", "train.evaluate_at=10,20,30,40,50,60,70,80,90")
    return config, open_images(config, "cpu")


def _seconds(config, images, pace):
    evaluations = len(evaluation_steps(config, images))
    return num_steps(config, images) * pace.step_s + evaluations * pace.evaluation_s + pace.after_s


def test_a_training_that_is_short_enough_stays_as_it_is(planned):
    config, images = planned
    pace = Pace(1.0, 5.0)
    seconds = _seconds(config, images, pace)
    assert shortened(config, images, pace, seconds) is config
    assert shortened(config, images, pace, seconds - 1) is not config


@pytest.mark.parametrize(("pace", "evaluations"), [(Pace(1.0, 2.0), 10), (Pace(0.5, 12.0), 3)])
def test_a_training_is_shortened_to_the_time_there_is(planned, pace, evaluations):
    config, images = planned
    shorter = shortened(config, images, pace, 200)
    assert 180 < _seconds(shorter, images, pace) <= 200
    steps = sorted(evaluation_steps(shorter, images))
    assert len(steps) == evaluations + 1 and steps[-1] == num_steps(shorter, images)
    assert max(b - a for a, b in zip(steps, steps[1:], strict=False)) <= steps[1] + 1
    assert shorter.train.patience == config.train.patience


def test_too_short_a_time_is_refused(planned):
    with pytest.raises(
        ConfigError,
        match="a step takes 40 s here .* a model and a report 50 s; give at least 1.8 minutes mo",
    ):
        shortened(*planned, Pace(40, 20), 30)


def test_timing_leaves_everything_as_it_was(planned):
    config, images = planned
    model, loss = build_model(config, images), build_objective(config, images)
    weights, random = deepcopy(model.state_dict()), torch.get_rng_state()
    assert step_seconds(config, model, loss, images.batches) > 0
    assert images.batches.position == 0 and torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("head_first", "timed"), [(0.1, 0.0), (1.0, 1.0)])
def test_steps_are_timed_in_which_all_weights_learn_that_ever_do(monkeypatch, head_first, timed):
    configs = []

    def fit(*_, config, recorder, **__):
        configs.append(config)
        for step in (1, 2):
            recorder.save(SimpleNamespace(step=step))

    monkeypatch.setattr("orbitset.runs.length.fit", fit)
    train = TrainConfig(head_first=head_first, unfreeze=0.5 * (head_first < 1))
    config, batches = SimpleNamespace(train=train, rate_shares={}), SimpleNamespace(position=0)
    assert step_seconds(config, nn.Linear(1, 1), nn.Identity(), batches) >= 0
    assert (configs[0].head_first, configs[0].unfreeze) == (timed, 0)


def test_a_slow_first_step_or_evaluation_does_not_count(planned, monkeypatch):
    """It loads code and memory; a pace of it would promise a far longer training."""
    monkeypatch.setattr("orbitset.runs.length._TIMED_S", 1.0)
    now, slow_s = [0.0], [5.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    def passing(*_):
        now[0] += slow_s.pop() if slow_s else 0.25

    monkeypatch.setattr("orbitset.runs.length.time", Clock)
    recorder = _Timed(torch.device("cpu"))
    steps = SimpleNamespace(step=0, is_stopped=False)
    while not steps.is_stopped:
        passing()
        steps.step += 1
        recorder.save(steps)
    assert recorder.step_s == 0.25
    slow_s.append(0.75)
    monkeypatch.setattr("orbitset.runs.length.step_seconds", lambda *_: 1.0)
    judge = SimpleNamespace(encoding=lambda model: None, scores=passing)
    assert (
        measure(planned[0], nn.Linear(1, 1), nn.Identity(), planned[1], judge).evaluation_s == 0.25
    )


def test_a_training_within_minutes_is_a_shorter_training(tmp_path, small_faces, monkeypatch):
    monkeypatch.setattr("orbitset.runs.train.measure", lambda *_: Pace(1.0, 1.0))
    config, run = small_faces("OE", "train.epochs=100"), Run(tmp_path / "run")
    notes = []

    class Notes(Silent):
        def note(self, message):
            notes.append(message)

    train(config, run, ends_at=time.monotonic() + 40, progress=Notes())
    steps = run.records()[-1]["step"]
    (note,) = (note for note in notes if "there is time for" in note)
    epochs = run.read_json("config.json")["train"]["epochs"]
    assert f"there is time for {steps} of 400 steps, {epochs:.3g} of 100 epochs, and " in note
    assert run.is_finished and steps < 30
    train(read_experiment(run.config), Run(tmp_path / "again"))
    assert Run(tmp_path / "again").records() == run.records()


def test_a_resumed_training_ends_soon_where_its_time_is_up(tmp_path, small_faces):
    class Stop(Silent):
        def update(self, done, images, terms):
            if done == 20:
                raise KeyboardInterrupt

    config, run = small_faces("OE", "train.epochs=40", "train.evaluate_at=0.5"), Run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(config, run, progress=Stop())
    results = train(config, run, resume=True, ends_at=time.monotonic())
    assert run.is_finished
    assert any("the time is nearly up; the training ends after" in n for n in results["notes"])


def test_the_length_is_estimated_without_looking_at_images(small_faces, face_manifest):
    config = small_faces("OE", "train.epochs=2")
    images, seconds = estimated(config, Opened(open_source(str(face_manifest))), "cpu")
    assert images == 2 * 72 and seconds > 0
    hub = with_settings(config, ["encoder.backbone=hf:some/network", "encoder.contrast=given"])
    assert estimated(hub, Opened(open_source(str(face_manifest))), "cpu") is None


def test_the_length_of_a_training_on_single_images_is_estimated():
    config = with_settings(affine_digits("AE"), ["train.epochs=0.5", "encoder.channels=4,8"])
    images, seconds = estimated(config, Opened(open_source("digits")), "cpu")
    assert images >= 0.5 * 997 * config.orbits.members and seconds > 0
