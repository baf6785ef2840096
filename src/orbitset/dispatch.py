"""The one door to `orbitset.cuda`, the folder with everything that knows how a GPU is made fast.

Plain torch code stands where it is read. What is marked with `accelerated` is replaced on an NVIDIA GPU by
the implementation of that name in the folder's table, if the folder exists and the implementation serves the
arguments; and `fast_steps` asks the folder for a faster way to take training steps. Without the folder
everything works as it does on a CPU.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

ROOM = "orbitset.cuda.table"
"""The module with `IMPLEMENTATIONS`, pairs of (serves, implementation) by name, and `fast_steps`"""
_is_enabled = True


def accelerated(name: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Mark plain torch code that the CUDA folder may replace, for tensors on an NVIDIA GPU.

    Mark private functions: the doctests of a wrapped one are not collected.
    """

    def decorate(plain: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(plain)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if _is_enabled and _is_on_gpu((args, kwargs)) and (room := _room()) is not None:
                serves, implementation = room.IMPLEMENTATIONS[name]
                if serves(*args, **kwargs):
                    result: Result = implementation(*args, **kwargs)
                    return result
            return plain(*args, **kwargs)

        return call

    return decorate


@contextmanager
def disabled() -> Iterator[None]:
    """Inside, only plain torch code runs, on every device."""
    global _is_enabled
    before, _is_enabled = _is_enabled, False
    try:
        yield
    finally:
        _is_enabled = before


def is_enabled() -> bool:
    return _is_enabled


def fast_steps(
    steps: Any, *, required: bool, note: Callable[[str], None]
) -> tuple[Callable[[int], Mapping[str, Tensor]] | None, str]:
    """A faster way to take these training steps, and a word on it; or None, and why there is none.

    It may find out only later that a step cannot be taken the fast way. Then it says so by `note` and goes on
    the ordinary way or, where `required`, raises an error.
    """
    if next(steps.network.parameters()).device.type != "cuda":
        return None, "it needs an NVIDIA GPU"
    room = _room()
    if room is None:
        return None, "orbitset.cuda is not installed"
    taken: tuple[Any, str] = room.fast_steps(steps, required=required, note=note)
    return taken


@functools.cache
def _room() -> ModuleType | None:
    try:
        return importlib.import_module(ROOM)
    except ModuleNotFoundError as error:
        if error.name is not None and ROOM.startswith(error.name):
            return None
        raise


def _is_on_gpu(value: Any) -> bool:
    """Whether the first tensor in nested arguments is on a GPU; the implementation looks at the others."""
    tensor = _first_tensor(value)
    return tensor is not None and tensor.is_cuda


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return None
    tensors = (_first_tensor(part) for part in value)
    return next((tensor for tensor in tensors if tensor is not None), None)
