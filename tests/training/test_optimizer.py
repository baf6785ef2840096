import pytest
import torch
from torch import nn

from orbitset.training.optimizer import adam, groups_of, set_rate


def _weight():
    return nn.Parameter(torch.ones(1))


def test_every_group_takes_its_share_of_the_rate():
    """Adam's first step is as long as the learning rate."""
    weights = [_weight(), _weight()]
    optimizer = adam([{"params": weights[:1]}, {"params": weights[1:], "share": 0.5}], rate=0.1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert [weight.item() for weight in weights] == pytest.approx([0.9, 0.95])


def test_a_new_rate_is_shared_too():
    optimizer = adam([{"params": [_weight()]}, {"params": [_weight()], "share": 0.5}], rate=0.1)
    set_rate(optimizer, 0.2)
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.1]


def test_of_several_names_the_longest_counts():
    net = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.Linear(1, 1))
    groups = groups_of(net, nn.Linear(1, 1), rate_shares={"0.": 0.5, "0.1.": 0.1, "loss.": 0.2})
    found = {id(weight): group["share"] for group in groups for weight in group["params"]}
    assert [found[id(weight)] for weight in net.parameters()] == [0.5, 0.5, 0.1, 0.1, 1, 1]
    assert sorted(found.values()).count(0.2) == 2


def test_parts_that_are_not_there_are_refused():
    net = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"rate_shares names 'missing\.'"):
        groups_of(net, nn.Module(), rate_shares={"missing.": 0.1})
    with pytest.raises(ValueError, match="rate_shares gives 'weight' -1"):
        groups_of(net, nn.Module(), rate_shares={"weight": -1})


def test_weight_decay_spares_vectors():
    """Without gradients of the loss only decay changes weights: by rate times decay, each step."""
    net = nn.Linear(3, 2)
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    optimizer = adam([{"params": list(net.parameters())}], rate=0.1, weight_decay=0.5)
    for weight in net.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    torch.testing.assert_close(net.weight, before["weight"] * (1 - 0.1 * 0.5))
    assert torch.equal(net.bias, before["bias"])


def test_parts_that_decay_and_do_not_keep_their_shares():
    net = nn.Linear(3, 2)
    groups = [{"params": list(net.parameters()), "share": 0.5}]
    optimizer = adam(groups, rate=0.1, weight_decay=0.5)
    set_rate(optimizer, 0.2)
    rates = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert rates == [(0.1, 0.5), (0.1, 0.0)]


def test_gradients_are_clipped_together():
    net = nn.Linear(3, 2)
    optimizer = adam([{"params": list(net.parameters())}], rate=0.1, clip_norm=0.5)
    for weight in net.parameters():
        weight.grad = torch.full_like(weight, 3.0)
    optimizer.step()
    norm = torch.cat([weight.grad.flatten() for weight in net.parameters()]).norm()
    torch.testing.assert_close(norm, torch.tensor(0.5))


def test_without_decay_and_clipping_it_is_plain_adam():
    optimizer = adam([{"params": list(nn.Linear(3, 2).parameters())}], rate=0.1)
    assert type(optimizer) is torch.optim.Adam


def test_each_part_of_the_backbone_learns_slower_than_the_one_behind_it(blocks_model):
    """Times the share that it has as a part of the model."""
    model = blocks_model()
    groups = groups_of(model, nn.Module(), rate_shares={"backbone.": 0.1}, layer_decay=0.5)
    shares = {id(weight): group["share"] for group in groups for weight in group["params"]}
    rates = {name: shares[id(weight)] for name, weight in model.named_parameters()}
    assert rates["code.weight"] == rates["decoder.last.weight"] == 1
    expected = [0.1, 0.05, 0.025, 0.0125, 0.00625]
    parts = ("norm", "blocks.2", "blocks.1", "blocks.0", "stem")
    for part, rate in zip(parts, expected, strict=True):
        of_part = [rates[name] for name in rates if name.startswith(f"backbone.{part}.")]
        assert of_part == pytest.approx([rate] * len(of_part))
