"""Low-rank additions to the linear layers of a transformer (LoRA, Hu et al. 2021): y = W x + b + up (down x),
where W and b stay as they are. In the end up down is added to W, so that a plain network is kept.

peft has this too, but only two matrix products of it would be used, and it renames weights.

Shapes: R the rank, I what a layer takes, O what it gives.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from orbitset.errors import ConfigError
from orbitset.training.blocks import backbone_weights, block_of

_DOWN, _UP = "lora_down", "lora_up"


class LowRank:
    """Additions of a rank to the linear layers in the blocks of the backbone of a model; none without a rank.

    Of the backbone only these and its normalisation layers learn. `down` begins at random and `up` at 0, so
    that nothing changes before the first step.
    """

    def __init__(self, model: nn.Module, rank: int | None) -> None:
        self._layers: list[tuple[nn.Linear, RemovableHandle]] = []
        self._frozen: list[nn.Parameter] = []
        self._is_merged = False
        if rank is None:
            return
        self._layers = [(linear, self._add(linear, rank)) for linear in linear_layers(model)]
        added = {
            weight for linear, _ in self._layers for weight in (linear.lora_down, linear.lora_up)
        }
        for name, weight in backbone_weights(model).items():
            kind = type(model.get_submodule(name.rpartition(".")[0])).__name__.lower()
            if "norm" not in kind and weight not in added and weight.requires_grad:
                self._frozen.append(weight)
                weight.requires_grad_(False)

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights of the model without the additions."""
        state = model.state_dict()
        return {name: w for name, w in state.items() if name.rpartition(".")[2] not in (_DOWN, _UP)}

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Inside, the additions are part of the weights."""
        before = [linear.weight.data for linear, _ in self._layers]
        for linear, _ in self._layers:
            linear.weight.data = linear.weight.data + _product(linear)
        self._is_merged = True
        try:
            yield
        finally:
            self._is_merged = False
            for (linear, _), weight in zip(self._layers, before, strict=True):
                # where it was: a recorded step of a GPU knows the place
                linear.weight.data = weight

    def end(self) -> None:
        """Make the additions part of the weights for good, all of which learn again."""
        for linear, handle in self._layers:
            linear.weight.data += _product(linear)
            handle.remove()
            delattr(linear, _DOWN)
            delattr(linear, _UP)
        for weight in self._frozen:
            weight.requires_grad_(True)
        self._layers, self._frozen = [], []

    def _add(self, linear: nn.Linear, rank: int) -> RemovableHandle:
        down_RI = nn.init.kaiming_uniform_(torch.empty(rank, linear.in_features), a=math.sqrt(5))
        up_OR = torch.zeros(linear.out_features, rank)
        for name, value in ((_DOWN, down_RI), (_UP, up_OR)):
            linear.register_parameter(name, nn.Parameter(value.to(linear.weight)))
        return linear.register_forward_hook(self._added)

    def _added(self, linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Any:
        if self._is_merged:
            return None
        return output + F.linear(F.linear(inputs[0], linear.lora_down), linear.lora_up)  # type: ignore[arg-type]


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The linear layers in the blocks of the backbone of a model; an error if there are none."""
    layers = []
    for name in backbone_weights(model):
        owner, _, kind = name.rpartition(".")
        module = model.get_submodule(owner)
        if type(module) is nn.Linear and kind == "weight" and block_of(name):
            layers.append(module)
    if not layers:
        raise ConfigError(
            "train.lora is for linear layers in numbered blocks, as transformers have them; this network has "
            "none",
            hint="leave out train.lora, and train all weights or the head alone (train.head_first=1)",
        )
    return layers


@torch.no_grad()
def _product(linear: nn.Module) -> Tensor:
    product: Tensor = linear.lora_up @ linear.lora_down  # type: ignore[operator]
    return product
