"""A row of results: the one shape in which figures are kept, printed and drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from orbitset.evaluation.score import Score


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one method scored by one measure. What is not known is None."""

    method: str
    metric: str
    mean: float
    sd: float | None
    n: int
    repeated: str
    seeds: int = 1
    low: float | None = None
    """The 2.5th percentile over what was repeated"""
    high: float | None = None
    seeds_low: float | None = None
    """The lower bound of a 95 % interval of the mean over seeds"""
    seeds_high: float | None = None
    epoch: float | None = None
    """When training was stopped for it"""
    paper: float | None = None
    paper_sd: float | None = None
    paper_p: float | None = None
    p_corrected: float | None = None
    """Of a test of the reference method against this one"""
    test: str | None = None
    correction: str | None = None
    cut_down: str | None = None
    """In words, what makes it smaller than what it stands for"""
    unanswerable: int | None = None
    """Queries with nothing to find, which are not scored"""

    @staticmethod
    def of(method: str, metric: str, score: Score, *, unanswerable: int | None = None) -> "Row":
        low, high = score.interval or (None, None)
        return Row(
            method=method,
            metric=metric,
            mean=score.mean,
            sd=score.sd,
            n=score.n,
            repeated=score.repeated,
            low=low,
            high=high,
            epoch=score.epoch,
            unanswerable=unanswerable,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Row":
        """The row in results.json; raises KeyError or TypeError where it is damaged."""
        known = {field.name for field in fields(Row)}
        return Row(**{name: value for name, value in values.items() if name in known})


def has_same_cosine(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there are scores by cosine, too, and they print the same as Euclidean ones: codes on a sphere.

    >>> rows = [{"method": "OJ", "metric": name, "mean": 0.5} for name in ("auc", "auc_cosine")]
    >>> has_same_cosine(rows), has_same_cosine(rows[:1])
    (True, False)
    >>> has_same_cosine([rows[0], rows[1] | {"mean": 0.6}])
    False
    """
    means = {(row["method"], row["metric"]): f"{row['mean']:.3f}" for row in rows if row["mean"]}
    pairs = [
        (mean, means.get((method, metric.removesuffix("_cosine"))))
        for (method, metric), mean in means.items()
        if metric.endswith("_cosine")
    ]
    return bool(pairs) and all(cosine == euclidean for cosine, euclidean in pairs)
