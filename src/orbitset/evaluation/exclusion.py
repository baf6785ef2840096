"""Rules for pairs: which images must not be compared with which, said in terms of their factors.

`Same("person") & (Same("view") | Same("light"))` holds for two images of one person that share view or light;
`~` turns a rule round. A rule is only a description: it is asked for a few rows at a time, so that no matrix
of all pairs is ever needed.

Shapes: Q queries, G images they are compared with.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Factors = Mapping[str, Tensor]
"""An int64 number per image for each named factor; equal numbers mean the same person, view, light …"""


class Rule(ABC):
    """Something that holds for a pair of images, or does not."""

    @abstractmethod
    def holds(self, queries: Factors, gallery: Factors) -> Tensor:
        """Whether it holds for each pair, (Q, G) bool."""

    @abstractmethod
    def names(self) -> frozenset[str]:
        """The factors it asks about."""

    def __and__(self, other: "Rule") -> "Rule":
        return _Both(self, other)

    def __or__(self, other: "Rule") -> "Rule":
        return ~(~self & ~other)

    def __invert__(self) -> "Rule":
        return _Not(self)

    def __bool__(self) -> bool:
        raise TypeError("rules are put together with &, | and ~, not with and, or and not")


class Same(Rule):
    """Two images have the same value of a factor.

    >>> rule = Same("person") & ~Same("view")
    >>> factors = {"person": torch.tensor([0, 0, 1]), "view": torch.tensor([5, 6, 6])}
    >>> rule.holds(factors, factors).int().tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """

    def __init__(self, factor: str) -> None:
        self.factor = factor

    def holds(self, queries: Factors, gallery: Factors) -> Tensor:
        return queries[self.factor][:, None] == gallery[self.factor]

    def names(self) -> frozenset[str]:
        return frozenset({self.factor})

    def __repr__(self) -> str:
        return f"Same({self.factor!r})"


class Near(Rule):
    """Two images have numbers of a factor that differ by less than so much: frames of one moment.

    >>> frames = {"frame": torch.tensor([0, 5, 20])}
    >>> Near("frame", 8).holds(frames, frames).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """

    def __init__(self, factor: str, within: int) -> None:
        self.factor, self.within = factor, within

    def holds(self, queries: Factors, gallery: Factors) -> Tensor:
        apart = queries[self.factor][:, None] - gallery[self.factor]
        return apart.abs() < self.within

    def names(self) -> frozenset[str]:
        return frozenset({self.factor})

    def __repr__(self) -> str:
        return f"Near({self.factor!r}, {self.within})"


class _Both(Rule):
    def __init__(self, first: Rule, second: Rule) -> None:
        self.first, self.second = first, second

    def holds(self, queries: Factors, gallery: Factors) -> Tensor:
        return self.first.holds(queries, gallery) & self.second.holds(queries, gallery)

    def names(self) -> frozenset[str]:
        return self.first.names() | self.second.names()

    def __repr__(self) -> str:
        return f"({self.first!r} & {self.second!r})"


class _Not(Rule):
    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def holds(self, queries: Factors, gallery: Factors) -> Tensor:
        return ~self.rule.holds(queries, gallery)

    def names(self) -> frozenset[str]:
        return self.rule.names()

    def __invert__(self) -> Rule:
        return self.rule

    def __repr__(self) -> str:
        return f"~{self.rule!r}"


def number_factors(columns: Mapping[str, Sequence[object]]) -> dict[str, Tensor]:
    """Columns of any values as numbers, in the order in which values come first.

    >>> {name: ids.tolist() for name, ids in number_factors({"view": ["left", "front", "left"]}).items()}
    {'view': [0, 1, 0]}
    """
    numbered = {}
    for name, values in columns.items():
        ids: dict[object, int] = {}
        numbered[name] = torch.tensor(
            [ids.setdefault(value, len(ids)) for value in values], dtype=torch.int64
        )
    lengths = {name: len(ids) for name, ids in numbered.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns have different lengths: {lengths}; give one value per image")
    return numbered


def check_factors(rule: Rule, factors: Factors, num: int) -> None:
    """Refuse factors that a rule asks about and that are not there, or not for all images."""
    missing = sorted(rule.names() - set(factors))
    if missing:
        known = ", ".join(factors) or "none"
        raise ValueError(f"the rule asks about {', '.join(missing)}, but the factors are {known}")
    for name in sorted(rule.names()):
        if factors[name].shape != (num,):
            raise ValueError(
                f"factor {name} has shape {tuple(factors[name].shape)} for {num} images; "
                "give one number per image"
            )
