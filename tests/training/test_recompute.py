import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder
from orbitset.errors import ConfigError
from orbitset.training.fit import TrainConfig, check_backbone
from orbitset.training.recompute import Recompute


def _gradients(model, *, is_on):
    """Gradients and codes of a batch, and how often the first block was computed."""
    calls = []
    recompute = Recompute(model.train(), is_on=is_on)
    handle = model.backbone.blocks[0].mlp.register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(2)  # dropout draws the same, twice
    codes = model.encode(torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(3)))
    codes.square().mul(torch.arange(6.0)).sum().backward()
    handle.remove()
    recompute.end()
    return [weight.grad for weight in model.backbone.parameters()], codes, len(calls)


def test_gradients_are_the_same(blocks_model):
    stored, recomputed = (_gradients(blocks_model(), is_on=is_on) for is_on in (False, True))
    assert torch.equal(stored[1], recomputed[1])
    assert all(torch.equal(a, b) for a, b in zip(stored[0], recomputed[0], strict=True))
    assert (stored[2], recomputed[2]) == (1, 2)


def test_a_training_is_the_same_and_leaves_no_trace(blocks_model, fine_tune):
    plain = fine_tune(blocks_model())
    model = fine_tune(blocks_model(), recompute=True)
    assert all(map(torch.equal, plain.state_dict().values(), model.state_dict().values()))
    assert not any("forward" in vars(block) for block in model.backbone.blocks)


def test_networks_of_transformers_are_recomputed(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = nn.Module()
    model.backbone = transformers.AutoModel.from_config(
        transformers.Dinov2Config(image_size=28, **sizes)
    )
    gradients = []
    for is_on in (False, True):
        recompute = Recompute(model.train(), is_on=is_on)
        model.zero_grad()
        model.backbone(torch.ones(2, 3, 28, 28)).last_hidden_state.square().sum().backward()
        gradients.append([w.grad for w in model.parameters() if w.grad is not None])
        recompute.end()
    assert len(gradients[0]) > 20
    assert all(map(torch.equal, *gradients))


def test_statistics_that_would_be_counted_twice_are_refused():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    sizes = {"size_px": 8, "channels": (4,), "code_size": 5}
    config = TrainConfig(recompute=True)
    with pytest.raises(ConfigError, match="statistics of batch norm twice"):
        check_backbone(BackboneEncoder(net, **sizes), config)
    check_backbone(BackboneEncoder(net, **sizes, norm_statistics="frozen"), config)
