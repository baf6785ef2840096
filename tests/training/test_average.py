"""The average is what is evaluated and kept; training itself goes on from the latest weights."""

import pytest
import torch
from torch import nn

from orbitset.errors import ConfigError
from orbitset.run_folder import Run
from orbitset.training import RunRecorder, TrainConfig, fit
from orbitset.training.average import Average
from orbitset.training.progress import Silent


class _Batch:
    def __init__(self, index):
        self.images = torch.randn(4, 3, generator=torch.Generator().manual_seed(index))


class _Batches:
    position, epoch = 0, 0.0

    def images_before(self, position):
        return 4 * position

    def batch(self, index):
        return _Batch(index)


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def encode(self, images):
        return self.layers(images)


class _Loss(nn.Module):
    uses_rectified = False

    def forward(self, codes, batch, rectified):
        return {"loss": (codes - 1).square().mean()}


class _Stop(Silent):
    def update(self, done, images, terms):
        if done == 5:
            raise KeyboardInterrupt


def _train(out, *, steps=8, average: float | None = 0.9, progress=None, resume=False):
    """Gives the model, the weights of each evaluation, and the recorder; those at step 4 are the best."""
    model, evaluated = _Model(), []
    run = Run(out)
    if not resume:
        run.create({"name": "test"})

    def evaluate(model):
        evaluated.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"score": float(evaluated[-1]["layers.0.weight"].sum())}

    recorder = RunRecorder(
        run,
        evaluate=evaluate,
        evaluate_at={0, 4, 8},
        is_best=lambda records: records[-1]["step"] == 4,
        resume=resume,
        checkpoint_every_s=0,
    )
    config = TrainConfig(learning_rate=0.1, schedule="constant", average=average)
    fit(
        model, _Loss(), _Batches(), steps=steps, config=config, recorder=recorder, progress=progress
    )
    return model, evaluated, recorder


def _equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_average_over_all_steps_is_evaluated_and_kept(tmp_path):
    """Held to an average computed from the weights of trainings of every length."""
    expected = [_Model().state_dict()]
    for steps in range(1, 9):
        latest, *_ = _train(tmp_path / str(steps), steps=steps, average=None)
        decay = min(0.9, (1 + steps) / (10 + steps))
        expected.append(
            {
                name: value
                if name.endswith("num_batches_tracked")
                else decay * expected[-1][name] + (1 - decay) * value
                for name, value in latest.state_dict().items()
            }
        )
    model, evaluated, recorder = _train(tmp_path / "run")
    for at, step in enumerate((0, 4, 8)):
        torch.testing.assert_close(evaluated[at], expected[step])
    assert _equal(model.state_dict(), evaluated[2])
    assert _equal(recorder.best_weights, evaluated[1])
    assert not torch.allclose(evaluated[2]["layers.0.weight"], latest.layers[0].weight, atol=1e-3)


def test_training_itself_does_not_notice(tmp_path):
    for name, average in (("a", None), ("b", 0.9)):
        _train(tmp_path / name, average=average)
    plain, averaged = (Run(tmp_path / name).records() for name in "ab")
    assert [record["terms"] for record in plain] == [record["terms"] for record in averaged]
    assert plain[-1]["score"] != averaged[-1]["score"]


def test_it_is_resumed_exactly(tmp_path):
    whole, _, recorder = _train(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path / "b", progress=_Stop())
    torch.rand(3)
    model, _, resumed = _train(tmp_path / "b", resume=True)
    assert _equal(model.state_dict(), whole.state_dict())
    assert _equal(resumed.best_weights, recorder.best_weights)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in "ab"]
    assert metrics[0] == metrics[1]


def test_what_does_not_learn_is_not_averaged():
    net = nn.Linear(2, 2)
    net.weight.requires_grad_(False)
    assert [tensor.shape for tensor in Average(net, 0.9).state.values()] == [(2,)]


@pytest.mark.parametrize("decay", [0, 1, -0.5])
def test_a_decay_is_between_0_and_1(decay):
    with pytest.raises(ConfigError, match=f"train.average is {decay}"):
        TrainConfig(average=decay)
