"""Without a GPU only the refusal can be seen; the rest is in tests/test_gpu_kernels.py."""

import pytest
import torch

from orbitset.encoders import RectifyingEncoder
from orbitset.encoders.fused import FusedEncoder
from orbitset.encoders.fused_plan import Plan, decoder_kinds, encoder_kinds


def test_a_model_on_the_cpu_says_why_it_has_no_fused_twin():
    model = RectifyingEncoder(size_px=32, channels=(16,), code_size=8)
    twin, reason = model.fused()
    assert twin is None and "NVIDIA GPU" in reason
    with pytest.raises(ValueError, match="NVIDIA GPU"):
        FusedEncoder(model)


def test_layers_read_what_the_layers_before_them_leave():
    assert [encoder_kinds(layer)[0] for layer in range(4)] == ["IM2COL", "ACT", "ACT_POOL", "ACT"]
    assert [encoder_kinds(layer)[1] for layer in range(4)] == ["GRAD", "GRAD_POOL"] * 2
    assert [decoder_kinds(layer)[1] for layer in range(4)] == ["ACT", "ACT_UP"] * 2


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
