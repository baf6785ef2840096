"""Is one method better than another? Paired tests over repeats, corrected for how many were made.

Scores are one number per repeat, a split, a draw or a seed, on the same repeats for both methods. Where every
split was scored with several seeds, average over the seeds first: seeds of one split are not repeats of the
experiment. Intervals are 95 % confidence intervals by Student's t.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orbitset.errors import check_choice

Test = Literal["paired-t", "corrected-t", "wilcoxon"]
Correction = Literal["holm", "bonferroni", "none"]
_LEVEL = 0.95


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
    """A mean with its confidence interval, and over how many values."""

    mean: float
    low: float
    high: float
    repeats: int


def paired_t_test(a: ArrayLike, b: ArrayLike, *, test_share: float | None = None) -> PairedTest:
    """Student's t-test on the differences, as in the paper, which takes the repeats for independent.

    With `test_share` it is the corrected resampled t-test (Nadeau and Bengio, 2003) for splits that overlap:
    the size of a split's test part over that of its other part. The variance of the mean is then
    (1 / repeats + test_share) times that of the differences.

    >>> scores = ([0.61, 0.63, 0.64], [0.50, 0.53, 0.52])
    >>> paired_t_test(*scores).p < 0.01 < paired_t_test(*scores, test_share=1).p
    True
    """
    from scipy import stats  # imported late: it takes a third of a second to load

    if test_share is not None and not test_share >= 0:
        raise ValueError(f"test_share is {test_share}; give a number of at least 0")
    difference = _differences(a, b)
    repeats, mean = len(difference), float(difference.mean())
    error = float(np.sqrt((1 / repeats + (test_share or 0.0)) * difference.var(ddof=1)))
    half = _quantile(repeats) * error
    certain = float(np.copysign(np.inf, mean)) if mean else 0.0
    statistic = mean / error if error > 0 else certain  # equal differences leave no doubt
    p = float(2 * stats.t.sf(abs(statistic), repeats - 1))
    test: Test = "paired-t" if test_share is None else "corrected-t"
    return PairedTest(test, repeats, mean, mean - half, mean + half, statistic, p)


def wilcoxon_test(a: ArrayLike, b: ArrayLike) -> PairedTest:
    """Wilcoxon's signed-rank test, which assumes only that the differences are distributed symmetrically.

    The interval is Student's, for comparison. Equal scores are left out, as Wilcoxon does.

    >>> wilcoxon_test([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).p
    1.0
    """
    difference = _differences(a, b)
    interval = mean_interval(difference)
    statistic, p = 0.0, 1.0
    if difference.any():
        from scipy import stats

        result = stats.wilcoxon(difference)
        statistic, p = float(result.statistic), float(result.pvalue)
    return PairedTest(
        "wilcoxon", len(difference), interval.mean, interval.low, interval.high, statistic, p
    )


def mean_interval(values: ArrayLike) -> Interval:
    """The mean of a few repeats, such as seeds, and its confidence interval.

    >>> mean_interval([1.0, 2.0, 3.0]).mean
    2.0
    """
    numbers = _checked(values)
    half = float(_quantile(len(numbers)) * numbers.std(ddof=1) / np.sqrt(len(numbers)))
    mean = float(numbers.mean())
    return Interval(mean, mean - half, mean + half, len(numbers))


def adjusted_p(p_values: ArrayLike, correction: Correction = "holm") -> list[float]:
    """p-values of several tests, corrected so that the family-wise error rate is that of one test.

    By hand, since statsmodels would be a dependency for these few lines.

    >>> adjusted_p([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    check_choice("correction", correction, get_args(Correction))
    p = np.atleast_1d(np.array(p_values, dtype=np.float64))
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError("p-values lie between 0 and 1; give a list of them")
    if correction == "bonferroni":
        p = np.minimum(1, p * len(p))
    elif correction == "holm":
        order = np.argsort(p, kind="stable")
        p[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in p]


def compare_with(
    method: str,
    scores: Mapping[str, Sequence[float]],
    *,
    test: Test = "paired-t",
    test_share: float = 1.0,
) -> dict[str, PairedTest]:
    """Test one method against every other on the same repeats.

    `test_share` is that of `paired_t_test`, and is used by corrected-t alone.

    >>> scores = {"OJ": [0.6, 0.7, 0.8], "OE": [0.5, 0.55, 0.68], "AE": [0.1, 0.1, 0.2]}
    >>> {name: result.p < 0.05 for name, result in compare_with("OJ", scores).items()}
    {'OE': True, 'AE': True}
    """
    check_choice("method", method, tuple(scores))
    check_choice("test", test, get_args(Test))
    others = [name for name in scores if name != method]
    if not others:
        raise ValueError(f"{method} is the only method; give another to compare it with")
    share = test_share if test == "corrected-t" else None
    return {
        other: wilcoxon_test(scores[method], scores[other])
        if test == "wilcoxon"
        else paired_t_test(scores[method], scores[other], test_share=share)
        for other in others
    }


def _quantile(repeats: int) -> float:
    from scipy import stats

    return float(stats.t.ppf((1 + _LEVEL) / 2, repeats - 1))


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
            "give a list of at least two, since one does not show the spread"
        )
    if not np.isfinite(numbers).all():
        raise ValueError("a score is NaN or infinite; compare finished runs only")
    return numbers
