import pytest
from torch import nn

from orbitset.errors import ConfigError
from orbitset.training.blocks import block_of, blocks_of, parts_of


def test_parts_are_in_the_order_of_the_network(blocks_model):
    parts = parts_of(blocks_model(), "train.layer_decay")
    assert parts[0] == ["backbone.stem.weight", "backbone.stem.bias"]
    assert parts[-1] == ["backbone.norm.weight", "backbone.norm.bias"]
    names = [f"backbone.blocks.{number}" for number in range(3)]
    assert [{block_of(name) for name in part} for part in parts[1:-1]] == [{n} for n in names]
    assert blocks_of(blocks_model(), "train.recompute") == names


@pytest.mark.parametrize(
    ("kind", "first", "num"),
    [
        ("dinov2", "encoder.layer.0", 2),
        ("siglip_vision_model", "encoder.layers.0", 2),
        ("resnet", "encoder.stages.0", 2),
        ("convnext", "encoder.stages.0", 2),
    ],
)
def test_networks_of_transformers_have_blocks_between_stem_and_head(kind, first, num):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind in ("resnet", "convnext"):
        sizes = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "embedding_size": 8}
    model = nn.Module()
    config = transformers.CONFIG_MAPPING[kind](image_size=28, patch_size=4, **sizes)
    model.backbone = transformers.AutoModel.from_config(config)
    blocks = blocks_of(model, "train.recompute")
    assert (blocks[0], len(blocks)) == (f"backbone.{first}", num)
    parts = [block_of(part[0]) for part in parts_of(model, "train.layer_decay")]
    assert parts[:3] == ["", *blocks]


def test_a_network_without_blocks_is_refused():
    model = nn.Module()
    model.backbone = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"train.unfreeze needs a network of numbered blocks"):
        parts_of(model, "train.unfreeze")
