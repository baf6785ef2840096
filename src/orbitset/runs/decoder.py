"""A decoder for codes that are kept from early in training, while the decoder learned beside others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from orbitset.encoders import Encoder, without_transformer
from orbitset.recipes.experiment import Experiment
from orbitset.runs.prepare import Images, build_objective
from orbitset.training.fit import OF_BACKBONES, TrainConfig, fit
from orbitset.training.progress import Progress

_SHARE = 0.1
"""The steps of the decoder alone, as a share of those of the training before it"""
_COST = 0.5
"""What a step of the decoder alone takes at most, as a share of a step of training"""


def decoder_share(config: Experiment, loss: nn.Module) -> float:
    """The most of the time of a training that its decoder may take after it."""
    may_be_needed = config.keeps_best and config.begins_useful and _learns_alone(config, loss)
    return _SHARE * _COST if may_be_needed else 0.0


def learn_decoder(
    config: Experiment,
    model: Encoder,
    loss: nn.Module,
    images: Images,
    *,
    learned: Mapping[str, Tensor],
    trained_steps: int,
    progress: Progress,
) -> int:
    """Let a decoder that has `learned` beside other codes learn on alone, from those of the model as it is.

    Gives the number of steps; 0 if the loss trains no decoder, or one with the weights of the encoder.
    """
    if not _learns_alone(config, loss):
        return 0
    without_transformer(model).decoder.load_state_dict(learned)
    steps, batches = max(1, round(_SHARE * trained_steps)), images.batches
    position, plain = batches.position, TrainConfig.__dataclass_fields__
    of_backbones: dict[str, Any] = {name: plain[name].default for name in OF_BACKBONES}
    fit(
        _DecoderAlone(model),
        build_objective(config, images).to(next(model.parameters()).device),
        batches,
        steps=steps,
        config=replace(config.train, **of_backbones, engine="reference"),
        progress=progress,
        label=f"{config.method} {config.name}, decoder",
    )
    batches.position = position
    return steps


def _learns_alone(config: Experiment, loss: nn.Module) -> bool:
    return config.encoder.has_free_decoder and bool(loss.uses_rectified)


class _DecoderAlone(nn.Module):
    """A network of which the decoder learns, and nothing else."""

    def __init__(self, network: Encoder) -> None:
        super().__init__()
        self.decoder = without_transformer(network).decoder
        self._others = [network.eval()]  # no part of this module, which stays in evaluation mode

    def encode(self, images_NCSS: Tensor) -> Tensor:
        with torch.no_grad():
            return self._others[0].encode(images_NCSS)

    def decode(self, codes_ND: Tensor) -> Tensor:
        return self._others[0].decode(codes_ND)

    def forward(self, images_NCSS: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.encode(images_NCSS)
        return codes, self.decode(codes)
