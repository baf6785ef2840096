import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder
from orbitset.errors import ConfigError
from orbitset.losses import OrbitJoint
from orbitset.orbits import AffineOrbits, OrbitBatches
from orbitset.training import TrainConfig, fit


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


def test_it_cannot_be_recorded_as_one_step():
    with pytest.raises(ConfigError, match="which weights learn changes on the way"):
        _trained(1, head_first=0.5, engine="fast")


def test_a_share_of_the_training_is_asked_for():
    with pytest.raises(ConfigError, match=r"train.head_first is 1.5"):
        TrainConfig(head_first=1.5)
