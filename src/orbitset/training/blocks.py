"""The parts of a network that is fine-tuned, told by the names of its weights.

Networks keep what they repeat in numbered containers: `encoder.layer.3`, `blocks.3`, `stages.1`, `layer2.0`.
A block is what is under the outermost number. Weights are taken to be registered in the order in which images
pass them, as they are in the networks of timm and transformers.
"""

from itertools import groupby

from torch import nn

from orbitset.errors import ConfigError

BACKBONE = "backbone"
"""What the network that is fine-tuned is called inside a model"""


def block_of(name: str) -> str:
    """The block that a weight is in; an empty text for weights in no block.

    >>> block_of("backbone.encoder.layer.3.mlp.0.weight"), block_of("backbone.norm.weight")
    ('backbone.encoder.layer.3', '')
    """
    fields = name.split(".")
    numbers = [at for at, field in enumerate(fields) if field.isdecimal()]
    return ".".join(fields[: numbers[0] + 1]) if numbers else ""


def backbone_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: w for name, w in model.named_parameters() if BACKBONE in name.split(".")}


def blocks_of(model: nn.Module, setting: str) -> list[str]:
    """The names of the blocks of the backbone, from the input on. `setting` is what needs them."""
    blocks = dict.fromkeys(filter(None, map(block_of, backbone_weights(model))))
    if not blocks:
        raise ConfigError(
            f"{setting} needs a network of numbered blocks, such as blocks.0, blocks.1; this one has none",
            hint=f"leave out {setting}",
        )
    return list(blocks)


def parts_of(model: nn.Module, setting: str) -> list[list[str]]:
    """The weights of the backbone by part, from the input on: the blocks, and what is before, between and
    behind them."""
    blocks_of(model, setting)
    return [list(part) for _, part in groupby(backbone_weights(model), key=block_of)]
