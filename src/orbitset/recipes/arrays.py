"""A training on arrays of grouped images, with what `orbitset train` chooses for grouped images.

Nothing is held out, so the last weights are kept. `train` looks at images to decide whether they are
augmented and which network sees them; here the caller says both.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from orbitset.config import from_dict, to_dict, with_settings
from orbitset.encoders import EncoderConfig
from orbitset.errors import ConfigError
from orbitset.orbits.observed import ObservedConfig
from orbitset.outside import is_name
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.methods import METHODS, Method
from orbitset.recipes.outside_loss import method_named, method_of
from orbitset.recipes.own_images import DEFAULT_METHOD
from orbitset.recipes.pretrained import with_network
from orbitset.recipes.short import why_few, with_spread_codes
from orbitset.recipes.unused import belonging
from orbitset.training.fit import TrainConfig

CODE_SIZE, CHANNELS, EPOCHS = 64, (16, 32, 64), 20.0
"""From random weights: arrays are mostly of small images"""
METHOD_OF_SINGLES = "OE"
"""The default where there is nothing to compare: its decoder learns from single images, too"""


def array_method(method: str | Callable[..., Any] | None, *, can_compare: bool) -> Method:
    """The method of a name, or that minimises a loss.

    `can_compare` says whether there are two orbits, and two images in one of them: this decides the default,
    and without it methods that compare images are refused.
    """
    if method is None:
        return method_named(DEFAULT_METHOD if can_compare else METHOD_OF_SINGLES)
    if not isinstance(method, str):
        name = f"{getattr(method, '__module__', '')}:{getattr(method, '__name__', '')}"
        return method_of(name if is_name(name) else "given:loss", method)
    named = method_named(method)
    if named.needs_labels or named.has_transformer:
        known = ", ".join(name for name, row in METHODS.items() if not row.needs_labels)
        raise ConfigError(
            f"method is {method!r}; choose {known} or a loss of your own (for labels give them as orbits)"
        )
    if not can_compare and (named.compares_members or named.compares_orbits):
        raise ConfigError(
            f"{named.name} compares images within orbits and between them; give two orbits or more, one of "
            "them with two images, or single images with augment=True, or choose OE"
        )
    return named


def array_images(
    method: Method,
    orbits: ObservedConfig,
    *,
    num_images: int,
    network: str,
    encoder: Mapping[str, Any],
    train: Mapping[str, Any],
    loss: Mapping[str, Any],
    classify_weight: float,
) -> Experiment:
    """The training of a network of that name on such orbits; if it is pretrained, it is fine-tuned.

    Settings of the encoder, the training and the loss replace the defaults of the method and the network,
    those of the first two if they are not None; these may be of NumPy's types.
    """
    encoder, train = (
        {name: np.asarray(value).tolist() for name, value in given.items() if value is not None}
        for given in (encoder, train)
    )
    config = Experiment(
        name="arrays",
        data="arrays",
        method=method.name,
        orbits=orbits,
        encoder=EncoderConfig(code_size=CODE_SIZE, channels=CHANNELS),
        loss=method.settings(),
        classify_weight=classify_weight,
        train=TrainConfig(epochs=EPOCHS, precision="float32"),
    )
    config = with_settings(config, method.default_settings("own-images"))
    config, settings = with_network(
        config, network, {}, is_own=True, is_length_set="epochs" in train
    )
    config = with_settings(config, settings)
    config = replace(
        config,
        orbits=from_dict(ObservedConfig, to_dict(config.orbits), "orbits."),
        encoder=from_dict(EncoderConfig, to_dict(config.encoder) | encoder, "encoder."),
        loss=_with_own(config.loss, loss, method),
        train=from_dict(TrainConfig, to_dict(config.train) | train, "train."),
    )
    return with_spread_codes(config, why_few(config.train.epochs * num_images))[0]


def shape_of_rows(features: int, image_shape: tuple[int, ...] | None) -> tuple[int, int, int]:
    """The image that a row of features is."""
    if image_shape is None:
        side = math.isqrt(features - 1) + 1
        return side, side, 1
    shape = (*image_shape, 1) if len(image_shape) == 2 else tuple(image_shape)
    if len(shape) != 3 or math.prod(shape) != features:
        raise ValueError(f"image_shape is {image_shape}, but rows have {features} features")
    height, width, channels = shape
    return height, width, channels


def _with_own(defaults: Any, own: Mapping[str, Any], method: Method) -> Any:
    """The settings of the loss, of which the user's replace the defaults."""
    if not isinstance(own, Mapping):
        raise ConfigError(f"loss_settings is {own!r}; give values by name")
    with belonging(method=method.name):
        checked = from_dict(method.settings, own, "loss_settings.")
    names = {*own, "margin_fraction"} if "margin" in own else own  # each replaces the other
    return replace(defaults, **{name: getattr(checked, name) for name in names})
