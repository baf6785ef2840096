import math

import pytest
import torch

from orbitset.losses import exemplar_loss


def slow_exemplar_loss(codes, orbits, weight, bias):
    total = 0.0
    for code, orbit in zip(codes.tolist(), orbits.tolist(), strict=True):
        scores = [
            sum(c * w for c, w in zip(code, row, strict=True)) + b
            for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
        ]
        total += math.log(sum(math.exp(score) for score in scores)) - scores[orbit]
    return total / len(codes)


@pytest.fixture
def case(rng):
    codes, weight, bias = (
        torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((6, 3), (5, 3), 5)
    )
    return codes, torch.tensor([0, 4, 4, 2, 1, 0]), weight, bias


def test_exemplar_loss_equals_the_oracle(case):
    assert exemplar_loss(*case).item() == pytest.approx(slow_exemplar_loss(*case), rel=1e-12)


def test_exemplar_loss_by_hand():
    codes, weight = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [math.log(3)]])
    loss = exemplar_loss(codes, torch.tensor([1, 0]), weight, torch.zeros(2))
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(10)) / 2, rel=1e-6)


def test_exemplar_loss_passes_gradcheck(case):
    codes, orbits, weight, bias = case
    parts = [part.clone().requires_grad_() for part in (codes, weight, bias)]
    assert torch.autograd.gradcheck(lambda c, w, b: exemplar_loss(c, orbits, w, b), parts)


def test_exemplar_loss_ignores_batch_order(case):
    codes, orbits, weight, bias = case
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    permuted = exemplar_loss(codes[order], orbits[order], weight, bias)
    torch.testing.assert_close(permuted, exemplar_loss(*case))


def test_exemplar_loss_has_finite_gradients_for_large_codes():
    codes = torch.full((4, 3), 1e4, requires_grad=True)
    weight = torch.eye(4, 3, requires_grad=True)
    exemplar_loss(codes, torch.tensor([0, 1, 2, 3]), weight, torch.zeros(4)).backward()
    assert codes.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_exemplar_loss_of_a_nan_code_is_nan(case):
    codes, orbits, weight, bias = case
    codes[2, 1] = torch.nan
    assert exemplar_loss(codes, orbits, weight, bias).isnan()


def test_exemplar_loss_refuses_an_orbit_without_a_class(case):
    codes, orbits, weight, bias = case
    with pytest.raises(IndexError, match="out of bounds"):
        exemplar_loss(codes, orbits + 1, weight, bias)
