"""Without a GPU only the refusal can be seen; the rest is in tests/test_gpu_kernels.py."""

import re

import pytest
import torch

from orbitset.cuda import layers
from orbitset.cuda.fused import FusedEncoder, _Pass
from orbitset.cuda.fused_plan import (
    Plan,
    encoder_kinds,
    why_other_network,
    why_other_shape,
)
from orbitset.encoders import RectifyingEncoder


def test_a_model_on_the_cpu_says_why_it_has_no_fused_twin():
    model = RectifyingEncoder(size_px=32, channels=(16,), code_size=8)
    with pytest.raises(ValueError, match="NVIDIA GPU"):
        FusedEncoder(model)


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        ((3, 32, (16, 16), 2, "copy"), "one channel"),
        ((1, 32, (16, 16), 4, "copy"), "pooling"),
        ((1, 32, (16, 16), 2, "corner"), "pooling"),
        ((1, 32, (16, 24), 2, "copy"), "channels only"),
        ((1, 48, (16, 16), 2, "copy"), "canvases"),
        ((1, 4, (16, 16, 32, 32), 2, "copy"), "canvases"),
    ],
)
def test_other_shapes_are_refused_in_words(shape, word):
    assert word in why_other_shape(*shape)
    for unpooling in ("copy", "switches"):
        assert why_other_shape(1, 64, (16, 16, 32, 32), 2, unpooling) is None


def test_other_networks_are_refused_in_words():
    class Derived(RectifyingEncoder):
        pass

    def model(kind=RectifyingEncoder):
        return kind(size_px=32, channels=(16,), code_size=8)

    assert why_other_network(model()) is None
    assert "derived" in why_other_network(model(Derived))
    frozen = model()
    frozen.encoder.convs[0].weight.requires_grad_(False)
    assert "all weights" in why_other_network(frozen)
    assert "float32" in why_other_network(model().double())
    watched = model()
    watched.encoder.convs[0].register_forward_hook(lambda *_: None)
    assert "hooks" in why_other_network(watched)
    cumulative = model()
    cumulative.encoder.norms[0].momentum = None
    assert "momentum" in why_other_network(cumulative)


def test_layers_read_what_the_layers_before_them_leave():
    assert [encoder_kinds(layer)[0] for layer in range(4)] == ["IM2COL", "ACT", "ACT_POOL", "ACT"]
    assert [encoder_kinds(layer)[1] for layer in range(4)] == ["GRAD", "GRAD_POOL"] * 2
    for unpooling, read in (("copy", "ACT_UP"), ("switches", "ACT_SWITCH")):
        model = RectifyingEncoder(size_px=32, channels=(16, 32), code_size=8, unpooling=unpooling)
        plan = Plan(model)
        assert [plan.decoder_kinds(layer)[1] for layer in range(4)] == ["ACT", read] * 2


def test_the_plan_packs_every_convolution_forward_and_transposed():
    model = RectifyingEncoder(size_px=32, channels=(16, 32), code_size=8)
    plan = Plan(model)
    packed = plan.pack()
    assert [len(part) for part in packed[:4]] == [16 * 16, 9 * 16 * 16, 9 * 256, 9 * 256]
    assert [len(part) for part in packed[4:]] == [9 * 16 * 32, 9 * 16 * 32, 9 * 1024, 9 * 1024]
    for conv, forward in zip(plan.convs, packed[::2], strict=True):
        kept = forward[forward != 0].float().sort().values
        expected = conv.weight.detach().bfloat16().float().flatten().sort().values
        assert torch.equal(kept, expected)


@pytest.mark.parametrize("uses_decoder", [True, False])
def test_parameters_are_those_the_pass_has_gradients_for(uses_decoder):
    model = RectifyingEncoder(size_px=32, channels=(16,), code_size=8, code_norm="batch")
    images = torch.rand(3, 1, 32, 32)
    codes, rectified = model(images) if uses_decoder else (model.encode(images), torch.zeros(1))
    (codes.square().sum() + rectified.sum()).backward()
    with_gradient = {id(p) for p in model.parameters() if p.grad is not None}
    assert {id(p) for p in Plan(model).parameters(uses_decoder)} == with_gradient


class _Launched:
    """Stands in for a kernel: notes that it was launched, and with what grid."""

    log: list = []

    def __init__(self, text, name, *, threads, shared_bytes=0):
        self.text, self.name, self.threads, self.resident_blocks = text, name, threads, 264

    def __call__(self, grid, *arguments):
        assert min(grid) >= 1 and all(argument is not None for argument in arguments)
        self.log.append(self.text)


@pytest.fixture
def _kernels_that_do_nothing(monkeypatch):
    factories = (
        layers.convolution, layers.weight_gradient, layers.pointwise, layers.sum_slabs,
        layers.update_norms, layers.find_switches,
    )  # fmt: skip
    monkeypatch.setattr(layers, "Kernel", _Launched)
    monkeypatch.setattr(_Launched, "log", [])
    for factory in factories:
        factory.cache_clear()
    yield
    for factory in factories:
        factory.cache_clear()


@pytest.mark.usefixtures("_kernels_that_do_nothing")
@pytest.mark.parametrize("uses_decoder", [True, False])
@pytest.mark.parametrize("image_gradient", [True, False])
@pytest.mark.parametrize("code_norm", ["none", "batch", "unit", "sphere"])
@pytest.mark.parametrize(
    ("size_px", "channels", "unpooling"),
    [
        (32, (16, 32), "copy"),
        (32, (16, 32), "switches"),
        (64, (16, 32), "copy"),
        (64, (16, 32, 64), "copy"),
    ],
)
def test_the_pass_launches_what_the_plan_compiles(
    uses_decoder, image_gradient, code_norm, size_px, channels, unpooling
):
    """On a CPU: every gradient has the shape of its parameter."""
    model = RectifyingEncoder(
        size_px=size_px, channels=channels, code_size=8, code_norm=code_norm, unpooling=unpooling
    )
    plan, images = Plan(model), torch.rand(6, 1, size_px, size_px)
    together = [layer for layer in range(plan.depth) if plan.takes_both(layer)]
    assert together == ([0, 1, 2, 3] if size_px == 64 else [])
    run = _Pass(plan, images, uses_decoder, image_gradient)
    codes = run.encode()
    assert codes.shape == (6, 8)
    if uses_decoder:
        rectified = run.decode()
        assert rectified.shape == images.shape
        run.decoder_backward(torch.rand_like(rectified))
    grads = run.encoder_backward(torch.rand_like(codes))
    parameters = plan.parameters(uses_decoder)
    assert [g.shape for g in grads] == [p.shape for p in parameters]
    of_layers = "NAME (convolution|weight_gradient|switches)_"
    layered = [text for text in _Launched.log if re.search(of_layers, text)]
    assert sorted(layered) == sorted(plan.sources(6, uses_decoder, image_gradient))
    assert (run.grad_images is not None) == image_gradient


@pytest.mark.usefixtures("_kernels_that_do_nothing")
@pytest.mark.parametrize("size_px", [32, 64])
def test_a_decoder_that_did_not_go_back_has_no_gradient(size_px):
    model = RectifyingEncoder(size_px=size_px, channels=(16, 32), code_size=8)
    plan = Plan(model)
    run = _Pass(plan, torch.rand(6, 1, size_px, size_px), uses_decoder=True)
    codes, _ = run.encode(), run.decode()
    grads = run.encoder_backward(torch.rand_like(codes))
    of_encoder = {id(parameter) for parameter in plan.parameters(uses_decoder=False)}
    for parameter, grad in zip(plan.parameters(uses_decoder=True), grads, strict=True):
        assert (grad is not None) == (id(parameter) in of_encoder)
