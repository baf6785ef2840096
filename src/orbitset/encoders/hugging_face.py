"""Vision networks of transformers, `hf:NAME` or `hf:NAME@REVISION`: a repository of the Hugging Face hub,
which is fetched once and then read from its cache, or a local folder.

Weights come from safetensors files alone, and no code of a repository runs. What a network is built from is
kept with a model as its `architecture`, so that the model loads again without the hub.

Shapes: N images of C x S x S.
"""

import contextlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from orbitset.encoders.config import HF, Features
from orbitset.encoders.repository import (
    Repository,
    checked,
    has_weights,
    plain_errors,
    read_repository,
)
from orbitset.encoders.standardised import Standardised
from orbitset.errors import ConfigError


def pretrained_network(spec: str, features: Features) -> nn.Module:
    """The network of a repository with its weights."""
    repository = read_repository(spec)
    with _transformers(spec) as transformers:
        network, info = transformers.AutoModel.from_pretrained(
            repository.name,
            config=_config(repository.architecture),
            revision=repository.revision,
            local_files_only=has_weights(repository, spec),
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    for key, stored, expected in info["mismatched_keys"]:
        raise ConfigError(
            f"the weights of {spec} do not fit its network: {key} has the shape {tuple(stored)}, and "
            f"config.json asks for {tuple(expected)}"
        )
    has_pooler = not any("pooler" in str(key) for key in info["missing_keys"])
    unfit = [str(key) for key in info["missing_keys"] if "pooler" not in str(key)]
    if unfit:
        raise ConfigError(
            f"the weights of {spec} do not fit its network: {len(unfit)} are missing, such as {unfit[0]}"
        )
    for block in _surplus_blocks(network, info["unexpected_keys"]):
        raise ConfigError(
            f"the weights of {spec} do not fit its network: they have {block}, and config.json asks for "
            "fewer blocks"
        )
    if features == "auto" and not has_pooler:
        features = _without_pooler(network)
    return HubNetwork(network, repository, features)


def _surplus_blocks(network: nn.Module, keys: Iterable[Any]) -> Iterator[str]:
    """Blocks that weights have and a network lacks, although it has others of the kind. Heads and networks
    for texts are none: what is behind or beside a network may be left out."""
    modules = dict(network.named_modules())
    for key in map(str, keys):
        for number in re.finditer(r"\.(\d+)(?=\.)", key):
            blocks = modules.get(key[: number.start()])
            if isinstance(blocks, nn.ModuleList) and int(number[1]) >= len(blocks):
                yield key[: number.end()]


def untrained_network(spec: str, features: Features, kept: Mapping[str, Any] | None) -> nn.Module:
    """The network without its weights: as a model keeps it (`HubNetwork.architecture`), or a repository."""
    if not kept:
        repository = read_repository(spec)
    else:
        try:
            repository = Repository(
                spec.removeprefix(HF).partition("@")[0],
                kept["revision"],
                checked(kept["config"], spec),
                tuple(map(float, kept["mean"])),
                tuple(map(float, kept["sd"])),
                int(kept["size_px"]),
            )
            features = kept["features"]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the architecture of {spec} is damaged: {error!r}") from None
    with _transformers(spec) as transformers:
        network = transformers.AutoModel.from_config(_config(repository.architecture))
    return HubNetwork(network, repository, features)


class HubNetwork(nn.Module):
    """A vision network of transformers, from images in [0, 1] to one vector for each, or a map of them."""

    def __init__(self, network: nn.Module, repository: Repository, features: Features) -> None:
        super().__init__()
        self.num_channels: int = getattr(network.config, "num_channels", 3)
        self.network = Standardised(network, repository.mean, repository.sd)
        self._options: dict[str, Any] = {}
        if "interpolate_pos_encoding" in inspect.signature(network.forward).parameters:
            self._options["interpolate_pos_encoding"] = True
        self.features = features
        pooler = getattr(network, "pooler", None)
        if (
            features in ("cls", "mean")
            and isinstance(pooler, nn.Module)
            and list(pooler.parameters())
        ):
            setattr(network, "pooler", None)  # noqa: B010 - its weights would take no part
        self._repository = repository
        self.name = str(repository)

    @property
    def architecture(self) -> dict[str, Any]:
        """All that the network is built from, beside its weights."""
        repository = self._repository
        return {
            "config": dict(repository.architecture),
            "revision": repository.revision,
            "mean": list(repository.mean),
            "sd": list(repository.sd),
            "size_px": repository.size_px,
            "features": self.features,
        }

    def forward(self, images_NCSS: Tensor) -> Tensor:
        if images_NCSS.shape[1] == 1 and self.num_channels == 3:
            images_NCSS = images_NCSS.expand(-1, 3, -1, -1)
        output = self.network(images_NCSS, **self._options)
        pooled = getattr(output, "pooler_output", None)
        if self.features == "pooled" or (self.features == "auto" and pooled is not None):
            if pooled is None:
                raise ConfigError(f"{self._repository} has no pooled features; choose cls or mean")
            vectors: Tensor = pooled.flatten(1)
            return vectors
        last: Tensor = output.last_hidden_state
        if last.ndim == 4:
            return last
        patches = _num_patches(self._repository.architecture, images_NCSS.shape[-1])
        num_others = max(0, last.shape[1] - patches)
        if self.features == "cls":
            if not num_others:
                raise ConfigError(f"{self._repository} has no CLS token; choose mean")
            return last[:, 0]
        return last[:, num_others:].mean(1)


def _num_patches(architecture: Mapping[str, Any], size_px: int) -> int:
    patch = architecture.get("patch_size", size_px)
    return (size_px // patch) ** 2 if isinstance(patch, int) else 1


def _without_pooler(network: nn.Module) -> Features:
    """CLS where a network has such a token, else the mean of all places."""
    has_cls = any(name.endswith("cls_token") for name, _ in network.named_parameters())
    return "cls" if has_cls else "mean"


def _config(architecture: Mapping[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    values = dict(architecture)
    kind = values.pop("model_type")
    if "mask_ratio" in values:  # a masked autoencoder would look at a random part of each image
        values["mask_ratio"] = 0.0
    if kind not in CONFIG_MAPPING:
        raise ConfigError(f"transformers has no architecture {kind!r}")
    return CONFIG_MAPPING[kind](**values)


@contextlib.contextmanager
def _transformers(spec: str) -> Iterator[Any]:
    """The library, silent; its errors become sentences."""
    with plain_errors(spec):
        import transformers

        logging = transformers.utils.logging
        verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield transformers
        finally:
            logging.set_verbosity(verbosity)
            if has_bar:
                logging.enable_progress_bar()
