"""What a repository of the Hugging Face hub, or a folder like one, says of its network before its weights.

Files are fetched once and then read from the hub's cache.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from orbitset.encoders.config import HF
from orbitset.errors import ConfigError

_LEFT_OUT = re.compile(
    r"_|attn_impl|experts_impl|auto_map|quantization|(torch_)?dtype|id2label|label2id|architectures$"
)
"""Settings that choose code to run or formats of numbers, or name classes: not what the network is"""
_PATIENCE_S = 10.0
"""How long an answer of the hub is waited for"""


@dataclass(frozen=True)
class Repository:
    """What is known of a network before its weights are read."""

    name: str
    revision: str | None
    architecture: Mapping[str, Any]
    mean: tuple[float, ...]
    sd: tuple[float, ...]
    size_px: int

    def __str__(self) -> str:
        return f"{HF}{self.name}"


def read_repository(spec: str) -> Repository:
    """The architecture of `hf:NAME` and the images that it expects."""
    if find_spec("transformers") is None:
        raise ConfigError(
            f"{spec} needs transformers, which is not installed", hint="pip install transformers"
        )
    name, revision = _name_and_revision(spec)
    with plain_errors(spec):
        path = _file(name, revision, "config.json")
        if path is None:
            raise ConfigError(f"{spec} has no config.json, which describes a network")
        config = _read(path)
        processing = _processing(name, revision)
    commit = revision if _is_folder(name) else path.parent.name
    architecture = checked(config.get("vision_config", config), spec)
    return Repository(name, commit, architecture, *_expected(processing, architecture, spec))


def _processing(name: str, revision: str | None) -> Mapping[str, Any]:
    """The settings of what prepares images; transformers may have saved them inside those of a processor."""
    if path := _file(name, revision, "preprocessor_config.json"):
        return _read(path)
    path = _file(name, revision, "processor_config.json")
    processing = _read(path).get("image_processor") if path else None
    return processing if isinstance(processing, Mapping) else {}


def _name_and_revision(spec: str) -> tuple[str, str | None]:
    """The name of a repository or the path of a folder, and the revision."""
    whole = os.path.expanduser(spec.removeprefix(HF))
    if _is_folder(whole):
        return whole, None
    name, _, revision = whole.partition("@")
    if _is_folder(name):
        raise ConfigError(f"{spec} names a revision, and a folder has none; leave out @{revision}")
    if Path(name).exists():
        raise ConfigError(f"{spec} is a file; name the folder of the network")
    if name.startswith((".", "/")) or name.count("/") > 1:
        raise ConfigError(
            f"{spec} cannot be loaded: there is no folder {Path(name).absolute()}",
            hint="bring it back, or call orbitset from the folder in which it lies",
        )
    return name, revision or None


def _is_folder(name: str) -> bool:
    return Path(name).is_dir()


def _file(name: str, revision: str | None, file: str) -> Path | None:
    """A file of a folder or of a repository, None if there is none. It is fetched if the cache does not have
    it."""
    if _is_folder(name):
        path = Path(name) / file
        return path if path.is_file() else None
    import huggingface_hub

    cached = huggingface_hub.try_to_load_from_cache(name, file, revision=revision)
    if cached is not None:
        return Path(cached) if isinstance(cached, str) else None
    _check_hub(name, revision)
    try:
        return Path(huggingface_hub.hf_hub_download(name, file, revision=revision))
    except huggingface_hub.errors.LocalEntryNotFoundError:  # the connection ended
        raise
    except huggingface_hub.errors.EntryNotFoundError:
        return None


def _check_hub(name: str, revision: str | None) -> None:
    """Refuse a name that the hub does not have, and say at once if there is no connection: fetching a file
    would try for half a minute."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        huggingface_hub.model_info(name, revision=revision, timeout=_PATIENCE_S)
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"{HF}{name} may only be read by those who have asked for it: {_first_line(error)}",
            hint=f"ask for it at {huggingface_hub.constants.ENDPOINT}/{name}, then: hf auth login",
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"{HF}{name} has no revision {revision}") from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"the hub has no repository {name} that you may read",
            hint=f"check the name; if it is private: hf auth login; a folder is named {HF}./folder",
        ) from None
    except (errors.HfHubHTTPError, errors.HFValidationError):
        return  # fetching says what is wrong
    except Exception as error:  # of the library for HTTP
        raise ConfigError(
            f"{HF}{name} is not on this machine, and the hub cannot be reached: {_first_line(error)}",
            hint=f"with a connection, hf download {name} fetches it once; a folder is named {HF}./folder",
        ) from None


def has_weights(repository: Repository, spec: str) -> bool:
    """Whether the weights are on this machine; a folder without any is refused."""
    if _is_folder(repository.name):
        if not any(Path(repository.name).glob("*.safetensors")):
            raise ConfigError(
                f"{spec} has no weights in safetensors files; others can run code and are not read",
                hint="save them again with save_pretrained, or train from random weights: "
                "--set encoder.is_pretrained=false",
            )
        return True
    from huggingface_hub import try_to_load_from_cache

    files = ("model.safetensors", "model.safetensors.index.json")
    return any(
        isinstance(try_to_load_from_cache(repository.name, file, revision=repository.revision), str)
        for file in files
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no settings; it should be a JSON object")
    return content


def _expected(
    processing: Mapping[str, Any], architecture: Mapping[str, Any], spec: str
) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """The mean, the s.d. and the size of the images that a network expects."""
    mean: Any = processing.get("image_mean")
    sd: Any = processing.get("image_std")
    size_px: Any = _size(processing) or architecture.get("image_size")
    is_size = isinstance(size_px, int) and not isinstance(size_px, bool) and size_px > 1
    if is_size and _are_numbers(mean, architecture) and _are_numbers(sd, architecture, above=0):
        return tuple(mean), tuple(sd), size_px
    missing, value = ("mean and s.d.", [mean, sd]) if is_size else ("size", size_px)
    stated = "" if value in (None, [None, None]) else f" (it has {value})"
    raise ConfigError(
        f"{spec} does not state the {missing} of the images that it expects; its "
        f"preprocessor_config.json should{stated}",
        hint='it has to hold numbers such as {"size": 224, "image_mean": [0.5, 0.5, 0.5], "image_std": '
        "[0.5, 0.5, 0.5]}; or wrap the network in a class of your own: see docs/own-data.md",
    )


def _are_numbers(values: Any, architecture: Mapping[str, Any], above: float = -math.inf) -> bool:
    """Whether there is a finite number for each channel, or one for all."""
    return (
        isinstance(values, list)
        and len(values) in (1, architecture.get("num_channels", 3))
        and all(isinstance(value, int | float) and above < value < math.inf for value in values)
    )


def _size(processing: Mapping[str, Any]) -> int | None:
    """The side of the images that a processor makes."""
    for name in ("crop_size", "size"):
        size = processing.get(name)
        if isinstance(size, Mapping):
            size = size.get("height", size.get("shortest_edge"))
        if isinstance(size, int):
            return size
    return None


def checked(config: Any, spec: str) -> dict[str, Any]:
    """The settings that say what the network is; none that chooses code to run."""
    if not isinstance(config, Mapping) or not isinstance(config.get("model_type"), str):
        raise ConfigError(f"{spec} does not describe a network: its config.json has no model_type")
    for key, value in _settings(config):
        # transformers and timm would fetch these, whoever wrote the description of a model
        if key == "backbone" and isinstance(value, str):
            raise ConfigError(
                f"{spec} is built around another network, {value!r}, which is not fetched"
            )
        if key == "architecture" and isinstance(value, str) and not re.fullmatch(r"[\w.]+", value):
            raise ConfigError(f"{spec} names an architecture that is not timm's, {value!r}")
    return {name: value for name, value in config.items() if not _LEFT_OUT.match(name)}


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values, those of groups of settings too."""
    for key, value in config.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _settings(value)


@contextlib.contextmanager
def plain_errors(spec: str) -> Iterator[None]:
    """A context in which errors of libraries become sentences."""
    try:
        yield
    except ConfigError:
        raise
    except ImportError as error:
        raise ConfigError(
            f"{spec} needs transformers, which cannot be imported: {error}",
            hint="pip install transformers",
        ) from None
    except SafetensorError as error:
        raise ConfigError(
            f"the weights of {spec} are damaged: {_first_line(error)}",
            hint="fetch or save them again",
        ) from None
    except Exception as error:  # of many kinds, by version
        raise ConfigError(f"{spec} cannot be loaded: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
