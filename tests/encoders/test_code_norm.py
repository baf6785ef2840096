import pytest
import torch

from orbitset.encoders.code_norm import SphereNorm, build_code_norm


@pytest.mark.parametrize("kind", ["none", "batch", "unit", "sphere"])
def test_every_kind_gives_codes_of_the_same_shape(kind):
    assert build_code_norm(kind, 5)(torch.randn(7, 5)).shape == (7, 5)


def test_the_sphere_has_radius_sqrt_d_and_its_middle_at_the_codes_mean():
    codes = torch.randn(50, 16, dtype=torch.float64) * 3 + 100
    found = SphereNorm(16, eps=0).double()(codes)
    torch.testing.assert_close(found.norm(dim=1), torch.full((50,), 4.0, dtype=torch.float64))
    centred = codes - codes.mean(0)
    torch.testing.assert_close(found, 4 * torch.nn.functional.normalize(centred, dim=1))


def test_outside_training_the_running_mean_is_taken_off_and_stays():
    norm = SphereNorm(4, momentum=0.2)
    first, second = torch.randn(6, 4), torch.randn(6, 4)
    norm(first), norm(second)
    expected = 0.8 * (0.2 * first.mean(0)) + 0.2 * second.mean(0)
    torch.testing.assert_close(norm.running_mean, expected)
    norm.eval()
    found = norm(first[:1])
    torch.testing.assert_close(
        found, 2 * torch.nn.functional.normalize(first[:1] - expected, dim=1)
    )
    torch.testing.assert_close(norm.running_mean, expected)


def test_equal_codes_have_finite_gradients_on_the_sphere():
    codes = torch.ones(4, 3, requires_grad=True)
    SphereNorm(3)(codes).sum().backward()
    assert codes.grad.isfinite().all()


def test_gradients_on_the_sphere_are_right():
    codes = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    norm = SphereNorm(4).double()
    assert torch.autograd.gradcheck(norm, (codes,))


def test_unit_codes_have_length_one():
    codes = build_code_norm("unit", 5)(torch.randn(7, 5))
    torch.testing.assert_close(codes.norm(dim=1), torch.ones(7))


def test_batch_norm_has_a_scale_and_a_shift_to_learn():
    assert [parameter.shape for parameter in build_code_norm("batch", 5).parameters()] == [(5,)] * 2
