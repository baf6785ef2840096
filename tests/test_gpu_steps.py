"""Training steps as they are taken on a GPU; run with -m gpu where there is one."""

import math
import random
import time
import warnings

import pytest
import torch
import torch.nn.functional as F
from built_losses import built_loss
from fused_passes import relative_error

from orbitset.config import with_settings
from orbitset.cuda.engine import RecordedSteps
from orbitset.dispatch import disabled
from orbitset.encoders import RectifyingEncoder, SpatialTransformer, TransformedEncoder
from orbitset.errors import ConfigError
from orbitset.losses import as_objective
from orbitset.orbits import AffineOrbits, ObservedOrbits, OrbitBatches
from orbitset.orbits.augmentation import Augmentation
from orbitset.orbits.photometric import PhotometricRanges
from orbitset.recipes.affine_images import affine_digits
from orbitset.run_folder import Run
from orbitset.runs.train import train
from orbitset.training.monitors import Monitor
from orbitset.training.optimizer import adam
from orbitset.training.progress import Silent
from orbitset.training.steps import choose_steps

pytestmark = pytest.mark.gpu


def _training(method, engine, mode="fixed", *, use_bfloat16=True):
    """All parameters, the steps, what watches them and a word on how they are done."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (45, 1, 14, 14), dtype=torch.uint8, generator=generator)
    orbits = AffineOrbits(
        images.cuda(), torch.arange(45, device="cuda") % 5, canvas_px=32, members=9, mode=mode
    )
    batches = OrbitBatches(orbits, orbits_per_batch=8, members_per_batch=4)
    torch.manual_seed(0)
    model = RectifyingEncoder(size_px=32, channels=(16, 32), code_size=64, code_norm="batch").cuda()
    torch.manual_seed(0)
    if method.endswith("-STN"):
        transformer = SpatialTransformer(in_channels=1, size_px=32).cuda()
        torch.nn.init.normal_(transformer.map.weight, std=0.1)
        model = TransformedEncoder(transformer, model)
    margin = {"margin": 16.0} if method[:2] in ("OJ", "OT", "ST") else {}
    loss = built_loss(method[:2], code_size=64, num_orbits=45, **margin)
    parameters = [*model.parameters(), *loss.cuda().parameters()]
    monitor = Monitor()
    taken, how = choose_steps(
        engine,
        model,
        loss,
        adam([{"params": parameters}], rate=1e-4),
        batches,
        monitor,
        use_bfloat16=use_bfloat16,
    )
    model.train()
    return parameters, taken, monitor, how


def _losses(taken, steps=40):
    return torch.stack([taken(step)["loss"].clone() for step in range(steps)])


@pytest.mark.parametrize("method", ["OJ", "OT", "OE", "ST", "EX", "AE", "OT-STN", "OJ-STN"])
def test_both_engines_give_the_same_losses_within_rounding(method):
    """Over batches of two sizes and two numbers of members, most of them replayed.

    Every step starts from the reference's weights: left alone, two trainings drift apart, since rounding
    decides which negative is nearest and Adam's first steps have one size whatever the gradient's. How far
    rounding alone takes a loss, float32 says.
    """
    theirs, reference, _, _ = _training(method, "reference")
    precise, exact, _, _ = _training(method, "reference", use_bfloat16=False)
    ours, fast, monitor, how = _training(method, "auto")
    assert isinstance(fast, RecordedSteps) and "fused" in how
    triples = []
    for step in range(40):
        with torch.no_grad():
            torch._foreach_copy_(ours, theirs)
            torch._foreach_copy_(precise, theirs)
        triples.append([taken(step)["loss"].clone() for taken in (fast, exact, reference)])
    found, truth, expected = (torch.stack(losses) for losses in zip(*triples, strict=True))
    assert sum(map(bool, fast.recorded.values())) >= 2
    assert relative_error(found, truth) <= 1.5 * relative_error(expected, truth) + 4e-3
    means, steps = monitor.state
    assert steps == 40
    assert means["loss"] / 40 == pytest.approx(found.mean().item(), rel=1e-4)


@pytest.mark.parametrize("photometric", [None, PhotometricRanges()])
@pytest.mark.parametrize("sizes", [(8, 4), (16, 4), (45, 3)])
def test_making_one_batch_leaves_another_as_it_was(sizes, photometric):
    images = torch.randint(0, 256, (45, 1, 14, 14), dtype=torch.uint8, device="cuda")
    orbits = AffineOrbits(
        images,
        torch.arange(45, device="cuda") % 5,
        canvas_px=64,
        members=9,
        photometric=photometric,
    )
    batches = OrbitBatches(orbits, orbits_per_batch=sizes[0], members_per_batch=sizes[1])
    model = RectifyingEncoder(size_px=64, channels=(16, 32), code_size=64).cuda().train()
    loss = built_loss("OE", code_size=64, num_orbits=45)
    optimizer = adam([{"params": list(model.parameters())}], rate=1e-4)
    steps, _ = choose_steps("fast", model, loss, optimizer, batches, Monitor(), use_bfloat16=True)
    for index in range(12):
        steps(index)
    recorded = [one for kind in steps.recorded.values() for one in kind]
    assert len(recorded) >= 2
    for one in recorded:
        for other in recorded:
            fields = [one.batch.images, one.batch.canonical, one.batch.labels, one.batch.orbits]
            before = [field.clone() for field in fields]
            if other is not one:
                other._batch.replay()
            torch.cuda.synchronize()
            assert all(map(torch.equal, fields, before))


def test_fresh_orbits_are_replayed_too():
    reference = _losses(_training("OE", "reference", mode="fresh")[1])
    taken = _training("OE", "auto", mode="fresh")[1]
    assert isinstance(taken, RecordedSteps)
    assert relative_error(_losses(taken), reference) < 3e-2


class _Counting(torch.nn.Module):
    """The loss changes with a count that Python keeps."""

    uses_rectified = False

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, codes, batch, rectified):
        self.calls += 1
        return {"loss": codes.square().mean() * (1 + self.calls)}


class _Timed(torch.nn.Module):
    """The loss depends on the clock, which nothing but a comparison can notice."""

    uses_rectified = False

    def forward(self, codes, batch, rectified):
        return {"loss": codes.square().mean() * (1 + time.perf_counter_ns() % 997)}


def _spread(codes, batch):
    return -codes.var(0).clamp(max=4).sum()


def _drawing(codes, batch):
    return codes.square().mean() * random.random()


def _drawing_by_seed(codes, batch):
    generator = torch.Generator().manual_seed(batch.seed)
    noise = torch.rand(codes.shape, generator=generator).pin_memory()
    return (codes * noise.to(codes.device, non_blocking=True)).square().mean()


def _dropping(codes, batch):
    return F.dropout(codes, 0.5).square().mean()


def _reading(codes, batch):
    return codes.square().mean() * (1 if codes.mean().item() > 0 else 2)


def _choosing(codes, batch):
    same = batch.orbits[:, None] == batch.orbits
    return (codes @ codes.T)[same].square().mean()


def _failing_to_record(codes, batch):
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not while recording")
    return codes.square().mean()


def _users_training(loss, engine="auto"):
    """Steps with a loss that nobody promised anything about, and what is said of them."""
    images = torch.randint(0, 256, (40, 1, 14, 14), dtype=torch.uint8).cuda()
    batches = OrbitBatches(
        AffineOrbits(images, canvas_px=32), orbits_per_batch=8, members_per_batch=4
    )
    torch.manual_seed(0)
    model = RectifyingEncoder(size_px=32, channels=(16, 32), code_size=64).cuda().train()
    optimizer = adam([{"params": list(model.parameters())}], rate=1e-6)
    said = []
    parts = (engine, model, as_objective(loss), optimizer, batches, Monitor())
    steps, _ = choose_steps(*parts, use_bfloat16=True, note=said.append)
    return steps, said


@pytest.mark.parametrize("loss", [_spread, _dropping])
def test_a_users_loss_is_recorded_without_a_promise(loss):
    steps, said = _users_training(loss, "fast")
    for index in range(40):
        steps(index)
    assert steps.is_recording and steps.replays > 30 and not said


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (_Counting(), "changes Python values"),
        (_drawing, "draws random numbers on the host"),
        (_drawing_by_seed, "computes on the host"),
        (_reading, "waits for numbers"),
        (_choosing, "waits for numbers"),
        (_failing_to_record, "not while recording"),
        (_Timed(), "computed anew"),
    ],
)
def test_a_loss_that_cannot_be_recorded_is_noticed_and_trained_with(loss, word):
    steps, said = _users_training(loss)
    losses = [steps(index)["loss"].item() for index in range(20)]
    assert not steps.is_recording and len(said) == 1 and word in said[0]
    assert all(map(math.isfinite, losses)) and len(set(losses[-4:])) == 4
    torch.rand(2, device="cuda")  # random numbers are not left as a recording had them
    if isinstance(loss, _Counting):
        assert loss.calls == 20
    with pytest.raises(ConfigError, match="cannot take the fast way"):
        steps, _ = _users_training(loss, "fast")
        for index in range(20):
            steps(index)


def test_our_own_random_mining_is_not_recorded():
    loss = built_loss("OT", code_size=64, num_orbits=40, margin=16.0, mining="semihard-random")
    steps, said = _users_training(loss)
    for index in range(6):
        steps(index)
    assert not steps.is_recording and "computes on the host" in said[0]


def test_comparing_leaves_the_training_as_it_was():
    """Buffers and random numbers are put back."""
    steps, _ = _users_training(_dropping)
    for index in range(8):
        steps(index)
    before = [value.clone() for value in steps.network.state_dict().values()]
    random_state = torch.cuda.get_rng_state()
    steps._computed_anew(8)
    for value, kept in zip(steps.network.state_dict().values(), before, strict=True):
        assert torch.equal(value, kept)
    assert torch.equal(torch.cuda.get_rng_state(), random_state)


def test_a_killed_fast_run_goes_on(tmp_path):
    """Evaluations, checkpoints and a changing learning rate between replays; resumed half-way."""
    settings = ["encoder.channels=16,32", "train.epochs=0.1", "train.engine=fast"]
    settings += ["evaluation.test_images=100", "evaluation.tsne_points=0", "train.evaluations=4"]
    config = with_settings(affine_digits("OJ"), settings)
    whole, cut = Run(tmp_path / "whole"), Run(tmp_path / "cut")
    train(config, whole, device="cuda")

    class Killed(Silent):
        def update(self, step, images, terms):
            if step >= 40:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, cut, device="cuda", progress=Killed())
    train(config, cut, device="cuda", resume=True)
    ends = [run.records()[-1]["terms"]["loss"] for run in (whole, cut)]
    assert ends[0] == pytest.approx(ends[1], rel=0.1)
    assert [r["step"] for r in whole.records()] == [r["step"] for r in cut.records()]


def test_a_replayed_step_waits_for_nothing():
    taken = _training("OJ", "auto")[1]
    _losses(taken)
    start = 40
    while taken.replays < 64:  # the next comparison, which waits, is at 128
        taken(start)
        start += 1
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore"):
        torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(start, start + 20):  # over the ends of passes and epochs
            taken(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _weights():
    """Of many sizes and both layouts, more of them than one launch takes."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1,), (5,), (1023,), (1024,), (3000, 7), (16, 8, 3, 3), *[(n,) for n in range(1, 66)]]
    made = [torch.randn(shape, generator=generator).cuda() for shape in shapes]
    made[5] = made[5].contiguous(memory_format=torch.channels_last)
    return [torch.nn.Parameter(weight) for weight in made]


def test_adam_is_torchs():
    ours, theirs = _weights(), [torch.nn.Parameter(w.detach().double()) for w in _weights()]
    optimizer = adam(
        [{"params": ours[:3]}, {"params": ours[3:], "share": 0.5}], rate=1e-2, eps=1e-8
    )
    exact = torch.optim.Adam(
        [{"params": theirs[:3], "lr": 1e-2}, {"params": theirs[3:], "lr": 5e-3}], eps=1e-8
    )
    for step in range(5):
        for one, other in zip(ours, theirs, strict=True):
            grad = torch.randn(one.shape, device="cuda") * 10.0 ** (step - 2)
            one.grad = None if one is ours[1] and step == 3 else grad  # contiguous, as not all are
            other.grad = None if one.grad is None else grad.double()
        assert optimizer._rows() is not None
        optimizer.step()
        exact.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
    assert optimizer.state[ours[1]]["step"] == 4 and optimizer.state[ours[0]]["step"] == 5
    again = torch.optim.Adam(ours, fused=True, capturable=True)
    again.load_state_dict(
        {**optimizer.state_dict(), "param_groups": again.state_dict()["param_groups"]}
    )
    assert again.state[ours[0]]["step"] == 5


def test_what_is_beyond_the_kernel_is_torchs_own_adam():
    weight = torch.nn.Parameter(torch.ones(4, 4, device="cuda"))
    weight.grad = torch.ones_like(weight)
    optimizer = adam([{"params": [weight]}], rate=0.1)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    assert optimizer._rows() is None
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full_like(weight, 0.9))
    with disabled():
        optimizer.param_groups[0]["weight_decay"] = 0
        assert optimizer._rows() is None


def test_augmented_batches_are_replayed_and_equal_those_of_a_cpu():
    images = torch.randint(0, 256, (45, 3, 32, 32), dtype=torch.uint8)
    batches = [
        OrbitBatches(
            ObservedOrbits(images, torch.arange(45) // 5, torch.arange(0, 45, 5), device=device),
            orbits_per_batch=8,
            members_per_batch=4,
            augmentation=Augmentation.moderate(32),
        )
        for device in ("cuda", "cpu")
    ]
    model = RectifyingEncoder(size_px=32, in_channels=3, channels=(16, 32), code_size=64).cuda()
    loss, monitor = built_loss("OE", code_size=64, num_orbits=9), Monitor()
    optimizer = adam([{"params": list(model.parameters())}], rate=1e-4)
    steps, _ = choose_steps(
        "auto", model.train(), loss, optimizer, batches[0], monitor, use_bfloat16=True
    )
    assert isinstance(steps, RecordedSteps)
    for index in range(12):
        steps(index)
        one, other = batches[0].batch(index), batches[1].batch(index)
        torch.testing.assert_close(one.images.cpu(), other.images, atol=1e-3, rtol=0)
    assert steps.is_recording and steps.replays > 4
