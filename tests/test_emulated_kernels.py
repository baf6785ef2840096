"""The fused training pass with its kernels run on a CPU: slow, and true to the letter of the kernels.

What a GPU forgives is seen here: shared memory that nobody wrote is NaN, memory that was let go is others'.
"""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from emulation import COMPILER, EmulatedKernel, compiled

from orbitset.encoders import RectifyingEncoder
from orbitset.encoders.fused import _Pass
from orbitset.encoders.fused_plan import Plan
from orbitset.kernels import layers

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile kernels with")
_FACTORIES = (
    layers.convolution, layers.weight_gradient, layers.pointwise, layers.finish_step,
    layers.find_switches,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(layers, "Kernel", EmulatedKernel)
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
    with torch.no_grad():  # norms that matter: scales of either sign, shifts
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(-0.3, 1.2)
                module.bias.normal_(0, 0.3)
    return model


def _images(num, size):
    """Some of them flat, where cells of a window are equal."""
    images = torch.rand(num, 1, size, size)
    images[:, :, : size // 4] = 0
    return images


def _emulated_pass(model, images, pulls):
    plan = Plan(model)
    _compile_ahead(plan, len(images))
    run = _Pass(plan, images, uses_decoder=True)
    codes, rectified = run.forward()
    switches = [run.switches[layer].permute(0, 3, 1, 2) for layer in sorted(run.switches)]
    grads = run.backward(*pulls)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(p)]: g for p, g in zip(plan.parameters(True), grads, strict=True)}
    return {"codes": codes, "rectified": rectified, **found}, switches


def _decode_with(model, switches):
    """Un-pool by these: where two cells of a window are all but equal, rounding chooses between them."""
    model._decode = lambda codes, _: type(model)._decode(model, codes, switches)


def _plain_pass(model, run, images, pulls):
    codes, rectified = run(images)
    torch.autograd.backward([codes, rectified], [pull.to(codes.dtype) for pull in pulls])
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"codes": codes.detach(), "rectified": rectified.detach(), **grads}


def _error(found, truth):
    return ((found.double() - truth.double()).norm() / truth.double().norm()).item()


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
            _decode_with(other, switches)
    truth = _plain_pass(exact, exact, images.double(), pulls)
    expected = _plain_pass(theirs, autocast, images, pulls)
    for name, value in truth.items():
        if name != "encoder.code.bias":  # which a norm of the code undoes
            assert _error(ours[name], value) < 1.5 * _error(expected[name], value) + 0.02, name
            assert _error(ours[name], alone[name]) < 0.05, name
