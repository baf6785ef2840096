"""What a run folder holds while it is trained into, whatever comes between."""

import itertools

import pytest
import torch
from torch import nn

from orbitset.errors import RunError, TrainingError
from orbitset.run_folder import Run
from orbitset.training import RunRecorder, TrainConfig, fit
from orbitset.training.checkpoint import has_checkpoint
from orbitset.training.progress import Silent


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
