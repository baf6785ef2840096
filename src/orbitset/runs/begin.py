"""What a network begins with: the weights of another model, or codes that are a network's own features."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.config import differences
from orbitset.encoders import BackboneEncoder, Encoder, EncoderConfig, without_transformer
from orbitset.encoders.components import principal_components
from orbitset.errors import ConfigError
from orbitset.memory import in_halves
from orbitset.models import load_model_folder
from orbitset.protocols.encoding import ENCODE_BATCH
from orbitset.protocols.images import GroupedImages
from orbitset.recipes.experiment import Experiment
from orbitset.runs.judge import Judge
from orbitset.runs.prepare import Images, build_model

_MOST_IMAGES = 4_096
"""Images whose features the principal components are computed from, at most"""


def built(config: Experiment, model: Encoder) -> Experiment:
    """The configuration with what is known once the network is built: the size of its codes, and the revision
    of its weights."""
    network = without_transformer(model)
    encoder = replace(config.encoder, code_size=network.code_size)
    if revision := network.architecture.get("revision"):
        encoder = replace(encoder, backbone=f"{encoder.backbone.partition('@')[0]}@{revision}")
    return replace(config, encoder=encoder)


def begin(
    config: Experiment, model: Encoder, images: Images, judge: Judge, note: Callable[[str], None]
) -> None:
    """Give a new network what it begins with; nothing where that is random weights. Codes of a training that
    is to ignore factors are scored before they do."""
    if config.init is not None:
        begin_with_model(model, config.encoder, config.init)
    elif config.begins_frozen:
        begin_with_features(config, model, images, judge, note)
    if judge.ignoring is not None and judge.frozen is None:
        judge.frozen = judge.scores(judge.encoding(model.eval()))


def begin_with_model(model: Encoder, encoder: EncoderConfig, folder: str) -> None:
    """Give a network the weights of the model in a folder."""
    begun_with = load_model_folder(folder)
    weights, fresh = begun_with.network.state_dict(), model.state_dict()
    other = other_network(begun_with.description.network.encoder, encoder)
    if other or {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in fresh.items()}:
        what = f" ({other})" if other else ""
        raise ConfigError(
            f"the model in {folder} is another network than the one that is to be trained{what}",
            hint="leave the encoder's settings and the size of the images as the model has them",
        )
    model.load_state_dict(weights)


def other_network(one: EncoderConfig, other: EncoderConfig) -> str:
    """The settings in which two encoders differ, in words; how they began does not count."""
    plain = (replace(encoder, is_pretrained=False, head="random") for encoder in (one, other))
    return "; ".join(f"encoder.{difference}" for difference in differences(*plain))


def begin_with_features(
    config: Experiment, model: Encoder, images: Images, judge: Judge, note: Callable[[str], None]
) -> None:
    """Make codes that are smaller than the features of a pretrained network their principal components.

    They are whitened if that scores better on validation images. The features are scored as well, since they
    are what the training has to beat.
    """
    network = without_transformer(model)
    assert isinstance(network, BackboneEncoder)
    num_features = network.code.in_features
    if network.code_size >= num_features:
        return
    network.eval()
    features_NF = _features(network, images)
    judge.frozen = judge.scores(judge.encoding(_Features(network)))
    layers = {}
    for is_whitened in (False, True):
        layer = principal_components(features_NF, network.code_size, is_whitened=is_whitened)
        network.begin_with(*layer)
        layers[is_whitened] = (judge.validated(judge.scores(judge.encoding(model))), layer)
    is_whitened = (layers[True][0] or 0) > (layers[False][0] or 0)
    score, layer = layers[is_whitened]
    network.begin_with(*layer)
    kind = "whitened principal components" if is_whitened else "principal components"
    frozen = judge.validated(judge.frozen)
    loss = "" if score is None else f": {judge.kept_by} {score:.3f} on validation images"
    loss += "" if frozen is None else f", all features {frozen:.3f}"
    note(f"codes of {network.code_size} numbers begin as {kind} of {num_features} features{loss}")


@torch.inference_mode()
def _features(network: BackboneEncoder, images: Images) -> Tensor:
    """The features of the images in the first batches, as they are without augmentation."""
    batches, parts, count = images.batches, [], 0
    for index in range(batches.position_at(1.0)):
        drawn = batches.draw(index)
        part = batches.orbits.show(drawn.orbits, drawn.members)
        parts += [
            in_halves(network.features, few).float().cpu() for few in part.split(ENCODE_BATCH)
        ]
        count += len(part)
        if count >= _MOST_IMAGES:
            break
    return torch.cat(parts)


def frozen_network(config: Experiment, images: GroupedImages, device: str) -> nn.Module:
    """The network before training, if that was useful; an error where its weights are not at hand."""
    if config.init is not None:
        return load_model_folder(config.init, device=device).network
    model = build_model(config, images).to(device).eval()
    network = without_transformer(model)
    assert isinstance(network, BackboneEncoder)
    return model if network.code_size >= network.code.in_features else _Features(network)


class _Features(nn.Module):
    """The features of a network as codes of length 1."""

    def __init__(self, network: BackboneEncoder) -> None:
        super().__init__()
        self.network = network

    def encode(self, images: Tensor) -> Tensor:
        return F.normalize(self.network.features(images).float(), dim=1)
