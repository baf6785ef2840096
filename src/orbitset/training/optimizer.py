"""Adam over the weights of a model and of its loss, some of which learn slower than the others.

Parts are named by how the names of their weights begin; those of the loss begin with `loss.`. If several
names fit, the longest counts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from orbitset.dispatch import accelerated
from orbitset.training.blocks import parts_of


def adam(
    groups: Sequence[Mapping[str, Any]],
    *,
    rate: float,
    eps: float = 1e-12,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> torch.optim.Optimizer:
    """Adam over groups of `params`, each with its `share` of the learning rate, 1 by default.

    Weight decay is decoupled, as in AdamW, and spares biases and other vectors. `clip_norm` is the largest
    norm that the gradient of all weights together may have.
    """
    shared = [{"share": 1.0, **group} for group in groups]
    shared = [{**group, "lr": rate * group["share"]} for group in shared]
    if weight_decay or clip_norm is not None:
        return ClippedAdamW(shared, eps=eps, weight_decay=weight_decay, clip_norm=clip_norm)
    return _adam(shared, eps)


class ClippedAdamW(torch.optim.AdamW):
    """AdamW that decays matrices and filters alone, after gradients were clipped."""

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        *,
        eps: float,
        weight_decay: float,
        clip_norm: float | None,
    ) -> None:
        self.clip_norm = clip_norm
        parts = [
            {**group, "params": weights, "weight_decay": weight_decay if is_matrix else 0.0}
            for group in groups
            for is_matrix in (True, False)
            if (weights := [w for w in group["params"] if (w.ndim > 1) == is_matrix])
        ]
        is_cuda = all(weight.is_cuda for part in parts for weight in part["params"])
        if is_cuda:  # a recorded step follows a rate that lies on the GPU
            device = parts[0]["params"][0].device
            parts = [{**part, "lr": torch.tensor(part["lr"], device=device)} for part in parts]
        super().__init__(parts, eps=eps, capturable=is_cuda)

    def step(self, closure: Any = None) -> Any:
        if self.clip_norm is not None:
            weights = [weight for group in self.param_groups for weight in group["params"]]
            nn.utils.clip_grad_norm_(weights, self.clip_norm)
        return super().step(closure)


@accelerated("adam")
def _adam(groups: list[dict[str, Any]], eps: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, eps=eps)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate: each group gets its share."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["share"])
        else:
            group["lr"] = rate * group["share"]


def groups_of(
    model: nn.Module,
    loss: nn.Module,
    *,
    rate_shares: Mapping[str, float] | None = None,
    layer_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """Parameter groups of model and loss, one per learning-rate share; unnamed parameters have share 1.

    The share of each part of the backbone is `layer_decay` times that of the part behind it.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> groups = groups_of(net, nn.Module(), rate_shares={"1.": 0.1})
    >>> [(len(group["params"]), group["share"]) for group in groups]
    [(2, 1.0), (2, 0.1)]
    """
    shares = rate_shares or {}
    weights = [*model.named_parameters(), *loss.named_parameters(prefix="loss")]
    for part, share in shares.items():
        if not 0 <= share < math.inf:
            raise ValueError(f"rate_shares gives {part!r} {share}; give a number of at least 0")
        if not any(name.startswith(part) for name, _ in weights):
            raise ValueError(f"rate_shares names {part!r}, with which no weight's name begins")
    parts = parts_of(model, "train.layer_decay") if layer_decay != 1 else []
    depths = {name: depth for depth, part in enumerate(reversed(parts)) for name in part}
    groups: dict[float, list[nn.Parameter]] = {}
    for name, weight in weights:
        named = [part for part in shares if name.startswith(part)]
        share = shares[max(named, key=len)] if named else 1.0
        share *= layer_decay ** depths.get(name, 0)
        groups.setdefault(share, []).append(weight)
    return [{"params": of_share, "share": share} for share, of_share in groups.items()]
