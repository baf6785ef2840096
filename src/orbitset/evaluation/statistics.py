"""Is one method better than another? Paired tests over repeats, corrected for how many were made.

Scores come as one number per repeat: a split, a draw or a seed, the same ones for both methods. Where every
split was scored with several seeds, average over seeds first (`mean_over_seeds`): seeds of one split are not
repeats of the experiment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from orbitset.errors import check_choice

Test = Literal["paired-t", "corrected-t", "wilcoxon"]
Correction = Literal["holm", "bonferroni", "none"]


@dataclass(frozen=True)
class PairedTest:
    """Whether scores `a` differ from scores `b`: mean of a - b, its interval, the test and its p."""

    test: Test
    repeats: int
    difference: float
    low: float
    high: float
    statistic: float
    p: float


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval by Student's t, and over how many values."""

    mean: float
    low: float
    high: float
    repeats: int


def paired_t_test(a: ArrayLike, b: ArrayLike, *, level: float = 0.95) -> PairedTest:
    """Student's t on the differences, as in the paper. It takes the repeats for independent.

    >>> paired_t_test([0.61, 0.63, 0.64], [0.50, 0.53, 0.52]).p < 0.01
    True
    """
    return _t_test("paired-t", a, b, 0.0, level)


def corrected_t_test(
    a: ArrayLike, b: ArrayLike, *, tested: float, trained: float, level: float = 0.95
) -> PairedTest:
    """The same for splits that overlap, with the variance Nadeau and Bengio (2003) correct it to.

    `tested` and `trained` are how much of the data, in any unit, a split scores and what it is chosen on:
    the variance of the mean is (1 / repeats + tested / trained) times that of the differences.

    >>> scores = ([0.61, 0.63, 0.64], [0.50, 0.53, 0.52])
    >>> corrected_t_test(*scores, tested=1, trained=1).p > paired_t_test(*scores).p
    True
    """
    if not (tested >= 0 and trained > 0):
        raise ValueError(
            f"tested is {tested} and trained {trained}; give how much data each part of a split holds"
        )
    return _t_test("corrected-t", a, b, tested / trained, level)


def wilcoxon_test(a: ArrayLike, b: ArrayLike, *, level: float = 0.95) -> PairedTest:
    """Wilcoxon's signed ranks, which asks nothing of the differences' distribution but symmetry.

    The interval is Student's, for comparison; equal scores are left out, as Wilcoxon does.

    >>> wilcoxon_test([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).p
    1.0
    """
    difference = _differences(a, b)
    interval = mean_interval(difference, level=level)
    statistic, p = 0.0, 1.0
    if difference.any():
        found = stats.wilcoxon(difference)
        statistic, p = float(found.statistic), float(found.pvalue)
    repeats = len(difference)
    return PairedTest("wilcoxon", repeats, interval.mean, interval.low, interval.high, statistic, p)


def mean_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """The mean of a few repeats, such as seeds, and where the true one lies.

    >>> mean_interval([1.0, 2.0, 3.0]).mean
    2.0
    """
    numbers = _checked(values)
    half = _quantile(len(numbers), level) * numbers.std(ddof=1) / np.sqrt(len(numbers))
    mean = float(numbers.mean())
    return Interval(mean, mean - float(half), mean + float(half), len(numbers))


def mean_over_seeds(scores_SR: ArrayLike) -> NDArray[np.float64]:
    """One score per repeat (R,) from scores of S seeds on the same repeats, (S, R).

    >>> mean_over_seeds([[0.2, 0.4], [0.4, 0.6]]).round(6).tolist()
    [0.3, 0.5]
    """
    scores = np.asarray(scores_SR, dtype=np.float64)
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(f"scores have shape {scores.shape}; give (seeds, repeats)")
    averaged: NDArray[np.float64] = scores.mean(0)
    return averaged


def adjusted_p(p_values: ArrayLike, correction: Correction = "holm") -> list[float]:
    """p-values of several tests, made larger so that the whole set errs as rarely as one would.

    >>> adjusted_p([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    check_choice("correction", correction, get_args(Correction))
    p = np.atleast_1d(np.asarray(p_values, dtype=np.float64))
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError("p-values lie between 0 and 1; give a list of them")
    if correction == "none" or len(p) == 0:
        return [float(value) for value in p]
    if correction == "bonferroni":
        return [float(value) for value in np.minimum(1, p * len(p))]
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    adjusted = np.empty_like(p)
    adjusted[order] = stepped
    return [float(value) for value in adjusted]


@dataclass(frozen=True)
class Comparison:
    """A paired test of one method against another, and its p corrected for all that were made with it."""

    method: str
    against: str
    test: PairedTest
    adjusted_p: float
    correction: Correction


def compare_with(
    method: str,
    scores: Mapping[str, Sequence[float]],
    *,
    test: Test = "paired-t",
    correction: Correction = "holm",
    tested: float | None = None,
    trained: float | None = None,
) -> list[Comparison]:
    """Test one method against every other on the same repeats. For corrected-t give the sizes of a split.

    >>> scores = {"OJ": [0.6, 0.7, 0.8], "OE": [0.5, 0.55, 0.68], "AE": [0.1, 0.1, 0.2]}
    >>> [(row.against, row.adjusted_p < 0.05) for row in compare_with("OJ", scores)]
    [('OE', True), ('AE', True)]
    """
    check_choice("method", method, tuple(scores))
    check_choice("test", test, get_args(Test))
    others = [name for name in scores if name != method]
    if not others:
        raise ValueError(f"{method} is the only method; give another to compare it with")
    found = []
    for other in others:
        pair = (scores[method], scores[other])
        match test:
            case "paired-t":
                found.append(paired_t_test(*pair))
            case "corrected-t":
                if tested is None or trained is None:
                    raise ValueError(
                        "corrected-t needs tested and trained, the sizes of a split's sides"
                    )
                found.append(corrected_t_test(*pair, tested=tested, trained=trained))
            case "wilcoxon":
                found.append(wilcoxon_test(*pair))
    adjusted = adjusted_p([one.p for one in found], correction)
    return [
        Comparison(method, other, one, p, correction)
        for other, one, p in zip(others, found, adjusted, strict=True)
    ]


def _t_test(test: Test, a: ArrayLike, b: ArrayLike, overlap: float, level: float) -> PairedTest:
    difference = _differences(a, b)
    repeats, mean = len(difference), float(difference.mean())
    error = float(np.sqrt((1 / repeats + overlap) * difference.var(ddof=1)))
    half = _quantile(repeats, level) * error
    certain = float(np.copysign(np.inf, mean)) if mean else 0.0
    statistic = mean / error if error > 0 else certain  # equal differences leave no doubt
    p = float(2 * stats.t.sf(abs(statistic), repeats - 1))
    return PairedTest(test, repeats, mean, mean - half, mean + half, statistic, p)


def _quantile(repeats: int, level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; give a number between 0 and 1, such as 0.95")
    return float(stats.t.ppf((1 + level) / 2, repeats - 1))


def _differences(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    ours, theirs = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(
            f"the scores have shapes {ours.shape} and {theirs.shape}; "
            "a paired test needs both methods on the same repeats"
        )
    return _checked(ours - theirs)


def _checked(values: ArrayLike) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) < 2:
        raise ValueError(
            f"there are {numbers.size} repeats in shape {numbers.shape}; "
            "give a list of at least two, since one says nothing of the spread"
        )
    if not np.isfinite(numbers).all():
        raise ValueError("a score is NaN or infinite; compare finished runs only")
    return numbers
