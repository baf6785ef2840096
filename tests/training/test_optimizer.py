import pytest
import torch
from torch import nn

from orbitset.training.optimizer import adam, groups_of, set_rate


def _moved(groups, steps=1, **how):
    """A weight of 1 with a gradient of 1, after so many steps."""
    optimizer = adam(groups, rate=0.1, **how)
    for _ in range(steps):
        for group in groups:
            for weight in group["params"]:
                weight.grad = torch.ones_like(weight)
        optimizer.step()
    return [weight.item() for group in groups for weight in group["params"]]


def _weight():
    return nn.Parameter(torch.ones(1))


def test_every_group_takes_its_share_of_the_rate():
    groups = [{"params": [_weight()]}, {"params": [_weight()], "share": 0.5}]
    assert _moved(groups) == pytest.approx([0.9, 0.95])


def test_decay_is_not_mixed_with_the_gradient():
    """A share of the weight itself is taken, as large as the learning rate times the decay."""
    groups = [{"params": [_weight()]}, {"params": [_weight()], "share": 0.5, "weight_decay": 2.0}]
    assert _moved(groups) == pytest.approx([0.9, 1 - 0.05 * 2 - 0.05])


def test_without_decay_it_is_adam():
    groups = [{"params": [_weight()]}]
    optimizer = adam(groups, rate=0.1)
    assert type(optimizer) is torch.optim.Adam
    set_rate(optimizer, 0.2)
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_of_several_names_the_longest_counts():
    net = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.Linear(1, 1))
    groups = groups_of(net, nn.Linear(1, 1), rate_shares={"0.": 0.5, "0.1.": 0.1, "loss.": 0.2})
    found = {id(weight): group["share"] for group in groups for weight in group["params"]}
    assert [found[id(weight)] for weight in net.parameters()] == [0.5, 0.5, 0.1, 0.1, 1, 1]
    assert sorted(found.values()).count(0.2) == 2


@pytest.mark.parametrize("kind", ["rate_shares", "weight_decays"])
def test_parts_that_are_not_there_are_refused(kind):
    net = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=f"{kind} names 'missing.'"):
        groups_of(net, nn.Module(), **{kind: {"missing.": 0.1}})
    with pytest.raises(ValueError, match=f"{kind} gives 'weight' -1"):
        groups_of(net, nn.Module(), **{kind: {"weight": -1}})
