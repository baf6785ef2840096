"""What the runs of a study show together, computed from their metrics alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orbitset.errors import RunError
from orbitset.recipes.methods import is_outside
from orbitset.results.curves import mean_curve
from orbitset.results.recorded import RecordedStudy, Training
from orbitset.results.row import Row
from orbitset.results.significance import over_seeds, planned_tests, score_row
from orbitset.results.stopping import (
    about,
    check_scores,
    joined,
    measures_of,
    scores_of,
    stopped_scores,
)
from orbitset.run_folder import Run

SWAPPED = "_swapped"
"""After a measure's name: the stopping time was chosen on the test side and scored on the validation side"""
_PAIRS = (("OJ", "OE"), ("OJ", "EX"), ("OJ", "OT"), ("OT-STN", "OT"), ("ST-STN", "ST"))
"""Methods whose difference is of interest to the paper"""


def summarise(recorded: RecordedStudy) -> dict[str, Any]:
    """What results.json holds: of the seeds that are complete, and then marked as unfinished."""
    study, seeds = recorded.study, _complete_seeds(recorded)
    labels = [label for label in study.labels if recorded.has_all(study.lines_of(label), seeds)]
    first = study.lines_of(study.labels[0])
    baselines = recorded.finished(first, seeds[:1])
    protocol = about(baselines[0])
    measures = measures_of(baselines[0])
    rows: list[Row] = []
    tests: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    reasons: list[str | None] = []
    for measure in measures:
        rows += _baselines(baselines, measure, is_bounded=measure in protocol.measures)
        for suffix in ("", SWAPPED) if protocol.has_swapped_sides else ("",):
            name, is_swapped = measure + suffix, bool(suffix)
            scores = {
                label: joined(
                    [
                        scores_of(recorded.finished([line], seeds), measure, is_swapped=is_swapped)
                        for line in study.lines_of(label)
                    ]
                )
                for label in labels
            }
            new_tests, reason = planned_tests(scores, protocol.tested_share or 1.0)
            reasons.append(reason)
            tests += [{"metric": name, **test} for test in new_tests]
            pairs = [*_PAIRS, *((label, "OJ") for label in labels if is_outside(label))]
            differences += [{"metric": name, **pair} for pair in over_seeds(scores, pairs)]
            for label, scored in scores.items():
                paper = {} if suffix else study.lines_of(label)[0].paper.get(measure, {})
                row = score_row(label, name, scored, new_tests)
                mean, sd, p = (paper.get(number) for number in ("mean", "sd", "p"))
                rows.append(replace(row, paper=mean, paper_sd=sd, paper_p=p))
    mark = "; ".join(filter(None, [study.cut_down, _unfinished(recorded, seeds)])) or None
    return {
        "rows": [replace(row, cut_down=mark).to_json() for row in rows],
        "protocol": {"name": first[0].config.protocol, **protocol.to_json()},
        "seeds": seeds,
        "tests": tests,
        "about_tests": protocol.about_study if tests else reasons[0],
        "over_seeds": differences,
        "ratios": _ratios(recorded),
        "curves": _curves(recorded, seeds, measures),
        "seconds": _seconds(recorded),
        "environments": _environments(recorded),
    }


def _curves(
    recorded: RecordedStudy, seeds: Sequence[int], measures: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """For each method its measures against epochs: from the lines that are there for it, else the table's."""
    curves, study = {}, recorded.study
    for label in study.labels:
        own = [line for line in study.lines if line.label == label and line.role == "curve"]
        done = recorded.finished(own or study.lines_of(label), study.seeds[:1] if own else seeds)
        if done:
            curves[label] = mean_curve(done, measures)
    return curves


def _complete_seeds(recorded: RecordedStudy) -> list[int]:
    """Those with which every method was trained; an error if there is none."""
    study = recorded.study
    methods = [line for line in study.lines if line.role == "method"]
    complete = [seed for seed in study.seeds if recorded.has_all(methods, [seed])]
    if not complete:
        paths = [line.path(seed) for line, seed in study.runs()]
        missing = [path for path in paths if path not in recorded.trainings]
        raise RunError(
            f"{recorded.path} is not finished: {len(missing)} of {len(paths)} runs are missing, "
            f"the first is {missing[0]}",
            hint=f"go on with it: {Run(recorded.path).resume_command}",
        )
    return complete


def _unfinished(recorded: RecordedStudy, seeds: list[int]) -> str | None:
    """In words, what is missing."""
    study, parts = recorded.study, []
    if len(seeds) < len(study.seeds):
        parts.append(f"{len(seeds)} of {len(study.seeds)} seeds")
    parts += [
        f"without {label}"
        for label in study.labels
        if not recorded.has_all(study.lines_of(label), seeds)
    ]
    for role, what in (
        ("point", "points of the curve over weights"),
        ("curve", "trainings for the curves"),
    ):
        lines = [line for line in study.lines if line.role == role]
        done = len(recorded.finished(lines, study.seeds[:1]))
        if done < len(lines):
            parts.append(f"{done} of {len(lines)} {what}")
    return f"unfinished: {'; '.join(parts)}" if parts else None


def _baselines(runs: Sequence[Training], measure: str, *, is_bounded: bool) -> list[Row]:
    """Raw pixels and the untrained encoder: nothing is stopped there, so they are scored on all test images.

    Where the data is split in several ways, the mean and s.d. over them.
    """
    names = ("pixels", "untrained", "begun with", "frozen")
    rows: dict[str, list[Row]] = {name: [] for name in names}
    for number, run in enumerate(runs):
        name = run / "results.json"
        try:
            for row in map(Row.from_json, run.results["rows"]):
                if row.method in rows and row.metric == measure:
                    if is_bounded:
                        check_scores([float(row.mean)], name)
                    rows[row.method].append(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{name} is damaged: {error!r}") from None
        if lost := [method for method, of in rows.items() if of and len(of) <= number]:
            raise RunError(f"{name} is damaged: it has no {measure} of {lost[0]}")
    return [_mean_row(of_method) for of_method in rows.values() if of_method]


def _mean_row(rows: list[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    means = np.array([row.mean for row in rows])
    mean, sd = float(means.mean()), float(means.std(ddof=1))
    return replace(rows[0], mean=mean, sd=sd, n=len(rows), repeated="splits")


def _ratios(recorded: RecordedStudy) -> list[dict[str, Any]]:
    """The points of the curve over the weights of the two terms."""
    points = []
    for line in recorded.study.lines:
        done = recorded.finished([line], recorded.study.seeds[:1])
        if line.role != "point" or not done:
            continue
        scores = stopped_scores(done, "accuracy", line.config.evaluation.splits)
        row = score_row(line.label, "accuracy", scores)
        loss = line.config.loss
        ratio = loss.rectify_weight / loss.discriminate_weight
        points.append({"ratio": ratio, "mean": row.mean, "sd": row.sd, "n": row.n})
    return points


def _seconds(recorded: RecordedStudy) -> dict[str, float]:
    """How long the trainings took, evaluations included, by line of the table."""
    seconds = dict.fromkeys((line.label for line in recorded.study.lines), 0.0)
    for line, seed in recorded.study.runs():
        for training in recorded.finished([line], [seed]):
            for record in training.times:
                seconds[line.label] += float(record.get("elapsed_s", 0.0))
    return {label: round(total, 1) for label, total in seconds.items()}


def _environments(recorded: RecordedStudy) -> list[dict[str, Any]]:
    """Each combination of commit, device and torch that trained some of it, and how many runs."""
    counts: Counter[tuple[str, ...]] = Counter()
    for training in recorded.trainings.values():
        environment = training.environment
        try:
            counts.update(
                dict.fromkeys(map(_kind, [environment, *environment.get("resumed", [])]), 1)
            )
        except (AttributeError, TypeError):
            raise RunError(f"{training / 'environment.json'} is damaged") from None
    names = ("commit", "device", "torch")
    return [{**dict(zip(names, kind, strict=True)), "runs": n} for kind, n in counts.items()]


def _kind(environment: Mapping[str, Any]) -> tuple[str, ...]:
    torch_version = environment.get("versions", {}).get("torch")
    return str(environment.get("commit")), str(environment.get("device")), str(torch_version)
