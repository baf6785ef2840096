import pytest
import torch
from built_losses import built_loss

from orbitset import dispatch
from orbitset.encoders import RectifyingEncoder
from orbitset.errors import ConfigError
from orbitset.orbits import AffineOrbits, OrbitBatches
from orbitset.training import TrainConfig, fit
from orbitset.training.monitors import Monitor
from orbitset.training.optimizer import adam
from orbitset.training.steps import Steps, choose_steps, train_step


def _parts():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8)
    batches = OrbitBatches(
        AffineOrbits(images, canvas_px=16, members=5), orbits_per_batch=4, members_per_batch=2
    )
    model = RectifyingEncoder(size_px=16, channels=(4,), code_size=8)
    loss = built_loss("OJ", code_size=8, num_orbits=12)
    return model, loss, adam([{"params": list(model.parameters())}], rate=1e-3), batches


def test_steps_are_train_step_on_one_batch_after_another():
    model, loss, optimizer, batches = _parts()
    expected = [
        train_step(model, loss, optimizer, batches.batch(i), use_bfloat16=False)[0]["loss"].item()
        for i in range(3)
    ]
    model, loss, optimizer, batches = _parts()
    monitor = Monitor()
    steps, how = choose_steps("auto", model, loss, optimizer, batches, monitor, use_bfloat16=False)
    assert type(steps) is Steps and how == "reference"
    assert [steps(i)["loss"].item() for i in range(3)] == expected
    assert monitor.means()["loss"] == pytest.approx(sum(expected) / 3)


def test_the_reference_engine_runs_plain_code_throughout(monkeypatch):
    model, loss, optimizer, batches = _parts()
    steps, _ = choose_steps(
        "reference", model, loss, optimizer, batches, Monitor(), use_bfloat16=False
    )
    enabled = []
    monkeypatch.setattr(
        batches, "batch", lambda i: enabled.append(dispatch.is_enabled()) or whole(i)
    )
    whole = type(batches).batch.__get__(batches)
    steps(0)
    assert enabled == [False] and dispatch.is_enabled()


def test_the_fast_engine_is_refused_where_there_is_none():
    model, loss, _, batches = _parts()
    with pytest.raises(ConfigError, match="cannot take the fast way: it needs an NVIDIA GPU"):
        fit(model, loss, batches, steps=1, config=TrainConfig(engine="fast"))


def _weights_after_a_step(name, **settings):
    torch.manual_seed(0)
    model = RectifyingEncoder(size_px=16, channels=(4, 8), code_size=6, decoder="free")
    loss = built_loss(name, code_size=6, num_orbits=8, **settings)
    images = torch.randint(0, 256, (8, 1, 8, 8), dtype=torch.uint8)
    orbits = AffineOrbits(images, canvas_px=16, members=4)
    batches = OrbitBatches(orbits, orbits_per_batch=4, members_per_batch=2)
    optimizer = adam([{"params": list(model.parameters())}], rate=1e-2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    train_step(model, loss, optimizer, batches.batch(0), use_bfloat16=False)
    after = model.state_dict()
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    return moved, {key: value for key, value in after.items() if not key.startswith("decoder")}


@pytest.mark.parametrize("name", ["IN", "SG", "PR"])
def test_a_decoder_that_learns_from_codes_as_they_are_does_not_change_them(name):
    _, plain = _weights_after_a_step(name)
    moved, apart = _weights_after_a_step(f"{name}+R", shapes_codes=False)
    assert any(key.startswith("decoder.convs") for key in moved)
    assert all(torch.equal(plain[key], apart[key]) for key in plain)
    _, shaped = _weights_after_a_step(f"{name}+R")
    assert not all(torch.equal(plain[key], shaped[key]) for key in plain)
