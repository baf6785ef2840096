"""Too little memory: recognised, and avoided where images can be taken a few at a time."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Outputs = TypeVar("Outputs", Tensor, tuple[Tensor, Tensor])


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on the CPU or on a GPU.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("another"))
    (True, False)
    """
    said = ("out of memory", "allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in said)
    )


def in_halves(function: Callable[[Tensor], Outputs], images: Tensor) -> Outputs:
    """The function of images, of half of them at a time where memory does not suffice for all. It gives a
    tensor, or two.

    >>> in_halves(lambda images: images + 1, torch.zeros(3)).tolist()
    [1.0, 1.0, 1.0]
    """
    try:
        return function(images)
    except (MemoryError, RuntimeError) as error:
        if len(images) < 2 or not is_out_of_memory(error):
            raise
    # outside, where the error no longer holds what it was about
    first, second = (in_halves(function, half) for half in images.tensor_split(2))
    if isinstance(first, Tensor):
        return torch.cat([first, second])
    return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])
