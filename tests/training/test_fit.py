import itertools
import re
import time

import pytest
import torch
from built_losses import built_loss

from orbitset.encoders import RectifyingEncoder
from orbitset.errors import TrainingError
from orbitset.losses import as_objective
from orbitset.orbits import AffineOrbits, OrbitBatches
from orbitset.run_folder import Run
from orbitset.training import RunRecorder, TrainConfig, fit
from orbitset.training.progress import Silent

CONSTANT = TrainConfig(learning_rate=1e-3, schedule="constant", precision="float32")


def _images(num=24):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (num, 1, 8, 8), dtype=torch.uint8, generator=generator)


def _parts(method="OJ"):
    orbits = AffineOrbits(_images(), torch.arange(24) % 3, canvas_px=16, members=5)
    batches = OrbitBatches(orbits, orbits_per_batch=6, members_per_batch=2)
    torch.manual_seed(0)
    model = RectifyingEncoder(size_px=16, channels=(4, 8), code_size=8)
    loss = built_loss(method, code_size=8, num_orbits=24)
    return model, loss, batches


def _evaluate(model):
    with torch.no_grad():
        return {"probe": float(model.encode(torch.full((2, 1, 16, 16), 0.5)).square().sum())}


def _fit(run, *, steps=8, method="OJ", evaluate_at=(0, 4, 8), **config):
    run.create({"name": "test"})
    recorder = RunRecorder(run, evaluate=_evaluate, evaluate_at=evaluate_at)
    fit(*_parts(method), steps=steps, config=TrainConfig(**config), recorder=recorder)


@pytest.mark.parametrize("method", ["OJ", "OT", "OE", "ST", "EX", "AE"])
def test_every_method_lowers_its_loss(tmp_path, method):
    run = Run(tmp_path / "run")
    more = {"learning_rate": 5e-3, "schedule": "constant"}
    _fit(run, steps=60, method=method, evaluate_at=(15, 45, 60), **more)
    early, _, late = (record["terms"]["loss"] for record in run.records())
    assert late < early


def test_same_seed_gives_identical_metrics(tmp_path):
    for name in ("a", "b"):
        _fit(Run(tmp_path / name))
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (
        tmp_path / "b/metrics.jsonl"
    ).read_bytes()


def test_metrics_hold_position_terms_and_monitors(tmp_path):
    run = Run(tmp_path / "run")
    _fit(run)
    first, *_, last = run.records()
    assert (first["step"], first["images"], first["terms"]) == (0, 0, {})
    assert (last["step"], last["images"], last["epoch"]) == (8, 120, 1.0)
    terms = {"loss", "discriminate", "rectify", "active", "spread", "rank"}
    assert terms <= set(last["terms"])


def test_first_non_finite_term_stops_training_and_is_named():
    model, _, batches = _parts()

    @as_objective
    def explode(codes, batch, rectified):
        value = codes.sum() * (float("inf") if explode.calls == 3 else 1.0)
        explode.calls += 1
        return {"loss": value, "burst": value}

    explode.calls = 0
    with pytest.raises(TrainingError, match="'burst' was not finite at step 3"):
        fit(model, explode, batches, steps=10)


def test_nan_in_the_images_stops_training():
    model, loss, batches = _parts("AE")
    whole = batches.batch

    def batch(index):
        made = whole(index)
        made.images[0, 0, 0, 0] = float("nan")
        return made

    batches.batch = batch
    with pytest.raises(TrainingError, match="not finite at step 0") as error:
        fit(model, loss, batches, steps=3)
    assert error.value.hint == "look for NaN in the data or in the loss Autoencoder"


@pytest.mark.parametrize(
    ("evaluate_at", "noted_at"), [({4}, [4]), ({1, 4}, [4]), ({1, 2, 3, 4}, [2]), ({1}, [])]
)
def test_collapse_is_noted_once_when_it_stays(tmp_path, evaluate_at, noted_at):
    class Notes(Silent):
        messages = []

        def note(self, message):
            self.messages.append(message)

    @as_objective
    def shrink(codes, batch, rectified):
        return {"loss": (codes - 5).square().mean()}

    model, _, batches = _parts()
    with torch.no_grad():
        model.encoder.code.weight.zero_()
        model.encoder.code.bias.fill_(5)
    recorder = RunRecorder(Run(tmp_path), evaluate=_evaluate, evaluate_at=evaluate_at)
    config = TrainConfig(learning_rate=1e-9)
    fit(model, shrink, batches, steps=4, config=config, recorder=recorder, progress=Notes())
    steps = [re.search(r"step (\d+): the codes have collapsed", m)[1] for m in Notes.messages]
    assert steps == [str(step) for step in noted_at]


def test_own_loss_in_a_few_lines():
    @as_objective
    def contrast(codes, batch, rectified):
        logits = codes @ codes.T
        same = (batch.orbits[:, None] == batch.orbits).float()
        return {"loss": torch.nn.functional.binary_cross_entropy_with_logits(logits, same)}

    model, _, batches = _parts()
    before = model.encoder.code.weight.clone()
    fit(model, contrast, batches, steps=2)
    assert not torch.equal(before, model.encoder.code.weight)


@pytest.mark.parametrize("method", ["OJ", "EX"])  # EX has weights of its own
def test_a_part_of_the_model_takes_its_share_of_the_learning_rate(method):
    """Adam's first step is as long as the learning rate."""
    model, loss, batches = _parts(method)
    before = [weight.detach().clone() for weight in model.parameters()]
    part = next(name for name, _ in model.named_parameters()).rsplit(".", 1)[0] + "."
    fit(model, loss, batches, steps=1, config=CONSTANT, rate_shares={part: 0.1})
    used = 0
    for (name, weight), old in zip(model.named_parameters(), before, strict=True):
        if weight.grad is None:  # EX decodes nothing
            continue
        used += 1
        moved = (weight - old).abs().max().item()
        assert moved == pytest.approx(1e-4 if name.startswith(part) else 1e-3, rel=1e-3), name
    assert used > 4


def test_the_loss_has_a_share_too():
    model, loss, batches = _parts("EX")
    before = loss.classifier.weight.detach().clone()
    fit(model, loss, batches, steps=1, config=CONSTANT, rate_shares={"loss.classifier.": 0.1})
    moved = (loss.classifier.weight - before).abs().max().item()
    assert moved == pytest.approx(1e-4, rel=1e-3)


class _Stop(Silent):
    """Ctrl-C after so many steps."""

    def __init__(self, steps):
        self.steps = steps

    def update(self, done, images, terms):
        if done == self.steps:
            raise KeyboardInterrupt


def test_a_training_that_is_not_evaluated_is_resumed_too(tmp_path):
    weights = []
    for name in ("at once", "resumed"):
        run = Run(tmp_path / name)
        run.create({"name": "test"})
        if name == "resumed":
            with pytest.raises(KeyboardInterrupt):
                recorder = RunRecorder(run, checkpoint_every_s=0)
                fit(*_parts(), steps=6, recorder=recorder, progress=_Stop(4))
        model, loss, batches = _parts()
        recorder = RunRecorder(run, checkpoint_every_s=0, resume=True)
        fit(model, loss, batches, steps=6, recorder=recorder)
        weights.append(model.encoder.code.weight)
    assert torch.equal(*weights)


def test_time_before_an_interruption_counts(tmp_path, monkeypatch):
    """A clock that goes on by a second whenever it is looked at."""
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    elapsed = []
    for name in ("at once", "resumed"):
        run = Run(tmp_path / name)
        run.create({"name": "test"})
        how = {"evaluate": _evaluate, "evaluate_at": {0, 8}, "checkpoint_every_s": 0}
        if name == "resumed":
            with pytest.raises(KeyboardInterrupt):
                fit(*_parts(), steps=8, recorder=RunRecorder(run, **how), progress=_Stop(7))
        fit(*_parts(), steps=8, recorder=RunRecorder(run, **how, resume=True))
        elapsed.append([record["elapsed_s"] for record in run.records("timing.jsonl")][-1])
    assert elapsed[1] == pytest.approx(elapsed[0], abs=6)
