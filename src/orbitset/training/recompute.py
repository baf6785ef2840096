"""Gradient checkpointing: what the blocks of a backbone compute is not stored but computed again for the
gradients. That takes less memory and a third more time.

transformers and timm have switches of their own. One rule for all networks is less to test.
"""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from orbitset.errors import ConfigError
from orbitset.training.blocks import blocks_of


class Recompute:
    """Until its end, each block of the backbone of a model is computed twice instead of stored."""

    def __init__(self, model: nn.Module, *, is_on: bool) -> None:
        names = blocks_of(model, "train.recompute") if is_on else []
        self._blocks = [model.get_submodule(name) for name in names]
        for module in (module for block in self._blocks for module in block.modules()):
            if getattr(module, "running_mean", None) is not None and module.training:
                raise ConfigError(
                    "train.recompute would count the statistics of batch norm twice",
                    hint="set encoder.norm_statistics=frozen",
                )
        for block in self._blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def end(self) -> None:
        """Leave the blocks as they were."""
        for block in self._blocks:
            del block.forward
        self._blocks = []
