"""What a run folder holds while it is trained into, whatever comes between."""

import itertools
import json

import pytest
import safetensors
import torch
from torch import nn

from orbitset.errors import RunError, TrainingError
from orbitset.run_folder import Run
from orbitset.training import RunRecorder, TrainConfig, fit
from orbitset.training.checkpoint import LATEST, has_checkpoint
from orbitset.training.progress import Silent
from orbitset.training.recorder import Training


class _Batch:
    def __init__(self, index):
        self.images = torch.full((2, 3), 1.0 + index % 3)


class _Batches:
    position = 0
    epoch = 0.0

    def images_before(self, position):
        return 2 * position

    def batch(self, index):
        return _Batch(index)


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)

    def encode(self, images):
        return self.layer(images)


class _Loss(nn.Module):
    uses_rectified = False

    def forward(self, codes, batch, rectified):
        return {"loss": codes.square().mean()}


class Notes(Silent):
    def __init__(self):
        self.messages = []

    def note(self, message):
        self.messages.append(message)

    def shorten(self, total):
        self.total = total


def _train(run, scores, *, progress=None, **more):
    """Evaluate at steps 0, 2, 4, 6; weights are best where the score is highest. Gives recorder and model."""
    values = iter(scores)

    def is_best(records):
        return all(records[-1]["score"] > record["score"] for record in records[:-1])

    recorder = RunRecorder(
        run,
        evaluate=lambda model: {"score": next(values)},
        evaluate_at={0, 2, 4, 6},
        is_best=is_best,
        **more,
    )
    model = _Model()
    config = TrainConfig(learning_rate=0.1, precision="float32")
    fit(model, _Loss(), _Batches(), steps=6, config=config, recorder=recorder, progress=progress)
    return recorder, model


def _weights_of(run, step):
    """The weights of a training at that evaluation."""
    scores = [float(at == step) for at in (0, 2, 4, 6)]
    recorder, _ = _train(run, scores)
    return recorder.best_weights["layer.weight"]


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


def _killed_at_checkpoint(run, scores, number):
    """A training that is killed at a checkpoint, when its record is written already."""
    count = itertools.count(1)
    from orbitset.training import recorder

    save = recorder.save_checkpoint

    def stop(*arguments, **named):
        if next(count) == number:
            raise KeyboardInterrupt
        save(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(recorder, "save_checkpoint", stop)
        _train(run, scores)


def test_best_weights_are_those_of_the_best_record(run, tmp_path):
    recorder, model = _train(run, [1, 3, 2, 3])
    assert torch.equal(recorder.best_weights["layer.weight"], _weights_of(Run(tmp_path / "b"), 2))
    assert not torch.equal(recorder.best_weights["layer.weight"], model.layer.weight)


def test_best_weights_belong_to_the_records_after_a_kill_that_lost_a_better_one(run, tmp_path):
    """What is done again may come out otherwise, as on a GPU: here the score of step 4."""
    _killed_at_checkpoint(run, [1, 3, 5], 3)
    assert [record["score"] for record in run.records()] == [1, 3, 5]
    recorder, _ = _train(run, [2, 1], resume=True)
    assert [record["score"] for record in run.records()] == [1, 3, 2, 1]
    assert torch.equal(recorder.best_weights["layer.weight"], _weights_of(Run(tmp_path / "b"), 2))


def test_best_weights_belong_to_the_records_where_an_older_checkpoint_is_taken(run, tmp_path):
    _killed_at_checkpoint(run, [1, 3, 5, 7], 4)
    latest = run.checkpoints / "latest.safetensors"
    damaged = bytearray(latest.read_bytes())
    damaged[-1] ^= 1
    latest.write_bytes(damaged)
    progress = Notes()
    recorder, model = _train(run, [2, 1], resume=True, progress=progress)
    assert sum("goes on from the one before it, at step 2" in m for m in progress.messages) == 1
    assert [record["score"] for record in run.records()] == [1, 3, 2, 1]
    assert [record["step"] for record in run.records("timing.jsonl")] == [0, 2, 4, 6]
    assert torch.equal(recorder.best_weights["layer.weight"], _weights_of(Run(tmp_path / "b"), 2))
    whole, other = _train(Run(tmp_path / "whole"), [1, 3, 2, 1])
    assert torch.equal(model.layer.weight, other.layer.weight)


def test_best_weights_are_there_when_only_the_end_was_lost(run):
    recorder, _ = _train(run, [1, 3, 2, 1])
    again, _ = _train(run, [], resume=True)
    assert torch.equal(again.best_weights["layer.weight"], recorder.best_weights["layer.weight"])


def test_without_weights_no_checkpoint_is_written_and_a_resumed_training_starts_anew(run):
    _train(run, [1, 2, 3, 4], keeps_weights=False)
    assert not has_checkpoint(run.checkpoints)
    _train(run, [5, 6, 7, 8], keeps_weights=False, resume=True)
    assert [record["score"] for record in run.records()] == [5, 6, 7, 8]


def test_metrics_that_do_not_belong_to_the_checkpoint_are_refused(run):
    _killed_at_checkpoint(run, [1, 3, 5], 3)
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match="does not hold the metrics that belong to its checkpoint"):
        _train(run, [2, 1], resume=True)


def test_an_evaluation_that_fails_on_weights_that_are_not_finite_says_so(run):
    def evaluate(model):
        with torch.no_grad():
            model.layer.weight.fill_(torch.nan)
        raise ValueError("input contains NaN")

    recorder = RunRecorder(run, evaluate=evaluate, evaluate_at={2})
    with pytest.raises(TrainingError, match="the weights were not finite after step 2"):
        fit(_Model(), _Loss(), _Batches(), steps=3, recorder=recorder)


def _flat_after(step):
    return lambda records: "it is flat" if records[-1]["step"] >= step else None


def test_a_training_whose_scores_do_not_rise_ends_after_a_tenth_more_steps(run):
    progress = Notes()
    recorder, _ = _train(run, [1, 3, 2], why_end=_flat_after(2), progress=progress)
    assert [record["step"] for record in run.records()] == [0, 2, 3]
    (note,) = (note for note in run.records("notes.jsonl") if note["kind"] == "early end")
    assert note["text"] == "it is flat; the training ends after 3 of 6 steps"
    assert recorder.best_weights is not None and recorder.stopped_at is None
    assert progress.total == 3


def test_the_learning_rate_falls_to_zero_where_the_end_is_brought_forward():
    training = Training(None, _Batches(), 1000, Notes(), "training")
    training.step = 40
    assert training.rate_share == 1 and training.end_early()
    shares = []
    while training.step < training.steps:
        shares.append(training.rate_share)
        training.step += 1
    assert shares == [1.0, 0.75, 0.5, 0.25]
    assert not training.end_early(), "it ends already"
    assert not Training(None, _Batches(), 44, Notes(), "training", step=40).end_early()


def test_an_early_end_is_the_same_after_a_resume(run, tmp_path):
    end = {"why_end": _flat_after(4), "checkpoint_every_s": 0}
    whole, model = _train(run, [1, 2, 3, 4], **end)
    other, asked = Run(tmp_path / "other"), []
    _train(other, [1, 2, 3], is_interrupted=lambda: asked.append(1) or len(asked) == 4, **end)
    assert [record["step"] for record in other.records()] == [0, 2, 4]
    _, resumed = _train(other, [4], resume=True, **end)
    assert other.records() == run.records() and run.records()[-1]["step"] == 5
    assert other.records("notes.jsonl") == run.records("notes.jsonl")
    assert torch.equal(model.layer.weight, resumed.layer.weight)


def test_terms_are_judged_over_the_same_steps_after_an_early_end_and_a_resume(run, tmp_path):
    def watched(folder, stops):
        for is_resumed, stop in enumerate(stops):
            asked = itertools.count(2 if not is_resumed else 591)
            recorder = RunRecorder(
                folder,
                evaluate=lambda model: {"score": 0.0},
                evaluate_at={580},
                why_end=_flat_after(580),
                is_interrupted=lambda asked=asked, stop=stop: next(asked) > stop,
                resume=bool(is_resumed),
            )
            config = TrainConfig(learning_rate=0.1, precision="float32")
            fit(_Model(), _Loss(), _Batches(), steps=1000, config=config, recorder=recorder)
        with safetensors.safe_open(folder.checkpoints / LATEST, "pt") as file:
            return json.loads(file.metadata()["progress"])

    whole = watched(run, [10_000])
    assert whole["steps"] == 638
    assert watched(Run(tmp_path / "other"), [590, 10_000])["watched"] == whole["watched"]


def test_an_interrupted_training_has_a_checkpoint_where_it_stopped(run, tmp_path):
    asked = []
    stopped, _ = _train(run, [1, 2], is_interrupted=lambda: asked.append(1) or len(asked) == 3)
    assert stopped.stopped_at == 3
    _, resumed = _train(run, [3, 4], resume=True)
    whole, model = _train(Run(tmp_path / "whole"), [1, 2, 3, 4])
    assert torch.equal(model.layer.weight, resumed.layer.weight)
    assert run.records() == Run(tmp_path / "whole").records()


def test_a_training_whose_time_is_up_ends_after_a_tenth_more_steps(run):
    _train(run, [1, 2], ends_at=0.0)
    assert [record["step"] for record in run.records()] == [0, 2]
    assert any("the time is nearly up" in note["text"] for note in run.records("notes.jsonl"))
