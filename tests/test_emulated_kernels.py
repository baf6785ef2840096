"""Kernels run on a CPU, the whole fused training pass too: slow, and true to the letter of the kernels.

What a GPU forgives is seen here: shared memory that nobody wrote is NaN, memory that was let go is others'.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from emulation import COMPILER, EmulatedKernel, compiled
from fused_passes import by_block, decode_with, relative_error, with_norms_that_matter

from orbitset.cuda import adam, code_norm, layers, packing, squared_error, triplets, warp
from orbitset.cuda.fused import _Pass
from orbitset.cuda.fused_plan import Plan
from orbitset.encoders import RectifyingEncoder
from orbitset.losses import distance_matrix, mine, reconstruction_loss
from orbitset.losses.every_triplet import every_triplet_terms
from orbitset.losses.triplet import triplet_terms
from orbitset.orbits import AffineRanges, sample_affine
from orbitset.orbits.affine import warp_reference

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile kernels with")
_FACTORIES = (
    layers.convolution, layers.weight_gradient, layers.pointwise, layers.sum_slabs, layers.first_gradient,
    layers.update_norms, layers.find_switches, code_norm._kernel, squared_error._kernel,
    triplets._kernel, warp._kernel, adam._kernel, packing._kernel,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    for module in (adam, code_norm, layers, packing, squared_error, triplets, warp):
        monkeypatch.setattr(module, "Kernel", EmulatedKernel)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    for factory in _FACTORIES:
        factory.cache_clear()
    yield
    for factory in _FACTORIES:
        factory.cache_clear()


def _compile_ahead(plan, num):
    """On all cores."""
    texts = plan.sources(num, uses_decoder=True)
    names = [text.split("#define NAME ")[1].split()[0] for text in texts]
    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, texts, names))


def _model(size, channels, unpooling):
    torch.manual_seed(0)
    model = RectifyingEncoder(
        size_px=size, channels=channels, code_size=24, code_norm="sphere", unpooling=unpooling
    ).train()
    return with_norms_that_matter(model)


def _images(num, size):
    """Some of them flat, where cells of a window are equal."""
    images = torch.rand(num, 1, size, size)
    images[:, :, : size // 4] = 0
    return images


def _emulated_pass(model, images, pulls):
    plan = Plan(model)
    _compile_ahead(plan, len(images))
    run = _Pass(plan, images, uses_decoder=True)
    codes, rectified = run.encode(), run.decode()
    switches = by_block(run.switches)
    run.decoder_backward(pulls[1])
    grads = run.encoder_backward(pulls[0])
    assert all(norm.num_batches_tracked == 1 for norm, _ in run._norms(with_decoder=True))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(p)]: g for p, g in zip(plan.parameters(True), grads, strict=True)}
    return {"codes": codes, "rectified": rectified, **found}, switches


def _plain_pass(model, run, images, pulls):
    codes, rectified = run(images)
    torch.autograd.backward([codes, rectified], [pull.to(codes.dtype) for pull in pulls])
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"codes": codes.detach(), "rectified": rectified.detach(), **grads}


@pytest.mark.parametrize(
    ("size", "channels", "unpooling", "num"),
    [
        (64, (16, 32), "copy", 2),  # the measured shapes of narrow layers
        (16, (64, 128), "copy", 3),  # and of wide ones
        (16, (16, 32), "switches", 3),
    ],
)
def test_the_pass_is_as_near_the_truth_as_autocast(size, channels, unpooling, num):
    """Blocks take many tiles each. Gradients of few images all but cancel, and in bfloat16 are far from the
    truth whoever takes them: with one tile for each block they must be the same but for the order of sums."""
    model = _model(size, channels, unpooling)
    images, pulls = _images(num, size), (torch.randn(num, 24), torch.randn(num, 1, size, size))
    exact, theirs = deepcopy(model).double(), deepcopy(model)

    def autocast(x):
        with torch.autocast("cpu", torch.bfloat16):
            return theirs(x)

    few, many = (deepcopy(model) for _ in range(2))
    ours, switches = _emulated_pass(few, images, pulls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedKernel, "resident_blocks", 10**6)
        alone, _ = _emulated_pass(many, images, pulls)
    if unpooling == "switches":
        for other in (exact, theirs):
            decode_with(other, switches)
    truth = _plain_pass(exact, exact, images.double(), pulls)
    expected = _plain_pass(theirs, autocast, images, pulls)
    for name, value in truth.items():
        if name != "encoder.code.bias":  # which a norm of the code undoes
            assert (
                relative_error(ours[name], value)
                < 1.5 * relative_error(expected[name], value) + 0.02
            ), name
            assert relative_error(ours[name], alone[name]) < 0.05, name


def _batch(kind, num):
    codes, orbits = torch.randn(num, 24), torch.randint(0, 9, (num,))
    return codes.round() if kind == "ties" else codes, orbits


@pytest.mark.parametrize("kind", ["random", "ties"])
@pytest.mark.parametrize("variant", ["semihard-else-farthest", "semihard-nearest", "hardest"])
def test_triplets_their_loss_and_gradient_are_those_of_plain_torch(variant, kind):
    torch.manual_seed(0)
    codes, orbits = _batch(kind, 40)
    expected = mine(distance_matrix(codes), orbits, variant, margin=12.0)
    places = int(orbits.unique(return_counts=True)[1].max()) - 1
    *found, valid = triplets.mine_one_negative(
        distance_matrix(codes), orbits, variant, margin=12.0, places=places
    )
    for ours, theirs in zip(found, expected.compact(), strict=True):
        assert torch.equal(ours[valid], theirs)

    leaves = [codes.clone().requires_grad_() for _ in range(2)]
    loss, active = triplet_terms(
        leaves[0], expected.triplets, margin=12.0, valid=expected.valid, reduction="sum"
    )
    our_loss, our_active = triplets.triplet_terms(leaves[1], tuple(found), 12.0, valid)
    (2 * loss).backward()
    (2 * our_loss).backward()
    torch.testing.assert_close((our_loss, our_active), (loss, active))
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


def test_the_loss_over_every_triplet_and_its_gradient_are_those_of_plain_torch():
    torch.manual_seed(0)
    codes, orbits = _batch("random", 40)
    leaf = codes.clone().requires_grad_()
    loss, active = every_triplet_terms(leaf, orbits, margin=12.5)
    loss.backward()
    distances = distance_matrix(codes.double())
    weights, our_loss, our_active = triplets.weigh_every(distances, orbits, margin=12.5)
    torch.testing.assert_close((our_loss.float(), our_active.float()), (loss.detach(), active))
    grad = triplets.gradient_by_counts(codes, weights, torch.ones(()))
    torch.testing.assert_close(grad, leaf.grad)


def test_distances_are_those_of_plain_torch():
    codes = torch.randn(300, 8)
    centred = codes - codes[:16].mean(0)
    found = triplets.distances_from_products(centred @ centred.T)
    torch.testing.assert_close(found, distance_matrix(codes))


@pytest.mark.parametrize("num", [2, 70])
def test_batch_norm_of_codes_is_torchs(num):
    torch.manual_seed(0)
    linear = (3 + 2 * torch.randn(num, 32)).bfloat16()
    more, pull = torch.randn(num, 32).bfloat16(), torch.randn(num, 32)
    norm = torch.nn.BatchNorm1d(32, momentum=0.3)
    torch.nn.init.uniform_(norm.weight, -1, 1)
    truth = deepcopy(norm).double()
    leaf = linear.double().requires_grad_()
    expected = truth(leaf)
    expected.backward(pull.double() + more.double())
    rounded, gradient = torch.empty_like(linear), torch.empty_like(linear)
    codes, back = code_norm.normalise(linear, norm, rounded)
    grad_weight, grad_bias, _ = back.backward(pull, more, gradient)
    torch.testing.assert_close(codes.double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(rounded, codes.bfloat16())
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_var.double(), truth.running_var, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad_weight.double(), truth.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad_bias.double(), truth.bias.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient.double(), leaf.grad, rtol=2**-7, atol=1e-3)


def test_squared_errors_and_their_gradient_are_those_of_plain_torch():
    images, targets = torch.rand(3, 1, 9, 9), torch.rand(3, 1, 9, 9)
    leaves = [images.clone().requires_grad_() for _ in range(2)]
    loss = reconstruction_loss(leaves[0], targets)
    ours = squared_error.SquaredError.apply(leaves[1], targets, 1 / 3)
    loss.backward()
    ours.backward()
    torch.testing.assert_close(ours, loss)
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


def test_three_steps_of_adam_are_those_of_torch():
    """Over more tensors than a launch takes, some empty, some of more numbers than a block does."""
    torch.manual_seed(0)
    shapes = [(3000,), (0,), (8, 4, 3, 3), *[(5,)] * 70]
    weights = [torch.randn(shape) for shape in shapes]
    weights[2] = weights[2].contiguous(memory_format=torch.channels_last)
    theirs = [torch.nn.Parameter(weight.clone()) for weight in weights]
    truth = torch.optim.Adam(theirs, lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    steps = torch.zeros(())
    for _ in range(3):
        grads = [
            torch.randn(weight.shape).as_strided_(weight.shape, weight.stride())
            for weight in weights
        ]
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = grad.clone()
        truth.step()
        steps += 1
        rows = [(*row, steps) for row in zip(weights, grads, means, squares, strict=True)]
        assert all(map(adam.can_update, rows))
        adam.update(rows, torch.tensor(0.1), betas=(0.8, 0.95), eps=1e-6)
    torch.testing.assert_close(weights, [p.detach() for p in theirs])


def test_weights_are_packed_as_plain_torch_packs_them():
    torch.manual_seed(0)
    weights = [torch.randn(width, 9) for width in (16, 32, 512)]
    places = torch.cat([
        packing.place(torch.randint(-1, weight.numel(), (8 * 41,)), layer)
        for layer, weight in enumerate(weights)
    ])  # fmt: skip
    expected = packing._packed_plainly(weights, places)
    assert torch.equal(packing._packed_by_kernel(weights, places), expected)


@pytest.mark.parametrize("canvas_px", [64, 30, 1])
def test_the_warp_is_within_a_grey_level(canvas_px):
    images = torch.randint(0, 256, (4, 3, 9, 14), dtype=torch.uint8)
    rows = torch.tensor([2, 0, 3, 3, 1, 0])
    params = sample_affine(6, AffineRanges(), torch.Generator().manual_seed(0))
    params[0, 3:] = 1e6  # far outside
    ours = warp.warp(images, rows, params, canvas_px)
    assert (ours - warp_reference(images[rows], params, canvas_px)).abs().max() < 1 / 255
    assert (ours[0] == 0).all()
