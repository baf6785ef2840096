"""What the runs of a study show together: early-stopped scores, tests of significance, intervals over seeds.

Everything is computed from the runs' metrics. The scores of one method are (seeds, splits); seeds are
averaged within a split before testing, since they share the split. Splits overlap and share trainings, so
that beside the paper's paired t-test stand the Nadeau-Bengio correction, Wilcoxon's test and differences
over seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from orbitset.errors import RunError
from orbitset.evaluation.early_stopping import stop_early
from orbitset.evaluation.statistics import (
    Test,
    adjusted_p,
    compare_with,
    mean_interval,
    mean_over_seeds,
)
from orbitset.experiments.single import MEASURES, row
from orbitset.experiments.study import Line, Study, finished, stored_study
from orbitset.runs import Run

_AGAINST = ("EX", "OT", "OE")
"""What the paper tests OJ against"""
_PAIRS = (("OJ", "OE"), ("OJ", "EX"), ("OJ", "OT"), ("OT-STN", "OT"), ("ST-STN", "ST"))
_TESTS: tuple[Test, ...] = ("paired-t", "corrected-t", "wilcoxon")


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


def stopped_scores(runs: Sequence[Run], measure: str) -> Scores:
    """Scores of one method's runs, a seed each. What there was before training is no stopping time."""
    scores, epochs = [], []
    for run in runs:
        records = [record for record in run.records() if record["step"] > 0]
        try:
            sides = [
                torch.tensor([record[measure][side] for record in records], dtype=torch.float64)
                for side in ("va", "te")
            ]
            stopped = stop_early(*sides)
            epochs.append([float(records[at]["epoch"]) for at in stopped.evaluation_S])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{run / 'metrics.jsonl'} does not hold {measure} by split: {error}"
            ) from None
        scores.append(stopped.score_S)
    if len({len(score) for score in scores}) > 1:
        raise RunError(f"the runs of {runs[0].path.parent} have different numbers of splits")
    return Scores(np.array(scores), np.array(epochs))


def write_summary(run: Run) -> dict[str, Any]:
    """Compute what a study's runs show and keep it as results.json and as tables."""
    results = summarise(run, stored_study(run))
    run.write_json("results.json", results)
    return results


def summarise(run: Run, study: Study) -> dict[str, Any]:
    """What results.json holds."""
    finished(run, [line.path(seed) for line, seed in study.runs()])
    lines = {line.label: line for line in study.lines if line.ratio is None}
    runs = {
        label: [Run(run / line.path(seed)) for seed in study.seeds] for label, line in lines.items()
    }
    rows: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    over_seeds: list[dict[str, Any]] = []
    for measure in MEASURES.values():
        scores = {label: stopped_scores(found, measure) for label, found in runs.items()}
        found_tests = _tests(scores)
        tests += [{"metric": measure, **test} for test in found_tests]
        over_seeds += [{"metric": measure, **pair} for pair in _over_seeds(scores)]
        rows += _baselines(next(iter(runs.values()))[0], measure)
        rows += [_row(lines[label], measure, found, found_tests) for label, found in scores.items()]
    if study.cut_down:
        rows = [{**one, "cut_down": study.cut_down} for one in rows]
    return {
        "rows": rows,
        "tests": tests,
        "over_seeds": over_seeds,
        "ratios": _ratios(run, study),
        "seconds": _seconds(run, study),
    }


def _row(
    line: Line, measure: str, scores: Scores, tests: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    by_split = scores.by_split
    summary = {
        "mean": float(by_split.mean()),
        "sd": float(by_split.std(ddof=1)) if len(by_split) > 1 else None,
        "n": len(by_split),
        "repeated": "splits",
    }
    p = [t["p_bonferroni"] for t in tests if t["against"] == line.label and t["test"] == "paired-t"]
    more: dict[str, Any] = {"epoch": float(np.median(scores.epoch_SR))}
    if len(scores.by_seed) > 1:
        interval = mean_interval(scores.by_seed)
        more |= {"low": interval.low, "high": interval.high}
    return row(
        line.label,
        measure,
        summary,
        **more,
        seeds=len(scores.by_seed),
        paper=line.paper.get(measure),
        p_corrected=p[0] if p else None,
    )


def _tests(scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """OJ against what the paper tests it against; p is corrected for these comparisons."""
    compared = {label: found for label, found in scores.items() if label in ("OJ", *_AGAINST)}
    if "OJ" not in compared or len(compared) < 2 or len(compared["OJ"].by_split) < 2:
        return []
    by_split = {label: found.by_split.tolist() for label, found in compared.items()}
    rows = []
    for test in _TESTS:
        found = compare_with("OJ", by_split, test=test, correction="holm")
        bonferroni = adjusted_p([one.test.p for one in found], "bonferroni")
        for one, p in zip(found, bonferroni, strict=True):
            rows.append(
                {
                    "method": "OJ",
                    "against": one.against,
                    **asdict(one.test),
                    "p_bonferroni": p,
                    "p_holm": one.adjusted_p,
                }
            )
    return rows


def _over_seeds(scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Differences of methods, seed by seed: what another training would change."""
    found = []
    for method, against in _PAIRS:
        if method in scores and against in scores and len(scores[method].by_seed) > 1:
            interval = mean_interval(scores[method].by_seed - scores[against].by_seed)
            found.append({"method": method, "against": against, **asdict(interval)})
    return found


def _baselines(run: Run, measure: str) -> list[dict[str, Any]]:
    """Raw pixels and the untrained encoder: nothing is stopped there, so they are scored on all images."""
    rows: list[dict[str, Any]] = run.read_json("results.json")["rows"]
    names = ("pixels", "untrained")
    return [one for one in rows if one["method"] in names and one["metric"] == measure]


def _ratios(run: Run, study: Study) -> list[dict[str, Any]]:
    points: list[Line] = [line for line in study.lines if line.ratio is not None]
    found = []
    for line in points:
        one = Run(run / line.path(study.seeds[0]))
        score = stopped_scores([one], "accuracy").score_SR[0]
        sd = float(score.std(ddof=1)) if len(score) > 1 else None
        found.append({"ratio": line.ratio, "mean": float(score.mean()), "sd": sd, "n": len(score)})
    return found


def _seconds(run: Run, study: Study) -> dict[str, float]:
    """How long the trainings took, evaluations included, by line of the table."""
    return {
        line.label: round(
            sum(
                record["elapsed_s"]
                for seed in study.seeds_of(line)
                for record in Run(run / line.path(seed)).records("timing.jsonl")
            ),
            1,
        )
        for line in study.lines
    }
