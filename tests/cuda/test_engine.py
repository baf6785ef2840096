"""The engine on a CPU, with a stand-in for CUDA graphs; on a GPU it is in tests/test_gpu_steps.py."""

import weakref

import pytest
import torch
from built_losses import built_loss
from emulation.graphs import emulate_graphs, is_recording

from orbitset.cuda import engine, watching
from orbitset.encoders import RectifyingEncoder, SpatialTransformer, TransformedEncoder
from orbitset.errors import ConfigError
from orbitset.losses import as_objective
from orbitset.orbits import AffineOrbits, ObservedOrbits, OrbitBatches
from orbitset.orbits.augmentation import Augmentation
from orbitset.training.monitors import Monitor
from orbitset.training.steps import Steps


@pytest.fixture
def training(monkeypatch):
    """Ordinary steps and recorded ones from the same weights, and what is said of the latter."""
    # without a GPU everything is computed on the host
    monkeypatch.setattr(watching.HostWork, "is_on_host", lambda self, tensor, is_random: False)

    def build(loss, *, seeds=(0, 0), required=False, augmentation=None):
        parts = [_steps(loss, seed, augmentation) for seed in seeds]
        steps = parts[1]
        emulate_graphs(
            monkeypatch,
            lambda: [
                *steps.network.parameters(), *steps.network.buffers(), *steps.loss.buffers(),
                steps.monitor._sums, steps.monitor._bad, steps.monitor._step,
            ],
        )  # fmt: skip
        said = []
        recorded = engine.RecordedSteps(steps, steps.network, required=required, note=said.append)
        return parts[0], recorded, said

    return build


def _steps(loss, seed, augmentation=None):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (15, 1, 8, 8), dtype=torch.uint8, generator=generator)
    batches = OrbitBatches(
        AffineOrbits(images, canvas_px=16, members=5),
        orbits_per_batch=4,
        members_per_batch=2,
        augmentation=augmentation,
    )
    torch.manual_seed(seed)
    network = RectifyingEncoder(size_px=16, channels=(4,), code_size=8)
    objective = built_loss("OJ", code_size=8, num_orbits=15) if loss is None else loss()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    return Steps(network, as_objective(objective), optimizer, batches, Monitor(), False)


def _losses(steps, count=24):
    return [steps(index)["loss"].item() for index in range(count)]


def test_replayed_steps_are_the_ordinary_ones(training):
    """Batches of two sizes, made ahead; the monitor and the running statistics too."""
    ordinary, recorded, said = training(None)
    expected = _losses(ordinary)
    assert _losses(recorded) == pytest.approx(expected, rel=1e-5)
    assert len(recorded.recorded) == 4 and recorded.replays >= 18 and not said
    assert recorded.is_recording
    sums, count = recorded.steps.monitor.state
    assert count == 24
    assert sums["loss"] == pytest.approx(sum(expected), rel=1e-5)
    for ours, theirs in zip(recorded.network.buffers(), ordinary.network.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("IN+R", {"memory": 20, "memory_after": 9}),
        ("SG", {}),
        ("PR", {"learns_temperature": False}),
    ],
)
def test_what_a_loss_remembers_in_buffers_is_replayed(training, name, settings):
    ordinary, recorded, said = training(
        lambda: built_loss(name, code_size=8, num_orbits=15, **settings)
    )
    assert _losses(recorded) == pytest.approx(_losses(ordinary), rel=1e-5)
    assert recorded.replays >= 18 and recorded.is_recording and not said
    buffers = zip(recorded.steps.loss.buffers(), ordinary.loss.buffers(), strict=True)
    for ours, theirs in buffers:
        torch.testing.assert_close(ours, theirs)


def test_replayed_batches_are_augmented_by_their_own_draws(training):
    ordinary, recorded, said = training(None, augmentation=Augmentation.moderate(16))
    expected = _losses(ordinary)
    assert _losses(recorded) == pytest.approx(expected, rel=1e-5)
    assert recorded.replays >= 18 and recorded.is_recording and not said


def test_a_step_that_comes_out_of_order_is_taken_with_its_own_batch(training):
    ordinary, recorded, _ = training(None)
    for index in (0, 1, 2, 3, 4, 5, 6, 7, 3, 11, 0):
        assert recorded(index)["loss"].item() == pytest.approx(
            ordinary(index)["loss"].item(), rel=1e-5
        )


class _Drifting(torch.nn.Module):
    """Changes with something that cannot be watched: here the size of a list in another module."""

    uses_rectified = False
    outside: list = []

    def forward(self, codes, batch, rectified):
        self.outside.append(0)
        return {"loss": codes.square().mean() * len(self.outside)}


class _Counting(torch.nn.Module):
    uses_rectified = False
    calls = 0

    def forward(self, codes, batch, rectified):
        self.calls += 1
        return {"loss": codes.square().mean() * self.calls}


def test_a_loss_that_is_frozen_is_noticed_by_its_terms(training, monkeypatch):
    monkeypatch.setattr(_Drifting, "outside", [])
    _, recorded, said = training(_Drifting)
    _losses(recorded)
    assert not recorded.is_recording and len(said) == 1
    assert "its term loss was" in said[0] and "computed anew" in said[0]


def test_a_loss_that_counts_is_noticed_before_it_is_recorded(training):
    ordinary, recorded, said = training(_Counting)
    assert _losses(recorded) == pytest.approx(_losses(ordinary), rel=1e-5)
    assert recorded.replays == 0 and said == [
        "the step is not recorded, which is slower: "
        "it changes Python values or draws random numbers on the host"
    ]


def test_one_difference_is_not_enough_to_give_up(training):
    _, recorded, said = training(None)
    _losses(recorded, 12)
    recorded._compare(12, {"loss": torch.tensor(1.0)}, {"loss": 1.5})
    recorded._compare(13, {"loss": torch.tensor(1.5)}, {"loss": 1.5})
    recorded._compare(14, {"loss": torch.tensor(float("nan"))}, {"loss": float("nan")})
    assert recorded.is_recording and not said


def test_where_recording_fails_ordinary_steps_go_on(training, monkeypatch):
    ordinary, recorded, said = training(None)

    def failing(*_, **__):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(engine, "_Recorded", failing)
    assert _losses(recorded, 8) == pytest.approx(_losses(ordinary, 8), rel=1e-5)
    assert said == [
        "the step is not recorded, which is slower: "
        "RuntimeError: operation not permitted when stream is capturing"
    ]


class _FailingToRecord(torch.nn.Module):
    uses_rectified = False
    codes: list = []

    def forward(self, codes, batch, rectified):
        if is_recording():
            self.codes.append(weakref.ref(codes))
            error = ValueError("not while recording")  # in a cycle with this frame
            raise error
        return {"loss": codes.square().mean()}


def test_a_failed_recording_keeps_no_autograd_graph(training, monkeypatch):
    """Its nodes belong to another stream than those of the steps that follow."""
    monkeypatch.setattr(_FailingToRecord, "codes", [])
    _, recorded, said = training(_FailingToRecord)
    _losses(recorded, 8)
    assert "ValueError: not while recording" in said[0]
    assert [codes() for codes in _FailingToRecord.codes] == [None]


def test_who_requires_the_fast_way_gets_an_error_instead(training):
    _, recorded, _ = training(_Counting, required=True)
    with pytest.raises(ConfigError, match=r"cannot take the fast way.*changes Python values"):
        _losses(recorded)


def test_other_networks_have_no_fused_twin(monkeypatch):
    twin, reason = engine.fused(torch.nn.Linear(2, 2))
    assert twin is None and reason == "the network has no kernels"
    inner = RectifyingEncoder(size_px=32, channels=(16,), code_size=16)
    model = TransformedEncoder(SpatialTransformer(in_channels=1, size_px=32), inner)
    assert engine.fused(model)[0] is None and "NVIDIA GPU" in engine.fused(model)[1]
    monkeypatch.setattr(engine, "why_not_fused", lambda model: None)
    monkeypatch.setattr(engine, "FusedEncoder", lambda model: model)
    twin, _ = engine.fused(model)
    assert twin.transformer is model.transformer and twin.encoder is inner


def test_batches_that_threads_fetch_are_not_recorded():
    images = torch.zeros(6, 1, 16, 16, dtype=torch.uint8)
    for is_streamed in (True, False):
        orbits = ObservedOrbits(
            images, torch.arange(6) // 2, torch.arange(0, 6, 2), is_streamed=is_streamed
        )
        batches = OrbitBatches(orbits, orbits_per_batch=2, members_per_batch=2)
        assert (engine._why_not_drawn_ahead(batches) is None) != is_streamed
    assert "no draw and show" in engine._why_not_drawn_ahead(object())
