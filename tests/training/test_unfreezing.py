import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder
from orbitset.errors import ConfigError
from orbitset.losses import OrbitJoint
from orbitset.orbits import AffineOrbits, OrbitBatches
from orbitset.training import TrainConfig, fit
from orbitset.training.unfreezing import Unfreezing


def _trained(steps, **settings):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, 2), nn.ReLU())
    model = BackboneEncoder(net, size_px=8, channels=(4,), code_size=5)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    images = torch.randint(256, (12, 1, 8, 8), dtype=torch.uint8)
    batches = OrbitBatches(
        AffineOrbits(images, canvas_px=8, members=3), orbits_per_batch=4, members_per_batch=2
    )
    config = TrainConfig(schedule="constant", **settings)
    fit(model, OrbitJoint(), batches, steps=steps, config=config)
    return {
        name.split(".")[0] for name, value in model.named_parameters()
        if not torch.equal(value, before[name])
    }  # fmt: skip


def test_the_backbone_waits_while_the_head_learns():
    assert _trained(4, head_first=0.5) == {"backbone", "code", "decoder"}
    assert _trained(4, head_first=1.0) == {"code", "decoder"}
    assert "backbone" in _trained(2, head_first=0.5)
    assert "backbone" not in _trained(1, head_first=0.5)


@pytest.mark.parametrize(
    ("head_first", "unfreeze", "last_change"),
    [(0.0, 0.0, 0), (0.2, 0.0, 2), (0.2, 0.5, 7), (1.0, 0.0, 0), (0.4, 0.6, 9)],
)
def test_from_the_last_change_on_the_same_weights_learn(
    blocks_model, head_first, unfreeze, last_change
):
    model = blocks_model()
    unfreezing = Unfreezing(model, steps=10, head_first=head_first, unfreeze=unfreeze)
    assert unfreezing.last_change == last_change
    learning = []
    for step in range(10):
        unfreezing(step)
        learning.append([weight.requires_grad for weight in model.parameters()])
    assert all(each == learning[-1] for each in learning[last_change:])
    assert not last_change or learning[last_change - 1] != learning[-1]


@pytest.mark.parametrize(("settings", "fast"), [({"head_first": 0.5}, [2, 3]), ({}, [0, 1, 2, 3])])
def test_steps_after_the_last_change_are_taken_the_fast_way(monkeypatch, settings, fast):
    """As a GPU would record them; the weights that learn are then those that learn to the end."""
    taken = []

    def fast_steps(steps, **_):
        learns = next(steps.network.backbone.parameters()).requires_grad

        def take(index):
            taken.append((index, learns))
            return steps(index)

        return take, "recorded"

    plain = _trained(4, **settings)
    monkeypatch.setattr("orbitset.training.steps.fast_steps", fast_steps)
    assert _trained(4, **settings) == plain
    assert [index for index, _ in taken] == fast
    assert all(learns for _, learns in taken) or not settings


def test_it_cannot_be_recorded_as_one_step():
    with pytest.raises(ConfigError, match="which weights learn changes on the way"):
        _trained(2, head_first=0.5, engine="fast")


def test_a_share_of_the_training_is_asked_for():
    with pytest.raises(ConfigError, match=r"train.head_first is 1.5"):
        TrainConfig(head_first=1.5)


def test_parts_join_from_the_last_to_the_first(blocks_model):
    """Of ten steps two are the head's; over five more the parts of the backbone join."""
    model = blocks_model()
    unfreezing = Unfreezing(model, steps=10, head_first=0.2, unfreeze=0.5)
    first = {}
    for step in range(10):
        unfreezing(step)
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                first.setdefault(name, step)
    at = [first[f"backbone.{part}.weight"] for part in ("norm", "blocks.2.norm", "blocks.1.norm")]
    assert at == [2, 4, 5]
    assert [first[f"backbone.{part}.weight"] for part in ("blocks.0.norm", "stem")] == [6, 7]
    assert first["code.weight"] == 0


def test_what_never_learns_stays_so_and_the_rest_learns_in_the_end(blocks_model):
    model = blocks_model()
    model.backbone.stem.weight.requires_grad_(False)
    unfreezing = Unfreezing(model, steps=4, head_first=1.0)
    unfreezing(0)
    assert not any(weight.requires_grad for weight in model.backbone.parameters())
    unfreezing.end()
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    assert frozen == ["backbone.stem.weight"]


def test_weights_that_join_later_change_less(blocks_model, fine_tune):
    model = blocks_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fine_tune(model, 4, head_first=0.25, unfreeze=0.5)
    after = model.state_dict()
    names = ("backbone.stem.weight", "backbone.norm.weight")
    late, early = ((after[name] - before[name]).abs().mean() for name in names)
    assert 0 < late < early


def test_shares_of_the_training_sum_to_at_most_1():
    with pytest.raises(ConfigError, match=r"train.head_first is 0.5 and train.unfreeze 0.6"):
        TrainConfig(head_first=0.5, unfreeze=0.6)
