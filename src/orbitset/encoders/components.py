"""Layers that make codes of the features of a pretrained network without losing what these tell apart.

Shapes: N images, F features, D code entries.
"""

import torch
from torch import Tensor


def first_features(num_features: int, code_size: int) -> tuple[Tensor, Tensor]:
    """Weight (D, F) and bias (D,) of a layer that gives the features as they are, as far as codes have room.

    >>> first_features(3, 2)[0].tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return torch.eye(code_size, num_features), torch.zeros(code_size)


def principal_components(
    features_NF: Tensor, code_size: int, *, is_whitened: bool = False
) -> tuple[Tensor, Tensor]:
    """Weight (D, F) and bias (D,) of a layer that gives the principal components of features.

    Directions are those of most length, as seen from zero, so that angles between codes are those between
    features, as nearly as they can be. Whitened they are those of most variance, as seen from the mean, each
    with the same variance. Beyond as many directions as there are images, codes are 0.

    >>> weight, bias = principal_components(torch.tensor([[3.0, 4.0], [6.0, 8.0]]), 1)
    >>> weight.abs().tolist(), bias.tolist()
    ([[0.6000000238418579, 0.800000011920929]], [0.0])
    """
    features = features_NF.double()
    mean_F = features.mean(0)
    seen_NF = features - mean_F if is_whitened else features
    _, lengths, directions = torch.linalg.svd(seen_NF, full_matrices=False)
    weight = torch.zeros(code_size, features.shape[1], dtype=features.dtype)
    num = min(code_size, int((lengths > lengths[0] * 1e-6).sum()))
    weight[:num] = directions[:num]
    if is_whitened:
        weight[:num] *= (lengths[0] / lengths[:num])[:, None]
    bias = -(weight @ mean_F) if is_whitened else torch.zeros_like(weight[:, 0])
    return weight.float(), bias.float()
