"""What training minimises, as training sees it: one contract, which the methods and losses of your own keep.

An objective is called as objective(codes, batch, rectified) and gives named terms, of which `loss` is
minimised. `as_objective` makes one of any function or module.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, cast

from torch import Tensor, nn

from orbitset.losses.terms import Term

Terms = Mapping[str, Tensor]


class BatchLike(Protocol):
    """What an objective may look at; `orbitset.orbits.Batch` is one."""

    @property
    def images(self) -> Tensor: ...
    @property
    def orbits(self) -> Tensor: ...
    @property
    def canonical(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor | None: ...
    @property
    def max_members(self) -> int: ...
    @property
    def seed(self) -> int: ...


class Objective(nn.Module):
    """A loss over the codes of a batch. What it does not say of itself is as it is here.

    Its `forward` takes (codes, batch, rectified) and gives named terms, with `loss` among them.

    >>> class Small(Objective):
    ...     def forward(self, codes, batch, rectified):
    ...         return {"loss": codes.square().mean()}
    >>> Small().uses_rectified, Small().about_terms
    (False, {})
    """

    uses_rectified: bool = False
    """Whether it looks at decoded images; `rectified` is None otherwise"""
    shapes_codes: bool = True
    """If false, the decoder learns from codes as they are, and its term does not change them"""

    @property
    def about_terms(self) -> Mapping[str, Term | str]:
        """What its terms mean, for those who watch a training."""
        return {}


class _Function(Objective):
    def __init__(self, function: Callable[..., Any], num_arguments: int) -> None:
        super().__init__()
        self.function, self.num_arguments = function, num_arguments
        self.uses_rectified = num_arguments > 2

    @property
    def about_terms(self) -> Mapping[str, Term | str]:
        about: Mapping[str, Term | str] = getattr(_plain(self.function), "about_terms", {})
        return about

    def forward(self, *arguments: Any) -> Terms:
        terms = self.function(*arguments[: self.num_arguments])
        return terms if isinstance(terms, Mapping) else {"loss": terms}


def as_objective(loss: Callable[..., Any]) -> Objective:
    """Make an objective of a function of (codes, batch) or (codes, batch, rectified), which gives the loss or
    named terms with a `loss`. A module gets the attributes of `Objective` that it lacks.

    >>> @as_objective
    ... def spread_out(codes, batch):
    ...     return -codes.var(0).sum()
    """
    if isinstance(loss, nn.Module):
        defaults = Objective()
        for name in ("uses_rectified", "shapes_codes", "about_terms"):
            if not hasattr(loss, name):
                setattr(loss, name, getattr(defaults, name))
        return cast(Objective, loss)
    positional = [
        parameter
        for parameter in inspect.signature(loss).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY
    ]
    return _Function(loss, 3 if len(positional) > 2 else 2)


def name_of(loss: nn.Module) -> str:
    """The name of the function or class of a loss, as `module:name` if it is from outside the package."""
    function = _plain(loss.function) if isinstance(loss, _Function) else type(loss)
    name: str = getattr(function, "__qualname__", type(function).__name__)
    is_own = function.__module__.startswith("orbitset.")
    return name if is_own else f"{function.__module__}:{name}"


def _plain(function: Any) -> Any:
    """The function of which some parameters may be set."""
    return function.func if isinstance(function, partial) else function
