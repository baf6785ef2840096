"""The code layer without kernels, held to plain float64; with them it is in tests/test_gpu_kernels.py."""

import copy
import weakref

import pytest
import torch
import torch.nn.functional as F

from orbitset.cuda.fused_code import CodeLayer
from orbitset.cuda.fused_plan import Plan
from orbitset.encoders import RectifyingEncoder

NUM = 12


def _channels_first(top):
    return top.double().permute(0, 3, 1, 2).flatten(1)


def _near(ours, truth):
    """As near as bfloat16 allows."""
    assert (ours.double() - truth).norm() < 2e-2 * truth.norm() + 1e-6


@pytest.mark.parametrize("code_norm", ["none", "batch", "unit", "sphere"])
@pytest.mark.parametrize("uses_decoder", [False, True])
def test_codes_top_and_gradients_are_those_of_plain_torch(code_norm, uses_decoder):
    torch.manual_seed(0)
    model = RectifyingEncoder(size_px=16, channels=(16, 32), code_size=40, code_norm=code_norm)
    truth = copy.deepcopy(model).double()
    layer = CodeLayer(Plan(model), NUM, uses_decoder)
    layer.pooled.copy_(torch.randn(layer.pooled.shape))
    codes = layer.encode()

    pooled = _channels_first(layer.pooled).requires_grad_()
    weight, bias = truth.encoder.code.weight, truth.encoder.code.bias
    expected = truth.code_norm(F.linear(pooled, weight, bias))
    _near(codes, expected.detach())
    outputs, pulls = [expected], [torch.randn(NUM, 40, dtype=torch.float64)]
    if uses_decoder:
        layer.grad_top.copy_(torch.randn(layer.grad_top.shape))
        top = expected @ weight
        _near(_channels_first(layer.decode()), top.detach())
        outputs.append(top)
        pulls.append(_channels_first(layer.grad_top))

    grad_pooled, grads = layer.backward(pulls[0].float(), has_decoded=uses_decoder)
    torch.autograd.backward(outputs, pulls)
    _near(_channels_first(grad_pooled), pooled.grad)
    for ours, parameter in zip(grads, (weight, bias, *truth.code_norm.parameters()), strict=True):
        if parameter is bias and code_norm in ("batch", "sphere"):
            assert ours.abs().max() < 1e-2 * grads[0].abs().max()  # a bias is taken off again
        else:
            _near(ours, parameter.grad)


@pytest.mark.parametrize("code_norm", ["none", "batch"])
def test_codes_are_not_held_by_what_they_hold(code_norm):
    """The layer is kept by the codes' gradient function: holding them would keep both for ever."""
    model = RectifyingEncoder(size_px=16, channels=(16,), code_size=8, code_norm=code_norm)
    layer = CodeLayer(Plan(model), NUM, uses_decoder=False)
    layer.pooled.copy_(torch.randn(layer.pooled.shape))
    codes = weakref.ref(layer.encode())
    assert codes() is None
    assert layer.grad_top.numel() == 0
