"""A model as a folder: model.json, model.safetensors and a card to be read by people.

Loading one builds the network that model.json describes and fills in plain tensors: nothing is unpickled, and
nothing of the training is needed.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import nn

from orbitset.config import from_dict, to_dict
from orbitset.encoders import Encoder, build_encoder
from orbitset.encoders.config import PAPERS
from orbitset.errors import ConfigError, RunError
from orbitset.files import ordinary, remove_parts, why, write_atomically
from orbitset.limits import read_json
from orbitset.models.card import describe_card
from orbitset.models.description import FORMAT, Description, identify
from orbitset.models.known import KNOWN, known_bytes, read_known
from orbitset.models.model import Model
from orbitset.outside import check_trust
from orbitset.precision import check_device

DESCRIPTION, WEIGHTS, CARD = "model.json", "model.safetensors", "README.md"


def save_model_folder(model: Model, folder: Path) -> None:
    """Write a model where no other lies. After a kill the same model can be saved there again."""
    check_no_model(folder, model)
    contents = _contents(model)
    remove_parts(folder, contents)
    for name, content in contents.items():
        write_atomically(folder / name, content)


def check_no_model(folder: Path, model: Model) -> None:
    """Refuse a folder in which saving a model would replace anything but what a kill left of saving it."""
    if (folder / DESCRIPTION).exists():
        raise RunError(f"{folder} already holds a model; choose another folder", is_usage=True)
    if not any((folder / name).exists() for name in (WEIGHTS, CARD, KNOWN)):
        return
    contents = _contents(model)
    for name in (WEIGHTS, CARD, KNOWN):
        path = folder / name
        if path.exists() and not (path.is_file() and path.read_bytes() == contents.get(name)):
            raise RunError(f"{path} exists already; choose another folder", is_usage=True)


def _contents(model: Model) -> dict[str, bytes]:
    """The files of a model's folder in the order in which they are written. Equal models give equal files."""
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in model.network.state_dict().items()
    }
    about = model.description
    description = replace(about, id=identify(tensors, about.network, about.input))
    contents = {WEIGHTS: safetensors.torch.save(tensors), CARD: describe_card(description).encode()}
    if model.known is not None:
        contents[KNOWN] = known_bytes(model.known, description.id)
    return {**contents, DESCRIPTION: _described(description)}


def write_description(folder: Path, description: Description) -> None:
    """The last file that is written: a folder without it holds no model."""
    write_atomically(folder / DESCRIPTION, _described(description))


def _described(description: Description) -> bytes:
    return (json.dumps(to_dict(description), indent=2, ensure_ascii=False) + "\n").encode()


def load_model_folder(folder: Path | str, *, device: str = "cpu") -> Model:
    """The model in a folder, whether that holds it alone or is the run it came from."""
    check_device(device)
    folder = Path(folder)
    description = read_description(folder)
    encoder = description.network.encoder
    if encoder.is_imported:
        check_trust({encoder.backbone: "encoder"}, folder)
    weights = read_weights(folder)
    # without memory at first, of which model.json may ask for any amount
    place = torch.device("meta") if encoder.backbone == PAPERS else contextlib.nullcontext()
    with _damaged(folder / DESCRIPTION), place:
        network = _build(description)
    _check_shapes(network, weights, folder)
    check_id(weights, description, folder)
    _check_finite(weights, folder)
    if encoder.backbone == PAPERS:
        network = _build(description)
    network.load_state_dict(weights)
    known = read_known(folder, description.id, description.network.encoder.code_size)
    return Model(network.to(device), description, known)


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in the folder of a model or a run."""
    try:
        return safetensors.torch.load_file(ordinary(folder / WEIGHTS))
    except FileNotFoundError:
        raise RunError(f"{folder} has no {WEIGHTS}: the weights of the model are missing") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"{folder / WEIGHTS} cannot be read: {why(error)}") from None


def check_id(weights: Mapping[str, torch.Tensor], description: Description, folder: Path) -> None:
    """Refuse weights that are not those which the folder describes: a single bit may be another."""
    own_id = identify(weights, description.network, description.input)
    if own_id != description.id:
        raise RunError(
            f"{folder / WEIGHTS} has the id {own_id}, and {DESCRIPTION} says {description.id}: one of them "
            "is damaged, or they do not belong together",
            hint="copy both anew from where the model came from, or train it again",
        )


def read_description(folder: Path) -> Description:
    """What model.json says."""
    path = folder / DESCRIPTION
    try:
        values = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        is_there = folder.exists()
        raise RunError(
            f"{folder} is no model: it has no {DESCRIPTION}"
            if is_there
            else f"there is no folder {folder}",
            hint="train one with orbitset train, or name the folder of a finished run",
            is_usage=True,
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {why(error)}") from None
    if not isinstance(values, dict) or values.get("kind") != "orbitset-model":
        raise RunError(f"{path} does not describe a model of orbitset")
    if values.get("format") != FORMAT:
        raise RunError(
            f"{path} has format {values.get('format')}; this version of orbitset reads format {FORMAT}",
            hint="use the version of orbitset that wrote it, or a newer one",
        )
    try:
        return from_dict(Description, values)
    except ConfigError as error:
        raise RunError(f"{path} is damaged: {error}") from None


def _build(description: Description) -> Encoder:
    return build_encoder(
        replace(description.network.encoder, is_pretrained=False),  # its weights are at hand
        in_channels=description.input.channels,
        size_px=description.input.size_px,
        has_transformer=description.network.has_transformer,
        architecture=description.network.architecture,
    )


def _check_shapes(network: nn.Module, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    if _shapes(weights) != _shapes(network.state_dict()):
        raise RunError(f"{folder / WEIGHTS} is of another network than model.json describes")


def _check_finite(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    for name, values in weights.items():
        if not values.isfinite().all():
            raise RunError(
                f"{folder / WEIGHTS} has weights that are no numbers, in {name}: every code would be wrong",
                hint="train the model again, or copy it anew from where it came from",
            )


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


@contextlib.contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Errors inside are of a file that describes no network."""
    try:
        yield
    except (ConfigError, RuntimeError, TypeError, OverflowError) as error:
        raise RunError(f"{path} describes no network: {error}") from None
