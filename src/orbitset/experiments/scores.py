"""From the metrics of runs to the lines of a table: early-stopped scores, and whether one beats another.

The scores of a method are (seeds, splits); seeds are averaged within a split before testing, since they share
it. Splits overlap and share trainings, so that beside the paper's paired t-test stand the Nadeau-Bengio
correction, Wilcoxon's test and intervals over seeds. Where there is one split, seeds are the repeats.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

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
from orbitset.experiments.rows import row
from orbitset.runs import Run

_SAME_TIME = 1.1
"""Evaluations are of one time if their epochs differ by less: those of two splits need not be equal."""


@dataclass(frozen=True)
class Scores:
    """A measure on the test side of every split at the time chosen on the other side, for each seed."""

    score_SR: np.ndarray
    """(seeds, splits)"""
    epoch_SR: np.ndarray
    """When training was stopped for it"""
    repeated: Literal["splits", "seeds"] = "splits"
    """What a spread and a test are over"""

    @property
    def repeats(self) -> np.ndarray:
        return self.by_split if self.repeated == "splits" else self.by_seed

    @property
    def by_split(self) -> np.ndarray:
        return mean_over_seeds(self.score_SR)

    @property
    def by_seed(self) -> np.ndarray:
        means: np.ndarray = self.score_SR.mean(1)
        return means


def joined(parts: Sequence[Scores]) -> Scores:
    """The scores of one method on several splits of the data, each trained anew."""
    return Scores(
        np.concatenate([part.score_SR for part in parts], 1),
        np.concatenate([part.epoch_SR for part in parts], 1),
    )


def final_scores(runs: Sequence[Run], measure: str) -> Scores:
    """Scores at the end of training, where no part of the data was kept to choose a stopping time on."""
    scores, epochs = [], []
    for run in runs:
        try:
            end = run.records()[-1]
            scores.append([float(end[measure]["mean"])])
            epochs.append([float(end["epoch"])])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{run / 'metrics.jsonl'} is damaged: {error!r}") from None
        check_scores(scores[-1], run / "metrics.jsonl")
    return Scores(np.array(scores), np.array(epochs))


def check_scores(scores: Iterable[float], file: Path) -> None:
    """Every measure lies between 0 and 1, or is NaN where there was nothing to measure."""
    wrong = [score for score in scores if score < 0 or score > 1]
    if wrong:
        raise RunError(f"{file} is damaged: {wrong[0]:g} is no score, which lies between 0 and 1")


def stopped_scores(
    runs: Sequence[Run], measure: str, splits: int, *, least: int = 2, is_swapped: bool = False
) -> Scores:
    """Scores of one method's runs, a seed each. What there was before training is no stopping time.

    Swapped, the time is chosen on the test side and scored on the validation side.
    """
    scores, epochs = [], []
    chosen_on, scored_on = ("te", "va") if is_swapped else ("va", "te")
    for run in runs:
        records = [record for record in _records(run, measure, splits, least) if record["step"] > 0]
        try:
            sides = [
                torch.tensor([record[measure][side] for record in records], dtype=torch.float64)
                for side in (chosen_on, scored_on)
            ]
            stopped = stop_early(*sides)
            epochs.append([float(records[at]["epoch"]) for at in stopped.evaluation_S])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{run / 'metrics.jsonl'} is damaged: {error}") from None
        check_scores(torch.cat(sides).flatten().tolist(), run / "metrics.jsonl")
        scores.append(stopped.score_S)
    return Scores(np.array(scores), np.array(epochs))


def _records(run: Run, measure: str, splits: int, least: int) -> list[dict[str, Any]]:
    """The run's records; refuses what has no scores of so many splits or more, or lost some of them."""
    name, records = run / "metrics.jsonl", run.records()
    if not name.read_bytes().endswith(b"\n"):
        raise RunError(f"{name} is damaged: its last line is cut off")
    if not all(isinstance(record["step"], int) for record in records):
        raise RunError(f"{name} is damaged: a step is not a whole number")
    if any(not isinstance(record.get(measure), dict) for record in records):
        raise RunError(f"{name} has no {measure}, which needs images with labels")
    sides = [record[measure].get(side, []) for record in records for side in ("va", "te")]
    if splits < least or not any(sides):
        raise RunError(
            f"{run.path} was evaluated on {splits if splits < least else 0} splits; "
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
    """A line of the table: mean and s.d. over repeats, interval over seeds, the paper's test against it."""
    repeats = scores.repeats
    summary = {
        "mean": float(repeats.mean()),
        "sd": float(repeats.std(ddof=1)) if len(repeats) > 1 else None,
        "n": len(repeats),
        "repeated": scores.repeated,
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
    tested_share: float = 1.0,
) -> list[dict[str, Any]]:
    """The reference against every other, by each test. p is corrected for so many comparisons: those made
    here, or those that belong together elsewhere, whether or not all were made. `tested_share` is the size of
    a split's test part over that of the part beside it, 1 for halves; seeds share nothing, and need no
    correction for that."""
    repeats = {label: of_label.repeats.tolist() for label, of_label in scores.items()}
    repeated = scores[reference].repeated
    tests: tuple[Test, ...] = get_args(Test)
    rows = []
    for test in tests if repeated == "splits" else [t for t in tests if t != "corrected-t"]:
        found = compare_with(
            reference,
            repeats,
            test=test,
            correction="none",
            tested=tested_share,
            trained=1,
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
                    "repeated": repeated,
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


def mean_curve(
    runs: Sequence[Run], measures: Sequence[str] = ("accuracy",)
) -> list[dict[str, Any]]:
    """Epoch and measures at every evaluation, averaged over n runs; the s.d. is the mean of those over draws
    or, where a run has none of its own, over the runs."""
    curve = []
    counts = {run: len(run.records()) for run in runs}
    most = max(counts.values())
    if short := [f"{run / 'metrics.jsonl'} has {num}" for run, num in counts.items() if num < most]:
        raise RunError(
            f"evaluations are missing, or some are there twice: {', '.join(short)}, others have {most}"
        )
    try:
        for records in zip(*(run.records() for run in runs), strict=True):
            epochs = [float(record["epoch"]) for record in records]
            if max(epochs) > _SAME_TIME * min(epochs):
                raise ValueError(f"{min(epochs):g} and {max(epochs):g}")
            point: dict[str, Any] = {"epoch": float(np.mean(epochs))}
            for measure in measures:
                means = [record[measure]["mean"] for record in records]
                spreads = [record[measure]["sd"] for record in records]
                over_runs = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
                sd = over_runs if None in spreads else float(np.mean(spreads))
                point[measure] = {"mean": float(np.mean(means)), "sd": sd, "n": len(means)}
            curve.append(point)
    except (KeyError, TypeError, ValueError) as error:
        names = ", ".join(str(run / "metrics.jsonl") for run in runs)
        raise RunError(
            f"{names} are no seeds of one curve: epochs differ or are damaged, {error}"
        ) from None
    return curve
