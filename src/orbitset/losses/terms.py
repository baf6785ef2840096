"""What the terms of an objective mean, for those who watch its training."""

from typing import NamedTuple


class Term(NamedTuple):
    """A term of an objective in words; an objective has them by name in its attribute `about_terms`, where a
    plain text is a meaning."""

    meaning: str
    when_silent: str = ""
    """What it means that the term has been 0 for long, and what to do"""
    alone: str = ""
    """What the objective amounts to where this term is much larger than the others"""
    to_balance: str = ""
    """What to do if it is"""
    is_part: bool = True
    """Whether the loss is a sum of which this is a part, with its weight"""


RECTIFY = Term(
    "the decoded images are near the targets of their orbits",
    alone="OE",
    to_balance="set a lower loss.rectify_weight",
)
