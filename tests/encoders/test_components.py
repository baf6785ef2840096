import torch

from orbitset.encoders.components import first_features, principal_components


def test_the_first_features_are_given_as_they_are():
    features = torch.randn(5, 6)
    weight, bias = first_features(6, 6)
    assert torch.equal(features @ weight.T + bias, features)
    weight, bias = first_features(6, 4)
    assert torch.equal(features @ weight.T + bias, features[:, :4])


def test_as_many_components_as_features_keep_all_angles():
    torch.manual_seed(0)
    features = torch.randn(50, 8, dtype=torch.float64) + 3
    weight, bias = (part.double() for part in principal_components(features, 8))
    codes = features @ weight.T + bias
    torch.testing.assert_close(codes @ codes.T, features @ features.T, rtol=1e-5, atol=1e-5)


def test_fewer_components_are_the_best_approximation():
    """No projection onto as many directions is nearer to the features (Eckart and Young)."""
    torch.manual_seed(0)
    features = torch.randn(50, 8, dtype=torch.float64) * torch.arange(1, 9)
    weight, _ = principal_components(features, 3)
    weight = weight.double()
    error = (features - features @ weight.T @ weight).square().sum()
    lengths = torch.linalg.svdvals(features)
    torch.testing.assert_close(error, lengths[3:].square().sum(), rtol=1e-5, atol=0)


def test_whitened_components_have_no_mean_and_one_variance():
    torch.manual_seed(0)
    features = torch.randn(200, 6, dtype=torch.float64) @ torch.randn(6, 6).double() + 5
    weight, bias = (part.double() for part in principal_components(features, 4, is_whitened=True))
    codes = features @ weight.T + bias
    torch.testing.assert_close(codes.mean(0), torch.zeros(4).double(), rtol=0, atol=1e-4)
    covariance = codes.T @ codes
    expected = torch.eye(4).double() * covariance[0, 0]
    torch.testing.assert_close(covariance, expected, rtol=1e-4, atol=1e-3)


def test_beyond_the_images_directions_codes_are_zero():
    weight, bias = principal_components(torch.randn(3, 8), 6)
    assert torch.equal(weight[3:], torch.zeros(3, 8)) and not bias.any()
