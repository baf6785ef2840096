"""One file that holds all a run needs to go on: model, objective, optimizer, step, and where random numbers
are, for networks that draw some.

It is written beside and renamed, so the previous checkpoint survives a full disk or a kill, and holds
plain tensors and numbers, so that loading one runs no code.
"""

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from orbitset.errors import RunError
from orbitset.files import remove_parts, write_atomically


def save_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: dict[str, Any],
) -> None:
    """Write everything, or leave what is there untouched and say so."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"loss.{k}": v for k, v in loss.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": v for k, v in state.items()}
    tensors |= {f"random.{device}": state for device, state in _random_states(model).items()}
    metadata = {"progress": json.dumps(progress)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_parts(path.parent)
        write_atomically(path, _to_bytes(tensors, metadata))
    except OSError as error:
        raise RunError(
            f"the checkpoint at step {progress['step']} could not be written: {error.strerror}",
            hint="the previous checkpoint is intact: make room, then run the same command with --resume"
            if path.exists()
            else "make room, then run the same command with --resume",
        ) from None


def load_checkpoint(
    path: Path, *, model: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Put everything back and give the progress that was saved with it."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            progress: dict[str, Any] = json.loads(file.metadata()["progress"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise RunError(f"the checkpoint {path} cannot be read: {error}") from None
    try:
        model.load_state_dict(_part(tensors, "model."))
        loss.load_state_dict(_part(tensors, "loss."))
    except RuntimeError:
        raise RunError(
            f"the checkpoint {path} is of another model than the configuration's"
        ) from None
    for device in _random_states(model):
        if (drawn := tensors.get(f"random.{device}")) is not None:
            torch.set_rng_state(drawn) if device == "cpu" else torch.cuda.set_rng_state(drawn)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _part(tensors, "optimizer.").items():
        place, name = key.split(".", 1)
        state.setdefault(int(place), {})[name] = value
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in state.items():  # the layout the moments had, not only their values
        for name, value in values.items():
            if value.shape == parameters[index].shape:
                values[name] = torch.empty_like(parameters[index]).copy_(value)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return progress


def save_model(path: Path, model: nn.Module, about: dict[str, str]) -> None:
    """The weights alone, for use after training; equal weights give equal bytes."""
    write_atomically(path, _to_bytes(model.state_dict(), {"about": json.dumps(about)}))


def load_model(path: Path, model: nn.Module) -> None:
    """Put saved weights into a model of the same shape."""
    try:
        model.load_state_dict(safetensors.torch.load_file(path))
    except FileNotFoundError:
        raise RunError(f"there are no weights at {path}: the run is not finished") from None
    except RuntimeError:
        raise RunError(
            f"the weights {path} are of another model than the configuration's"
        ) from None
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"the weights {path} cannot be loaded: {error}") from None


def _random_states(model: nn.Module) -> dict[str, Tensor]:
    """Of torch's own generators, which dropout and the like draw from."""
    states = {"cpu": torch.get_rng_state()}
    if next(model.parameters()).is_cuda:
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _to_bytes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    return safetensors.torch.save(plain, metadata)
