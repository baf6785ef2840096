"""Training steps as they are taken on a GPU; run with -m gpu where there is one."""

import warnings

import pytest
import torch
from fused_passes import relative_error

from orbitset.config import with_settings
from orbitset.encoders import RectifyingEncoder, SpatialTransformer, TransformedEncoder
from orbitset.errors import ConfigError
from orbitset.kernels import disabled
from orbitset.losses import (
    LossConfig,
    build_loss,
    objective,
)
from orbitset.orbits import AffineOrbits, OrbitBatches
from orbitset.orbits.photometric import PhotometricRanges
from orbitset.recipes.affine_images import affine_digits
from orbitset.run_folder import Run
from orbitset.runs.train import train
from orbitset.training import fit
from orbitset.training.monitors import Monitor
from orbitset.training.optimizer import adam
from orbitset.training.progress import Silent
from orbitset.training.steps import ReplayedSteps, choose_steps

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
    loss = build_loss(method[:2], LossConfig(), code_size=64, num_orbits=45, default_margin=16.0)
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
    assert isinstance(fast, ReplayedSteps) and "fused" in how
    triples = []
    for step in range(40):
        with torch.no_grad():
            torch._foreach_copy_(ours, theirs)
            torch._foreach_copy_(precise, theirs)
        triples.append([taken(step)["loss"].clone() for taken in (fast, exact, reference)])
    found, truth, expected = (torch.stack(losses) for losses in zip(*triples, strict=True))
    assert sum(map(bool, fast._recorded.values())) >= 2
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
    loss = build_loss("OE", LossConfig(), code_size=64, num_orbits=45, default_margin=16.0)
    optimizer = adam([{"params": list(model.parameters())}], rate=1e-4)
    steps, _ = choose_steps("fast", model, loss, optimizer, batches, Monitor(), use_bfloat16=True)
    for index in range(12):
        steps(index)
    recorded = [one for kind in steps._recorded.values() for one in kind]
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
    assert isinstance(taken, ReplayedSteps)
    assert relative_error(_losses(taken), reference) < 3e-2


def test_a_loss_that_promises_nothing_is_not_replayed_but_trained():
    @objective()
    def spread(codes, batch, rectified):
        return {"loss": -codes.var(0).clamp(max=4).sum()}

    orbits = AffineOrbits(torch.randint(0, 256, (20, 1, 14, 14), dtype=torch.uint8).cuda())
    batches = OrbitBatches(orbits, orbits_per_batch=8, members_per_batch=4)
    model = RectifyingEncoder(code_size=32).cuda()
    fit(model, spread, batches, steps=4)
    with pytest.raises(ConfigError, match="did not promise"):
        fit(model, spread, batches, steps=4, engine="fast")


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
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore"):
        torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(40, 60):  # over the ends of passes and epochs
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
