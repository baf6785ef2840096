"""Adam over the weights of a model and of its loss, some of which learn slower than the others.

Parts are named by how the names of their weights begin; those of the loss begin with `loss.`. Of several
names that fit, the longest counts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from orbitset import kernels

_NOT_OURS = ("weight_decay", "amsgrad", "maximize", "differentiable")


class Adam(torch.optim.Adam):
    """torch's. On a GPU its step is a kernel of ours, which takes half the time of the fused one."""

    def step(self, closure: Any = None) -> Any:
        rows = None if closure is not None else self._rows()
        if rows is None:
            plain = torch.optim.Adam.step
            if getattr(plain, "hooked", False):  # hooks are called around this one already
                plain = plain.__wrapped__  # type: ignore[attr-defined]
            return plain(self, closure)
        from orbitset.kernels.adam import update

        for group, of_group in zip(self.param_groups, rows, strict=True):
            if of_group:
                torch._foreach_add_([row[-1] for row in of_group], 1)
                update(of_group, group["lr"], betas=group["betas"], eps=group["eps"])
        return None

    @torch.no_grad()
    def _rows(self) -> list[list[Any]] | None:
        """What is updated, by group; None if that is beyond the kernel."""
        weights = [p for group in self.param_groups for p in group["params"]]
        is_scaled = any(getattr(self, of, None) is not None for of in ("grad_scale", "found_inf"))
        if is_scaled or not kernels.serve(*weights) or not all(map(_is_plain, self.param_groups)):
            return None
        from orbitset.kernels.adam import can_update

        rows = []
        for group in self.param_groups:
            of_group = []
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if weight.grad.is_sparse:
                    return None
                state = self.state[weight]
                if not state:
                    state["step"] = torch.zeros((), device=weight.device)
                    state["exp_avg"] = torch.zeros_like(weight)
                    state["exp_avg_sq"] = torch.zeros_like(weight)
                grad = weight.grad
                if grad.stride() != weight.stride():
                    grad = torch.empty_like(weight).copy_(grad)
                row = (weight, grad, state["exp_avg"], state["exp_avg_sq"], state["step"])
                if not can_update(row):
                    return None
                of_group.append(row)
            rows.append(of_group)
        return rows


def _is_plain(group: Mapping[str, Any]) -> bool:
    rate, first = group["lr"], group["params"][0]
    return (
        isinstance(rate, torch.Tensor)
        and (rate.dtype, rate.numel(), rate.device) == (torch.float32, 1, first.device)
        and not any(group[name] for name in _NOT_OURS)
        and not any(isinstance(beta, torch.Tensor) for beta in group["betas"])
    )


def adam(groups: Sequence[Mapping[str, Any]], *, rate: float, eps: float = 1e-12) -> Adam:
    """Of groups of `params` with their `share` of the learning rate, 1 if not given.

    On a GPU the learning rate lies there too, so that a step can be replayed.
    """
    device = next(iter(groups[0]["params"])).device
    is_cuda = device.type == "cuda"
    made = []
    for group in groups:
        share = group.get("share", 1.0)
        own_rate = torch.tensor(rate * share, device=device) if is_cuda else rate * share
        made.append({**group, "share": share, "lr": own_rate})
    return Adam(made, eps=eps, fused=is_cuda, capturable=is_cuda)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """For every group its share of it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["share"])
        else:
            group["lr"] = rate * group["share"]


def groups_of(
    model: nn.Module, loss: nn.Module, *, rate_shares: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """All weights, those of the loss last, by their share of the learning rate, 1 of what is not named.

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
    groups: dict[float, list[nn.Parameter]] = {}
    for name, weight in weights:
        named = [part for part in shares if name.startswith(part)]
        share = shares[max(named, key=len)] if named else 1.0
        groups.setdefault(share, []).append(weight)
    return [{"params": of_share, "share": share} for share, of_share in groups.items()]
