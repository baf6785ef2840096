"""Codes that do not tell the values of a factor apart: the directions in which they do are projected out.

The projection goes into the layer that makes codes, so that nothing else of a network knows about it.

Shapes: N codes of D entries, V values of a factor, R directions.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from orbitset.encoders.backbone import BackboneEncoder
from orbitset.encoders.build import Encoder, without_transformer
from orbitset.encoders.rectifying import RectifyingEncoder
from orbitset.seeds import stream

_MOST = 0.25
"""The share of the directions of a code that may be projected out"""
_SHARED = 1 / 3
"""How much of the differences that half of the things show the other half has. From a third on, at least
half of what all things show is shared by them (Spearman and Brown)."""
_HALVINGS = 4


def telling_directions(codes_ND: Tensor, value_N: Tensor, thing_N: Tensor) -> Tensor:
    """Orthonormal directions (D, R) in which mean codes of a factor's values differ, for all things alike.

    They are those of most variance between the values, at most a quarter of D, and only as many as are found
    again in things that they were not found with: none, if the factor changes each thing in a way of its own.
    Codes with a negative value do not count.

    >>> codes = torch.tensor([[3.0, 0, 0, 1], [3, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]])
    >>> light, thing = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    >>> telling_directions(codes, light, thing).abs().squeeze(1).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    is_known_N = value_N >= 0
    codes_ND, thing_N = codes_ND[is_known_N].double(), thing_N[is_known_N]
    value_N, count_V = value_N[is_known_N].unique(return_inverse=True, return_counts=True)[1:]
    share_V = count_V.double() / count_V.sum()
    most = min(len(count_V) - 1, int(_MOST * codes_ND.shape[1]))
    things = thing_N.unique()
    shared_R = codes_ND.new_zeros(max(most, 0))
    for halving in range(_HALVINGS):
        order = torch.randperm(len(things), generator=stream("halves of things", halving))
        is_first_N = torch.isin(thing_N, things[order.to(things.device)[: len(things) // 2]])
        one, other = (
            _differences(codes_ND[half_N], value_N[half_N], share_V)
            for half_N in (is_first_N, ~is_first_N)
        )
        shared_R += (_found_again(one, other, most) + _found_again(other, one, most)) / (
            2 * _HALVINGS
        )
    count = int((shared_R > _SHARED).sum())
    return _directions(_differences(codes_ND, value_N, share_V))[0][:count].T.float()


def _differences(codes_ND: Tensor, value_N: Tensor, share_V: Tensor) -> Tensor:
    """How the mean codes of values (V, D) differ from their mean, by the square roots of their shares."""
    count_V = value_N.bincount(minlength=len(share_V))
    sum_VD = codes_ND.new_zeros(len(share_V), codes_ND.shape[1]).index_add_(0, value_N, codes_ND)
    mean_VD = sum_VD / count_V.clamp(min=1)[:, None]
    share_V = share_V * (count_V > 0)
    mean_D = share_V @ mean_VD / share_V.sum().clamp(min=1e-9)
    return (mean_VD - mean_D) * share_V.sqrt()[:, None]


def _directions(difference_VD: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (R, D) of most variance, and the lengths of differences along them."""
    _, length_R, direction_RD = torch.linalg.svd(difference_VD, full_matrices=False)
    return direction_RD, length_R


def _found_again(one_VD: Tensor, other_VD: Tensor, most: int) -> Tensor:
    """For each direction of one half of the things, how much of its differences the other half has."""
    direction_RD, length_R = _directions(one_VD)
    both_R = ((one_VD @ direction_RD.T) * (other_VD @ direction_RD.T)).sum(0)
    return (both_R / length_R.square().clamp(min=1e-12))[:most]


@torch.no_grad()
def erase(network: Encoder, directions_DR: Tensor) -> None:
    """Project directions out of the codes of a network, before these get their length.

    A tied decoder sees what it saw, but for these directions.
    """
    layer, norm = _code_layer(network)
    read_DR = erased_DR = directions_DR.to(layer.weight)
    if isinstance(norm, nn.BatchNorm1d):  # it scales every entry afterwards
        assert norm.running_var is not None
        scale_D1 = (norm.weight * (norm.running_var + norm.eps).rsqrt())[:, None]
        read_DR, erased_DR = read_DR * scale_D1, erased_DR / scale_D1
    for entries in _linear_parts(layer, norm):
        entries.sub_(erased_DR @ (read_DR.T @ entries))


@contextmanager
def put_back(network: Encoder) -> Iterator[None]:
    """A context after which nothing is erased that was not before."""
    parts = _linear_parts(*_code_layer(network))
    copies = [part.clone() for part in parts]
    try:
        yield
    finally:
        for part, copy in zip(parts, copies, strict=True):
            part.copy_(copy)


def _code_layer(network: Encoder) -> tuple[nn.Linear, nn.Module]:
    """The layer that makes codes, and the norm behind it."""
    inner = without_transformer(network)
    assert isinstance(inner, BackboneEncoder | RectifyingEncoder)
    return (
        inner.code if isinstance(inner, BackboneEncoder) else inner.encoder.code
    ), inner.code_norm


def _linear_parts(layer: nn.Linear, norm: nn.Module) -> list[Tensor]:
    """What codes before their norm are a sum of."""
    parts = [layer.weight.detach(), layer.bias.detach()]
    mean_D = getattr(norm, "running_mean", None)
    return parts if mean_D is None else [*parts, mean_D]
