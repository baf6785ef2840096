"""Checkpoints: one file with all that a run needs to go on. It holds plain tensors and numbers, so that
loading it runs no code.

Its parts are the model, the objective, the optimizer, the average of the weights, the best weights so far,
the step, and the state of torch's random generators. It has a checksum. The checkpoint before the latest is
kept, for the case that the latest is damaged.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from orbitset.errors import RunError
from orbitset.files import remove_parts, write_atomically
from orbitset.losses.objective import Objective
from orbitset.training.average import Average
from orbitset.training.low_rank import LowRank

LATEST, PREVIOUS = "latest.safetensors", "previous.safetensors"
Weights = Mapping[str, Tensor]


@dataclass
class Learner:
    """What changes in training, and is kept in a checkpoint."""

    model: nn.Module
    loss: Objective
    optimizer: torch.optim.Optimizer
    average: Average = field(default_factory=lambda: Average(nn.Module(), None))
    low_rank: LowRank = field(default_factory=lambda: LowRank(nn.Module(), None))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, the model has the weights that are evaluated and kept, of which `weights` is one copy."""
        with self.average.shown(), self.low_rank.merged():
            yield

    def weights(self) -> dict[str, Tensor]:
        """The weights of the model as a plain network has them, in the memory of the CPU."""
        state = self.low_rank.weights(self.model)
        return {name: value.to("cpu", copy=True) for name, value in state.items()}

    def end(self) -> None:
        """Leave the weights that are kept in the model."""
        self.average.end()
        self.low_rank.end()


def has_checkpoint(folder: Path) -> bool:
    return any((folder / name).exists() for name in (LATEST, PREVIOUS))


def save_checkpoint(
    folder: Path, learner: Learner, progress: Mapping[str, Any], *, best: Weights | None = None
) -> None:
    """Write a checkpoint as the latest. If that fails, the checkpoints that are there stay as they are."""
    parts: dict[str, Weights] = {
        "model": learner.model.state_dict(),
        "loss": learner.loss.state_dict(),
    }
    for index, state in learner.optimizer.state_dict()["state"].items():
        parts[f"optimizer.{index}"] = state
    parts |= {"random": _random_states(learner.model), "best": best or {}}
    parts["average"] = learner.average.state
    tensors = _plain(
        {f"{part}.{k}": value for part, of in parts.items() for k, value in of.items()}
    )
    text = json.dumps(progress)
    metadata = {"progress": text, "sha256": _checksum(text, tensors)}
    latest, new = folder / LATEST, folder / "new.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        write_atomically(new, _to_bytes(tensors, metadata))
        if latest.exists():
            latest.replace(folder / PREVIOUS)
        new.replace(latest)
    except OSError as error:
        raise RunError(
            f"the checkpoint at step {progress['step']} could not be written: {error.strerror}",
            hint="the previous checkpoint is intact: make room, then run the same command with --resume"
            if has_checkpoint(folder)
            else "make room, then run the same command with --resume",
        ) from None


def load_checkpoint(
    folder: Path, learner: Learner, note: Callable[[str], None]
) -> tuple[dict[str, Any], Weights | None]:
    """Put everything back; give the progress and the best weights that were saved with it.

    If the latest checkpoint is damaged, the one before it is used, and `note` is told so.
    """
    problems = []
    for path in (folder / LATEST, folder / PREVIOUS):
        try:
            progress, tensors = _read(path)
            break
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            problems.append(f"the checkpoint {path} is damaged: {error}")
    else:
        raise RunError("; ".join(problems), hint="start anew with --overwrite")
    if problems:
        note(f"{problems[0]}; training goes on from the one before it, at step {progress['step']}")
    try:
        learner.model.load_state_dict(_part(tensors, "model."))
        learner.loss.load_state_dict(_part(tensors, "loss."))
    except RuntimeError:
        raise RunError(
            f"the checkpoint {path} is of another model than the configuration's"
        ) from None
    for device in _random_states(learner.model):
        if (state := tensors.get(f"random.{device}")) is not None:
            torch.set_rng_state(state) if device == "cpu" else torch.cuda.set_rng_state(state)
    learner.average.load(_part(tensors, "average."))
    _restore(learner.optimizer, _part(tensors, "optimizer."))
    return progress, _part(tensors, "best.") or None


def save_model(path: Path, model: nn.Module, about: Mapping[str, str]) -> None:
    """Write the weights alone, for use after training; equal weights give equal bytes."""
    write_atomically(path, _to_bytes(model.state_dict(), {"about": json.dumps(about)}))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if metadata["sha256"] != _checksum(metadata["progress"], tensors):
        raise ValueError("its checksum is another than when it was written")
    return json.loads(metadata["progress"]), tensors


def _restore(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        parameter = parameters[int(index)]
        if value.shape == parameter.shape:  # moments get the parameter's layout in memory too
            value = torch.empty_like(parameter).copy_(value)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _random_states(model: nn.Module) -> dict[str, Tensor]:
    """The states of torch's own generators, from which dropout and the like draw."""
    states = {"cpu": torch.get_rng_state()}
    if next(model.parameters()).is_cuda:
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _checksum(progress: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(progress.encode())
    for name, tensor in sorted(_plain(tensors).items()):
        digest.update(repr((name, tensor.dtype, tensor.shape)).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _to_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    return safetensors.torch.save(_plain(tensors), metadata)
