"""Directions of a factor in codes, and networks without them."""

import pytest
import torch
import torch.nn.functional as F

from orbitset.encoders import (
    BackboneEncoder,
    RectifyingEncoder,
    SpatialTransformer,
    TransformedEncoder,
)
from orbitset.encoders.erasing import erase, put_back, telling_directions

NORMS = ("none", "batch", "unit", "sphere")


def _codes(*, shared, own, size=16, things=12, values=3):
    """Codes of every thing at every value of a factor, which changes all things alike, or each by itself."""
    generator = torch.Generator().manual_seed(0)
    thing_N = torch.arange(things).repeat_interleave(values)
    value_N = torch.arange(values).repeat(things)
    codes = torch.randn(things, size, generator=generator)[thing_N]
    codes += shared * torch.randn(values, size, generator=generator)[value_N]
    return codes + own * torch.randn(len(codes), size, generator=generator), value_N, thing_N


def _network(norm):
    torch.manual_seed(0)
    network = RectifyingEncoder(size_px=16, channels=(4, 8), code_size=12, code_norm=norm)
    for _ in range(3):  # statistics that are not those of the start
        network(torch.rand(20, 1, 16, 16))
    if norm == "batch":  # scales that differ, as after a training
        network.code_norm.weight.data.copy_(torch.linspace(0.2, 2, 12))
    return network.eval()


def _mean_difference(codes, value_N):
    return (codes[value_N == 0].mean(0) - codes[value_N == 1].mean(0)).norm()


def test_what_is_shared_by_all_things_is_found():
    codes, value_N, thing_N = _codes(shared=3, own=0.1)
    directions = telling_directions(codes, value_N, thing_N)
    assert directions.shape == (16, 2)
    assert torch.allclose(directions.T @ directions, torch.eye(2), atol=1e-5)
    left = codes - codes @ directions @ directions.T
    assert _mean_difference(left, value_N) < 1e-4 < _mean_difference(codes, value_N)


def test_what_each_thing_does_in_its_own_way_is_not_found():
    assert telling_directions(*_codes(shared=0, own=1, things=40)).shape == (16, 0)


def test_codes_without_a_value_do_not_count():
    codes, value_N, thing_N = _codes(shared=3, own=0.1)
    directions = telling_directions(codes, value_N, thing_N)
    strange = torch.cat([codes, 100 * torch.randn(5, 16)])
    unknown = torch.cat([value_N, torch.full((5,), -1)])
    found = telling_directions(strange, unknown, torch.cat([thing_N, torch.arange(5)]))
    assert torch.equal(found, directions)


def test_at_most_a_quarter_of_the_directions_is_taken():
    assert telling_directions(*_codes(shared=3, own=0.1, values=11)).shape == (16, 4)


@pytest.mark.parametrize("norm", NORMS)
def test_an_erased_network_gives_projected_codes(norm):
    network, images = _network(norm), torch.rand(30, 1, 16, 16)
    value_N = (torch.arange(30) < 10).long()
    images[value_N == 1] *= 0.4
    with torch.no_grad():
        before = network.encode(images)
        directions = telling_directions(before, value_N, torch.arange(30) % 10)
        assert directions.shape == (12, 1)
        erase(network, directions)
        after = network.encode(images)
    projected = before - before @ directions @ directions.T
    if norm == "unit":
        projected = F.normalize(projected, dim=1)
    if norm == "sphere":
        projected = F.normalize(projected, dim=1) * 12**0.5
    assert torch.allclose(after, projected, atol=2e-3)
    assert _mean_difference(after, value_N) < 0.25 * _mean_difference(before, value_N)


@pytest.mark.parametrize("norm", NORMS)
def test_what_was_erased_can_be_put_back(norm):
    network = _network(norm)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    with put_back(network):
        erase(network, torch.eye(12)[:, :2])
        assert not torch.equal(network.encoder.code.weight, state["encoder.code.weight"])
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def test_a_tied_decoder_sees_projected_codes_as_before():
    network, directions = _network("sphere"), torch.eye(12)[:, :2]
    codes = torch.randn(4, 12)
    codes[:, :2] = 0
    with torch.no_grad():
        before = network.decode(codes)
        erase(network, directions)
        assert torch.allclose(network.decode(codes), before, atol=1e-5)


def test_networks_behind_a_transformer_and_other_networks_are_erased_too():
    backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, 20))
    other = BackboneEncoder(backbone, in_channels=1, size_px=28, channels=(4,), code_size=12)
    behind = TransformedEncoder(SpatialTransformer(in_channels=1, size_px=28), other).eval()
    with torch.no_grad():
        erase(behind, torch.eye(12)[:, :1])
        assert behind.encode(torch.rand(3, 1, 28, 28))[:, 0].abs().max() < 1e-6
