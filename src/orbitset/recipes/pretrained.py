"""What changes in an experiment whose network is a pretrained one."""

from collections.abc import Mapping
from dataclasses import fields, replace

from orbitset.encoders.config import PAPERS
from orbitset.encoders.named import look_at
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.length import evaluated_often

_SHARE = 0.2
"""The length of fine-tuning, as a share of a training from random weights"""
_BEGINNING = {
    "encoder.is_pretrained": "true",
    "encoder.head": "features",
    "encoder.norm_statistics": "frozen",
}
_FINE_TUNING = {
    "encoder.code_size": "null",
    "encoder.code_norm": "unit",
    "encoder.channels": "16,32,64,128,128",
    "train.learning_rate": "0.002",
    "train.backbone_rate": "0.1",
    "train.head_rate": "0.1",
    "train.head_first": "0.1",
    "train.adam_eps": "1e-8",
    "train.clip_norm": "1",
    "train.average": "0.99",
}
_FINE_TUNING_LOSS = {"margin_fraction": "0.15", "scale": "own-dimension", "hard_weight": "1"}
"""Settings of those losses that have them"""


def begins_pretrained(name: str | None, settings: Mapping[str, str]) -> bool:
    """Whether a network of that name begins with trained weights."""
    if name in (None, PAPERS):
        return False
    stated = look_at(name).is_pretrained
    return settings.get("encoder.is_pretrained", str(stated).lower()) == "true"


def with_network(
    config: Experiment, name: str, settings: Mapping[str, str], *, is_own: bool, is_length_set: bool
) -> tuple[Experiment, dict[str, str]]:
    """The experiment with another network's size of images and, if the network is pretrained, the length of
    fine-tuning; and settings for it, which those of the user replace.

    Recipes of the paper (not `is_own`) keep their images and their training.
    """
    values = {"encoder.backbone": name}
    if not begins_pretrained(name, settings):
        return config, values
    stated = look_at(name)
    values |= _BEGINNING
    if not is_own:
        return config, values
    values |= _FINE_TUNING
    of_loss = {field.name for field in fields(config.loss)}
    values |= {f"loss.{name}": text for name, text in _FINE_TUNING_LOSS.items() if name in of_loss}
    if stated.size_px is not None:
        orbits = config.orbits.showing(size_px=stated.size_px, is_colour=True)
        config = replace(config, orbits=orbits)
    if config.is_observed and not is_length_set:
        config = evaluated_often(config, config.train.epochs * _SHARE)
    return config, values
