"""Adam's step over many tensors as one launch, held to torch's by tests."""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from orbitset.cuda.nvrtc import Kernel, serve, source
from orbitset.dispatch import is_enabled

_NOT_OURS = ("weight_decay", "amsgrad", "maximize", "differentiable")
_THREADS, _EACH = 256, 4
_MAX_TENSORS = 64
"""A launch can be given 4 KiB."""


class _Tensor(ctypes.Structure):
    """Mirrors `struct Tensor` of adam.cu."""

    _fields_ = [
        ("weights", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("mean", ctypes.c_void_p),
        ("square", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("count", ctypes.c_longlong),
        ("first_block", ctypes.c_longlong),
    ]


@functools.cache
def _kernel() -> Kernel:
    return Kernel(adam_source(), "adam", threads=_THREADS)


def adam_source() -> str:
    constants = {"THREADS": _THREADS, "EACH": _EACH, "MAX_TENSORS": _MAX_TENSORS}
    return source("adam.cu", constants) + (
        f'static_assert(sizeof(Tensor) == {ctypes.sizeof(_Tensor)}, "as Python has it");\n'
    )


Row = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Weights, their gradient, the two means that decay and the number of steps, this one counted."""


def can_update(row: Row) -> bool:
    """Whether numbers that belong together lie in the same places."""
    weights, *others, steps = row
    return (
        all(t.dtype == torch.float32 and t.device == weights.device for t in row)
        and _fills_its_memory(weights)
        and all(t.stride() == weights.stride() and t.shape == weights.shape for t in others)
        and steps.numel() == 1
    )


def _fills_its_memory(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def update(rows: Sequence[Row], rate: Tensor, *, betas: tuple[float, float], eps: float) -> None:
    for start in range(0, len(rows), _MAX_TENSORS):
        table = (_Tensor * _MAX_TENSORS)()
        blocks = 0
        part = rows[start : start + _MAX_TENSORS]
        for at, row in enumerate(part):
            count = row[0].numel()
            table[at] = _Tensor(*(tensor.data_ptr() for tensor in row), count, blocks)
            blocks += -(-count // (_THREADS * _EACH))
        with torch.cuda.device(rate.device):
            _kernel()(
                (max(1, blocks), 1),
                table,
                ctypes.c_int(len(part)),
                ctypes.c_void_p(rate.data_ptr()),
                *map(ctypes.c_double, betas),
                ctypes.c_float(eps),
            )
        torch.autograd.graph.increment_version([row[0] for row in part])


class Adam(torch.optim.Adam):
    """torch's Adam, with a step of our own that takes half the time of the fused one."""

    def step(self, closure: Any = None) -> Any:
        rows = None if closure is not None else self._rows()
        if rows is None:
            plain = torch.optim.Adam.step
            if getattr(plain, "hooked", False):  # hooks are called around this one already
                plain = plain.__wrapped__  # type: ignore[attr-defined]
            return plain(self, closure)
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
        if is_scaled or not (is_enabled() and serve(*weights)):
            return None
        if not all(map(_is_plain, self.param_groups)):
            return None
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


def serves_adam(groups: Sequence[Mapping[str, Any]], eps: float) -> bool:
    return all(weight.is_cuda for group in groups for weight in group["params"])


def adam(groups: Sequence[Mapping[str, Any]], eps: float) -> Adam:
    """The learning rates lie on the GPU too, so that a recorded step follows them."""
    device = groups[0]["params"][0].device
    on_gpu = [{**group, "lr": torch.tensor(group["lr"], device=device)} for group in groups]
    return Adam(on_gpu, eps=eps, fused=True, capturable=True)
