"""Rules that say which pairs of images must not be compared, in terms of the images' factors.

`Same("person") & (Same("view") | Same("light"))` holds for two images of one person that share view or light;
`~` negates a rule. A rule is evaluated for a few rows at a time, so that no matrix of all pairs is needed.

Shapes: Q queries, G images they are compared with.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Factors = Mapping[str, Tensor]
"""A number per image for each named factor; equal numbers mean the same person, view, light …"""
_ROUNDING = 1e-9
"""Numbers that differ by this share less than a limit are as far apart as the limit"""


class Rule:
    """A condition on pairs of images."""

    def __init__(
        self, text: str, names: frozenset[str], holds: Callable[[Factors, Factors], Tensor]
    ) -> None:
        self._text = text
        self.names = names
        """The factors that the rule reads."""
        self.holds = holds
        """Whether the rule holds for each pair of a query and a gallery image, (Q, G) bool."""

    def __and__(self, other: "Rule") -> "Rule":
        return Rule(
            f"({self!r} & {other!r})",
            self.names | other.names,
            lambda queries, gallery: self.holds(queries, gallery) & other.holds(queries, gallery),
        )

    def __or__(self, other: "Rule") -> "Rule":
        return Rule(
            f"({self!r} | {other!r})",
            self.names | other.names,
            lambda queries, gallery: self.holds(queries, gallery) | other.holds(queries, gallery),
        )

    def __invert__(self) -> "Rule":
        return Rule(
            f"~{self!r}", self.names, lambda queries, gallery: ~self.holds(queries, gallery)
        )

    def __bool__(self) -> bool:
        raise TypeError("combine rules with &, | and ~ instead of and, or and not")

    def __repr__(self) -> str:
        return self._text


class Same(Rule):
    """Two images have the same value of a factor.

    >>> import torch
    >>> rule = Same("person") & ~Same("view")
    >>> factors = {"person": torch.tensor([0, 0, 1]), "view": torch.tensor([5, 6, 6])}
    >>> rule.holds(factors, factors).int().tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """

    def __init__(self, factor: str) -> None:
        super().__init__(
            f"Same({factor!r})",
            frozenset({factor}),
            lambda queries, gallery: queries[factor][:, None] == gallery[factor],
        )


class Near(Rule):
    """Two images have numbers of a factor that differ by less than `within`, such as frames of one moment.

    On a circle numbers begin anew after a period, such as 360 degrees, which is a factor too.

    >>> import torch
    >>> frames = {"frame": torch.tensor([0, 5, 20]), "all": torch.tensor([24, 24, 24])}
    >>> Near("frame", 8).holds(frames, frames).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    >>> Near("frame", 8, "all").holds(frames, frames).int().tolist()
    [[1, 1, 1], [1, 1, 0], [1, 0, 1]]
    """

    def __init__(self, factor: str, within: float, period: str | None = None) -> None:
        def holds(queries: Factors, gallery: Factors) -> Tensor:
            distance = (queries[factor].double()[:, None] - gallery[factor]).abs()
            if period is not None:
                around = queries[period].double()[:, None]
                distance = distance.remainder(around)
                distance = torch.minimum(distance, around - distance)
            return distance < within - _ROUNDING * within

        text = ", ".join([repr(factor), f"{within:g}", *([repr(period)] if period else [])])
        super().__init__(f"Near({text})", frozenset({factor, *([period] if period else [])}), holds)


def check_factors(rule: Rule, factors: Factors, num: int) -> None:
    """Refuse factors that do not have what the rule reads, a number for each of `num` images."""
    missing = sorted(rule.names - set(factors))
    if missing:
        known = ", ".join(factors) or "none"
        raise ValueError(f"the rule reads {', '.join(missing)}, but the factors are {known}")
    for name in sorted(rule.names):
        if factors[name].shape != (num,):
            raise ValueError(
                f"factor {name} has shape {tuple(factors[name].shape)} for {num} images; "
                "give one number per image"
            )
