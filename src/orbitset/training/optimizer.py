"""Adam over the weights of a model and of its loss, some of which learn slower than the others, or decay.

Parts are named by how the names of their weights begin; those of the loss begin with `loss.`. Of several
names that fit, the longest counts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn


def adam(
    groups: Sequence[Mapping[str, Any]], *, rate: float, eps: float = 1e-12
) -> torch.optim.Optimizer:
    """Of groups of `params` with their `share` of the learning rate, 1 if not given, and `weight_decay`.

    Decay is decoupled from the gradient, as in AdamW. On a GPU one kernel for each group, with the learning
    rate there too, so that it can be replayed.
    """
    device = next(iter(groups[0]["params"])).device
    is_cuda = device.type == "cuda"
    made = []
    for group in groups:
        share = group.get("share", 1.0)
        own_rate = torch.tensor(rate * share, device=device) if is_cuda else rate * share
        made.append({"weight_decay": 0.0, **group, "share": share, "lr": own_rate})
    kind = torch.optim.AdamW if any(group["weight_decay"] for group in made) else torch.optim.Adam
    return kind(made, eps=eps, fused=is_cuda, capturable=is_cuda)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """For every group its share of it."""
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
    weight_decays: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """All weights, those of the loss last, by their share of the learning rate and their decay.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> groups = groups_of(net, nn.Module(), rate_shares={"1.": 0.1}, weight_decays={"1.weight": 3})
    >>> [(len(group["params"]), group["share"], group["weight_decay"]) for group in groups]
    [(2, 1.0, 0.0), (1, 0.1, 3), (1, 0.1, 0.0)]
    """
    weights = [*model.named_parameters(), *loss.named_parameters(prefix="loss")]
    asked = {"rate_shares": rate_shares or {}, "weight_decays": weight_decays or {}}
    for kind, parts in asked.items():
        for part, value in parts.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{kind} gives {part!r} {value}; give a number of at least 0")
            if not any(name.startswith(part) for name, _ in weights):
                raise ValueError(f"{kind} names {part!r}, with which no weight's name begins")
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, weight in weights:
        share = _of_longest(asked["rate_shares"], name, 1.0)
        decay = _of_longest(asked["weight_decays"], name, 0.0)
        groups.setdefault((share, decay), []).append(weight)
    return [
        {"params": of_group, "share": share, "weight_decay": decay}
        for (share, decay), of_group in groups.items()
    ]


def _of_longest(parts: Mapping[str, float], name: str, otherwise: float) -> float:
    named = [part for part in parts if name.startswith(part)]
    return parts[max(named, key=len)] if named else otherwise
