"""What the mean terms of a loss say while it is minimised, in sentences: codes that collapse, a term that has
become silent, terms of very different size.

Terms are judged over stretches of at least a tenth of a training. What a term means, an objective may say in
`about_terms`: see `orbitset.losses.Term`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from orbitset.losses.terms import Term
from orbitset.training.monitors import Monitor

_COLLAPSED, _COLLAPSED_RANK = 1e-4, 1.1
_SILENT = 1e-3
"""A term is silent below this share of its largest mean so far"""
_MOST_APART = 100.0
_PARTS, _FEWEST_STEPS = 10, 20
"""A stretch is a tenth of the training, and at least so many steps"""
_FRACTIONS = ("spread", "rank")
_SUM_TOLERANCE = 1e-3


About = Mapping[str, Term | str]
"""What terms mean; a plain text is a meaning"""


class Stretch(NamedTuple):
    """The means of the terms from one step to another."""

    first: int
    last: int
    terms: Mapping[str, float]


class TermWatch:
    """Collects the mean terms of a training, stretch by stretch, and judges them."""

    def __init__(self, steps: int, about: About, state: Mapping[str, Any] | None = None) -> None:
        self._steps, self._about = steps, about
        self._every = max(_FEWEST_STEPS, math.ceil(steps / _PARTS))
        state = state or {}
        self._stretches = [Stretch(*stretch) for stretch in state.get("stretches", ())]
        self._sums, self._summed = dict(state.get("sums", {})), int(state.get("summed", 0))

    def is_due(self, step: int) -> bool:
        return step > 0 and step % self._every == 0

    def look(self, step: int, monitor: Monitor, *, is_last: bool = False) -> dict[str, str]:
        """End a stretch; gives sentences on what was noticed, by a name for each kind."""
        sums, summed = monitor.state
        if num := summed - self._summed:
            terms = {
                name: (value - self._sums.get(name, 0.0)) / num for name, value in sums.items()
            }
            terms |= monitor.about_codes()
            self._stretches.append(Stretch(step - num, step, terms))
        self._sums, self._summed = sums, summed
        tenth = max(_FEWEST_STEPS, self._steps // _PARTS)
        return judge(self._stretches, tenth=tenth, about=self._about, is_last=is_last)

    def flush(self) -> None:
        """The monitor has been flushed."""
        self._sums, self._summed = {}, 0

    @property
    def state(self) -> dict[str, Any]:
        """What goes into a checkpoint."""
        return {"stretches": self._stretches, "sums": self._sums, "summed": self._summed}


def judge(
    stretches: Sequence[Stretch], *, tenth: int, about: About, is_last: bool = False
) -> dict[str, str]:
    """Sentences about the latest stretches, by a name for each kind.

    >>> terms = {"loss": 3.0, "near": 3.0, "far": 0.0}
    >>> print(judge([Stretch(0, 50, terms)], tenth=50, about={})["silent far"])
    the term far has been 0 since step 0: it no longer teaches anything; change its settings or train for less
    """
    if not stretches:
        return {}
    sentences: dict[str, str] = {}
    if collapse := _collapse(stretches, is_last=is_last):
        sentences["collapse"] = collapse
    parts = _parts(stretches, about)
    silent_since = {name: _silent_since(stretches, name) for name in parts}
    latest = stretches[-1].last
    for name, (first, is_zero) in silent_since.items():
        if first is None or latest - first < tenth:
            continue
        why = _term(about, name).when_silent or (
            "it no longer teaches anything; change its settings or train for less"
        )
        sentences[f"silent {name}"] = (
            f"the term {name} has been {'0' if is_zero else 'nearly 0'} since step {first:,}: {why}"
        )
    heard = [name for name, (first, _) in silent_since.items() if first is None]
    if unbalanced := _unbalanced(stretches, heard, tenth=tenth, about=about):
        sentences["unbalanced"] = unbalanced
    return sentences


def explained(about: About) -> str | None:
    """What the terms of an objective mean, in one sentence; None if it says nothing.

    >>> explained({"near": "distance to the target", "far": "distance to others"})
    'near: distance to the target; far: distance to others'
    """
    return "; ".join(f"{name}: {_term(about, name).meaning}" for name in about) or None


def _term(about: About, name: str) -> Term:
    """What an objective says of a term."""
    term = about.get(name, Term("", is_part=False))
    return Term(term) if isinstance(term, str) else term


def _collapse(stretches: Sequence[Stretch], *, is_last: bool) -> str | None:
    """Codes often begin on a line and leave it: it is a collapse when they stay there, or end there."""
    *before, latest = [collapse_warning(stretch.terms) for stretch in stretches[-2:]]
    return latest if is_last or any(before) else None


def collapse_warning(means: Mapping[str, float]) -> str | None:
    """A sentence when the codes have all but become one."""
    advice = "distances between them say little; try another margin, code_norm or mining"
    if means.get("spread", 1.0) < _COLLAPSED:
        return (
            f"the codes have collapsed to nearly one point (spread {means['spread']:.1e}): {advice}"
        )
    if means.get("rank", 2.0) < _COLLAPSED_RANK:
        return f"the codes have collapsed to nearly a line (rank {means['rank']:.2f}): {advice}"
    return None


def _parts(stretches: Sequence[Stretch], about: About) -> list[str]:
    """The terms that the loss is the sum of: those of which the objective says so, or all others if they
    add up to it."""
    terms = stretches[-1].terms
    names = [name for name in terms if name not in ("loss", *_FRACTIONS)]
    if about:
        return [name for name in names if _term(about, name).is_part]
    loss, total = terms.get("loss", math.nan), sum(terms[name] for name in names)
    return names if abs(loss - total) <= _SUM_TOLERANCE * abs(loss) else []


def _silent_since(stretches: Sequence[Stretch], name: str) -> tuple[int | None, bool]:
    """The step since which a term is silent, and whether it is exactly 0; None if it is not silent."""
    means = [abs(stretch.terms.get(name, 0.0)) for stretch in stretches]
    first, limit = None, _SILENT * max(means)
    silent = 0.0
    for stretch, mean in zip(reversed(stretches), reversed(means), strict=True):
        if mean > limit:
            break
        first, silent = stretch.first, max(silent, mean)
    return first, silent == 0


def _unbalanced(
    stretches: Sequence[Stretch], names: Iterable[str], *, tenth: int, about: About
) -> str | None:
    """A sentence if two terms are far apart over the latest tenth of the training."""
    latest = stretches[-1].last
    used: list[Stretch] = []
    for stretch in reversed(stretches):
        used.append(stretch)
        if latest - stretch.first >= tenth:
            break
    else:
        return None
    sizes = {
        name: abs(sum((s.last - s.first) * s.terms.get(name, 0.0) for s in used)) for name in names
    }
    if len(sizes) < 2 or not all(sizes.values()):
        return None
    ordered = sorted(sizes, key=sizes.__getitem__)
    small, second, large = ordered[0], ordered[-2], ordered[-1]
    ratio = sizes[large] / sizes[small]
    if ratio <= _MOST_APART:
        return None
    is_alone = sizes[large] > _MOST_APART * sizes[second]
    alone = _term(about, large).alone if is_alone else None
    meaning = f"this trains as {alone}" if alone else f"{small} hardly counts"
    balance = _term(about, large).to_balance or "change their weights"
    return (
        f"{large} is {ratio:,.0f} times {small} (steps {used[-1].first:,} to {latest:,}): {meaning}; "
        f"to balance them, {balance}"
    )
