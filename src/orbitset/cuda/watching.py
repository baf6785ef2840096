"""Why a training step cannot be recorded: found out by watching an ordinary one.

What is recorded is the work of the GPU. Everything that the host does within a step happens once, while it
is recorded, and would be frozen: numbers that it draws, counts that it keeps, tensors that it makes. And a
step that waits for the GPU cannot be recorded at all.
"""

import functools
import random
import types
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")
_WAITING = "called a synchronizing CUDA operation"
_MOST_VALUES = 20_000
"""Values of Python that are compared; what has more is not looked at to the end"""


def watched(step: Callable[[], Result], *parts: nn.Module) -> tuple[Result, str | None]:
    """What the step gives, and why it cannot be recorded, if something was noticed.

    `parts` are the modules that take part, whose Python state must stay as it is.
    """
    before = _host_state(parts)
    with warnings.catch_warnings(record=True) as caught, HostWork() as host:
        warnings.simplefilter("always")
        result = _warning_of_waits(step)
    waits = False
    for warning in caught:
        if _WAITING in str(warning.message):
            waits = True
        elif "Synchronization debug mode is a prototype" not in str(warning.message):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if waits:
        return result, "it waits for numbers from the GPU"
    if host.operation is not None:
        return result, f"it computes on the host ({host.operation})"
    if _host_state(parts) != before:
        return result, "it changes Python values or draws random numbers on the host"
    return result, None


def _warning_of_waits(step: Callable[[], Result]) -> Result:
    if not torch.cuda.is_available():
        return step()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        return step()
    finally:
        torch.cuda.set_sync_debug_mode(before)


class HostWork(TorchDispatchMode):
    """Notes the first operation whose result is on the host. Single numbers that are constants may be."""

    operation: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.operation is None:
            is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
            tensors = (value for value in tree_leaves(result) if isinstance(value, Tensor))
            if any(self.is_on_host(tensor, is_random) for tensor in tensors):
                self.operation = str(func)
        return result

    def is_on_host(self, tensor: Tensor, is_random: bool) -> bool:
        return tensor.device.type == "cpu" and (is_random or tensor.ndim > 0)


def _host_state(parts: Collection[nn.Module]) -> list[Any]:
    """Python values that the parts can reach, and where the random numbers of the host are."""
    numpys: Any = np.random.get_state()
    state: list[Any] = [random.getstate(), hash(numpys[1].tobytes()), numpys[2]]
    state.append(_hashed(torch.get_rng_state()))
    visited_ids: set[int] = set()
    waiting: list[Any] = list(parts)
    while waiting and len(visited_ids) < _MOST_VALUES:
        value = waiting.pop()
        if isinstance(value, int | float | complex | str | bytes | None):
            state.append(value)
        elif id(value) not in visited_ids:
            visited_ids.add(id(value))
            waiting += _within(value, state)
    return state


def _within(value: Any, state: list[Any]) -> Collection[Any]:
    """What a value holds; what it is by itself goes to the state."""
    match value:
        case Tensor():
            state.append((value.data_ptr(), value.shape))
        case torch.Generator():
            state.append(_hashed(value.get_state()))
        case random.Random():
            state.append(value.getstate())
        case np.random.Generator():
            state.append(repr(value.bit_generator.state))
        case np.ndarray():
            state.append(hash(value.tobytes()))
        case Mapping():
            return [*value.keys(), *value.values()]
        case list() | tuple() | set() | frozenset():
            state.append(len(value))
            return value
        case functools.partial():
            return [value.func, *value.args, *value.keywords.values()]
        case types.MethodType():
            return [value.__self__, value.__func__]
        case types.FunctionType():
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            used = [value.__globals__.get(name) for name in value.__code__.co_names]
            own = [name for name in used if not isinstance(name, types.ModuleType | type)]
            return [*cells, *own, *(value.__defaults__ or ()), *vars(value).values()]
        case types.ModuleType() | type() | types.CodeType():
            pass
        case _:
            return list(getattr(value, "__dict__", {}).values())
    return ()


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _hashed(tensor: Tensor) -> int:
    return hash(tensor.numpy().tobytes())
