"""The paper's methods by name: an objective, with or without a spatial transformer before the encoder."""

from typing import Literal, cast, get_args

from orbitset.errors import check_choice
from orbitset.losses.methods import Method as Objective

Method = Literal[
    "OJ", "OT", "OE", "ST", "EX", "AE",
    "OJ-STN", "OT-STN", "OE-STN", "ST-STN", "EX-STN", "AE-STN",
]  # fmt: skip
METHODS: tuple[Method, ...] = ("OJ", "OT", "OE", "ST", "EX", "AE", "OT-STN", "ST-STN")
"""Those of the paper"""
_STN = "-STN"


def parse_method(name: str) -> Method:
    """The method of that name, whatever its case.

    >>> parse_method("ot-stn")
    'OT-STN'
    """
    check_choice("method", name.upper(), get_args(Method))
    return cast(Method, name.upper())


def objective_of(method: Method) -> Objective:
    """What a method asks of the codes.

    >>> objective_of("OT-STN")
    'OT'
    """
    return cast(Objective, method.removesuffix(_STN))


def has_transformer(method: Method) -> bool:
    return method.endswith(_STN)
