"""From the metrics of runs to the lines of a table: early-stopped scores, and whether one beats another.

The scores of a method are (seeds, splits); seeds are averaged within a split before testing, since they share
it. Splits overlap and share trainings, so that beside the paper's paired t-test stand the Nadeau-Bengio
correction, Wilcoxon's test and intervals over seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import torch

from orbitset.errors import RunError
from orbitset.evaluation.early_stopping import stop_early
from orbitset.evaluation.statistics import (
    Correction,
    Test,
    adjusted_p,
    compare_with,
    mean_interval,
    mean_over_seeds,
)
from orbitset.experiments.single import row
from orbitset.runs import Run


@dataclass(frozen=True)
class Scores:
    """A measure on the test side of every split at the time chosen on the other side, for each seed."""

    score_SR: np.ndarray
    """(seeds, splits)"""
    epoch_SR: np.ndarray
    """When training was stopped for it"""

    @property
    def by_split(self) -> np.ndarray:
        return mean_over_seeds(self.score_SR)

    @property
    def by_seed(self) -> np.ndarray:
        means: np.ndarray = self.score_SR.mean(1)
        return means


def stopped_scores(runs: Sequence[Run], measure: str, splits: int) -> Scores:
    """Scores of one method's runs, a seed each. What there was before training is no stopping time."""
    scores, epochs = [], []
    for run in runs:
        records = [record for record in _records(run, measure, splits) if record["step"] > 0]
        try:
            sides = [
                torch.tensor([record[measure][side] for record in records], dtype=torch.float64)
                for side in ("va", "te")
            ]
            stopped = stop_early(*sides)
            epochs.append([float(records[at]["epoch"]) for at in stopped.evaluation_S])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{run / 'metrics.jsonl'} is damaged: {error}") from None
        scores.append(stopped.score_S)
    return Scores(np.array(scores), np.array(epochs))


def _records(run: Run, measure: str, splits: int) -> list[dict[str, Any]]:
    """The run's records; refuses what has no scores of two splits or more, or lost some of them."""
    name, records = run / "metrics.jsonl", run.records()
    if not name.read_bytes().endswith(b"\n"):
        raise RunError(f"{name} is damaged: its last line is cut off")
    if not all(isinstance(record["step"], int) for record in records):
        raise RunError(f"{name} is damaged: a step is not a whole number")
    if any(not isinstance(record.get(measure), dict) for record in records):
        raise RunError(f"{name} has no {measure}, which needs images with labels")
    sides = [record[measure].get(side, []) for record in records for side in ("va", "te")]
    if splits < 2 or not any(sides):
        raise RunError(
            f"{run.path} was evaluated on {splits if splits < 2 else 0} splits; "
            "a test of significance needs at least two",
            hint="train it with --set evaluation.splits=10",
            is_usage=True,
        )
    if any(not isinstance(side, list) or len(side) != splits for side in sides):
        raise RunError(f"{name} is damaged: it does not have the scores of {splits} splits")
    return records


def score_row(
    label: str, measure: str, scores: Scores, tests: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """A line of the table: mean and s.d. over splits, interval over seeds, the paper's test against it."""
    summary = {
        "mean": float(scores.by_split.mean()),
        "sd": float(scores.by_split.std(ddof=1)),
        "n": len(scores.by_split),
        "repeated": "splits",
    }
    found: dict[str, Any] = {"epoch": float(np.median(scores.epoch_SR))}
    if len(scores.by_seed) > 1:
        interval = mean_interval(scores.by_seed)
        found |= {"seeds_low": interval.low, "seeds_high": interval.high}
    for test in tests:
        if (test["against"], test["test"]) == (label, "paired-t"):
            found |= {name: test[name] for name in ("p_corrected", "test", "correction")}
    return row(label, measure, summary, seeds=len(scores.by_seed), **found, **more)


def paired_tests(
    reference: str,
    scores: Mapping[str, Scores],
    *,
    correction: Correction = "bonferroni",
    comparisons: int | None = None,
) -> list[dict[str, Any]]:
    """The reference against every other, by each test. p is corrected for so many comparisons: those made
    here, or those that belong together elsewhere, whether or not all were made."""
    by_split = {label: of_label.by_split.tolist() for label, of_label in scores.items()}
    rows = []
    for test in get_args(Test):
        found = compare_with(
            reference,
            by_split,
            test=test,
            correction="none",
            tested=1,
            trained=1,  # halves
        )
        missing = [1.0] * max(0, (comparisons or 0) - len(found))
        p = [one.test.p for one in found] + missing
        corrected = {name: adjusted_p(p, name) for name in ("bonferroni", "holm", "none")}
        for number, one in enumerate(found):
            rows.append(
                {
                    "method": reference,
                    "against": one.against,
                    **asdict(one.test),
                    "p_corrected": corrected[correction][number],
                    "p_bonferroni": corrected["bonferroni"][number],
                    "p_holm": corrected["holm"][number],
                    "correction": correction
                    if correction == "none"
                    else f"{correction} x {len(p)}",
                }
            )
    return rows


def over_seeds(
    scores: Mapping[str, Scores], pairs: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Differences of methods, seed by seed: what another training would change."""
    found = []
    for method, against in pairs:
        if method in scores and against in scores and len(scores[method].by_seed) > 1:
            interval = mean_interval(scores[method].by_seed - scores[against].by_seed)
            found.append({"method": method, "against": against, **asdict(interval)})
    return found


def mean_curve(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Epoch and accuracy at every evaluation: the mean over seeds of the means and spreads over draws."""
    curve = []
    try:
        for records in zip(*(run.records() for run in runs), strict=True):
            (epoch,) = {record["epoch"] for record in records}
            mean = float(np.mean([record["accuracy"]["mean"] for record in records]))
            sd = float(np.mean([record["accuracy"]["sd"] or 0.0 for record in records]))
            curve.append({"epoch": epoch, "accuracy": {"mean": mean, "sd": sd}})
    except (KeyError, TypeError, ValueError) as error:
        names = ", ".join(str(run / "metrics.jsonl") for run in runs)
        raise RunError(
            f"{names} are no seeds of one curve: epochs differ or are damaged, {error}"
        ) from None
    return curve
