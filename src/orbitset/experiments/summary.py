"""What the runs of a study show together, computed from their metrics alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orbitset.errors import RunError
from orbitset.experiments.computed import MEASURES
from orbitset.experiments.config import ExperimentConfig, ObservedExperiment, PairsConfig
from orbitset.experiments.observed import MEASURES as OBSERVED_MEASURES
from orbitset.experiments.scores import (
    Scores,
    check_scores,
    final_scores,
    joined,
    mean_curve,
    over_seeds,
    paired_tests,
    score_row,
    stopped_scores,
)
from orbitset.experiments.study import Line, Study
from orbitset.runs import Run

ABOUT_HALVES = (
    "Splits overlap and share one training per seed, so that the paired t-test is too sure of itself; how "
    "much another training would change, only the spread over seeds says. The corrected one widens its "
    "variance after Nadeau and Bengio, for halves; Wilcoxon's asks nothing of the distribution but symmetry."
)
ABOUT_SPLITS = (
    "Every split is trained anew, but where splits share images they are trained on, the paired t-test is "
    "too sure of itself. The corrected one widens its variance after Nadeau and Bengio, by the size of the "
    "part that is scored over that of the part that is trained on; Wilcoxon's asks nothing of the "
    "distribution but symmetry."
)
SWAPPED = "_swapped"
"""After a measure's name: the stopping time was chosen on the test side and scored on the validation side"""
_AGAINST = ("EX", "OT", "OE")
"""What the paper tests OJ against; p is corrected for these, whether or not all were trained"""
_PAIRS = (("OJ", "OE"), ("OJ", "EX"), ("OJ", "OT"), ("OT-STN", "OT"), ("ST-STN", "ST"))


def summarise(run: Run, study: Study) -> dict[str, Any]:
    """What results.json holds: of the seeds that are complete, and then marked as unfinished."""
    seeds = _complete_seeds(run, study)
    labels = [label for label in study.labels if _is_complete(run, study, label, seeds)]
    first = study.lines_of(study.labels[0])
    is_observed = isinstance(first[0].config, ObservedExperiment)
    measures = OBSERVED_MEASURES if is_observed else tuple(MEASURES.values())
    rows: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    for measure in measures:
        baselines = [Run(run / line.path(seeds[0])) for line in first]
        rows += _baselines(baselines, measure)
        for suffix in _suffixes(first):
            scores = {label: _scores(run, study, label, seeds, measure, suffix) for label in labels}
            found_tests = _tests(scores, _tested_share(first[0]))
            tests += [{"metric": measure + suffix, **test} for test in found_tests]
            pairs = over_seeds(scores, _PAIRS)
            differences += [{"metric": measure + suffix, **pair} for pair in pairs]
            rows += [
                score_row(
                    label,
                    measure + suffix,
                    found,
                    found_tests,
                    **_papers(study.lines_of(label)[0], measure, suffix),
                )
                for label, found in scores.items()
            ]
    mark = "; ".join(filter(None, [study.cut_down, _unfinished(run, study, seeds)])) or None
    return {
        "rows": [{**one, "cut_down": mark} for one in rows],
        "seeds": seeds,
        "tests": tests,
        "about_tests": ABOUT_SPLITS if is_observed else ABOUT_HALVES,
        "over_seeds": differences,
        "ratios": _ratios(run, study),
        "curves": _curves(run, study, seeds, measures),
        "seconds": _seconds(run, study),
        "environments": _environments(run, study),
    }


def _suffixes(lines: Sequence[Line]) -> tuple[str, ...]:
    """Where a split's sides are parts of the data of their own, both directions are scored."""
    evaluation = lines[0].config.evaluation
    return ("", SWAPPED) if isinstance(evaluation, PairsConfig) and evaluation.splits else ("",)


def _scores(
    run: Run, study: Study, label: str, seeds: Sequence[int], measure: str, suffix: str
) -> Scores:
    parts = []
    for line in study.lines_of(label):
        runs = [Run(run / line.path(seed)) for seed in seeds]
        splits = line.config.evaluation.splits
        if isinstance(line.config, ObservedExperiment) and not splits:
            parts.append(final_scores(runs, measure))
        else:
            least = 1 if isinstance(line.config, ObservedExperiment) else 2
            is_swapped = suffix == SWAPPED
            parts.append(stopped_scores(runs, measure, splits, least=least, is_swapped=is_swapped))
    return joined(parts)


def _tested_share(line: Line) -> float:
    """How large a split's test part is, over what it is independent of: halves, or parts of the data."""
    evaluation = line.config.evaluation
    if isinstance(evaluation, PairsConfig):
        return len(evaluation.test) / len(evaluation.train)
    return 1.0


def _curves(
    run: Run, study: Study, seeds: Sequence[int], measures: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """For each method its measures against epochs: from the lines that are there for it, else the table's."""
    curves = {}
    for label in study.labels:
        own = [line for line in study.lines if line.label == label and line.role == "curve"]
        runs = [
            Run(run / line.path(seed))
            for line in own or study.lines_of(label)
            for seed in (study.seeds_of(line) if own else seeds)
        ]
        done = [each for each in runs if each.has_results]
        if done:
            curves[label] = mean_curve(done, measures)
    return curves


def _complete_seeds(run: Run, study: Study) -> list[int]:
    """Those with which every method was trained; an error if there is none, or another's run."""
    methods = [line for line in study.lines if line.role == "method"]
    for line, seed in study.runs():
        study.check(line, seed, Run(run / line.path(seed)))
    complete = [
        seed
        for seed in study.seeds
        if all(Run(run / line.path(seed)).has_results for line in methods)
    ]
    if not complete:
        paths = [line.path(seed) for line, seed in study.runs()]
        missing = [path for path in paths if not Run(run / path).has_results]
        raise RunError(
            f"{run.path} is not finished: {len(missing)} of {len(paths)} runs are missing, "
            f"the first is {missing[0]}",
            hint=f"go on with it: {run.resume_command}",
        )
    return complete


def _is_complete(run: Run, study: Study, label: str, seeds: Sequence[int]) -> bool:
    lines = study.lines_of(label)
    return all(Run(run / line.path(seed)).has_results for line in lines for seed in seeds)


def _unfinished(run: Run, study: Study, seeds: list[int]) -> str | None:
    parts = []
    if len(seeds) < len(study.seeds):
        parts.append(f"{len(seeds)} of {len(study.seeds)} seeds")
    parts += [
        f"without {label}" for label in study.labels if not _is_complete(run, study, label, seeds)
    ]
    points = [line for line in study.lines if line.role == "point"]
    done = sum(Run(run / line.path(study.seeds[0])).has_results for line in points)
    if done < len(points):
        parts.append(f"{done} of {len(points)} points of the curve over weights")
    curves = [line for line in study.lines if line.role == "curve"]
    done = sum(Run(run / line.path(study.seeds[0])).has_results for line in curves)
    if done < len(curves):
        parts.append(f"{done} of {len(curves)} trainings for the curves")
    return f"unfinished: {'; '.join(parts)}" if parts else None


def _papers(line: Line, measure: str, suffix: str) -> dict[str, float | None]:
    paper = line.paper.get(measure, {}) if not suffix else {}
    return {"paper": paper.get("mean"), "paper_sd": paper.get("sd"), "paper_p": paper.get("p")}


def _tests(scores: Mapping[str, Scores], tested_share: float) -> list[dict[str, Any]]:
    """OJ against those that were scored on as many splits."""
    if "OJ" not in scores:
        return []
    splits = len(scores["OJ"].by_split)
    compared = {
        label: found
        for label, found in scores.items()
        if label in ("OJ", *_AGAINST) and len(found.by_split) == splits > 1
    }
    if len(compared) < 2:
        return []
    return paired_tests("OJ", compared, comparisons=len(_AGAINST), tested_share=tested_share)


def _baselines(runs: Sequence[Run], measure: str) -> list[dict[str, Any]]:
    """Raw pixels and the untrained encoder: nothing is stopped there, so they are scored on all test images.

    Where the data is split in several ways, the mean and s.d. over them.
    """
    found: dict[str, list[dict[str, Any]]] = {"pixels": [], "untrained": []}
    for number, run in enumerate(runs):
        name = run / "results.json"
        try:
            for row in run.read_json("results.json")["rows"]:
                if row["method"] in found and row["metric"] == measure:
                    check_scores([float(row["mean"])], name)
                    found[row["method"]].append(row)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{name} is damaged: {error!r}") from None
        if lost := [method for method, rows in found.items() if rows and len(rows) <= number]:
            raise RunError(f"{name} is damaged: it has no {measure} of {lost[0]}")
    return [_mean_row(rows) for rows in found.values() if rows]


def _mean_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    if len(rows) == 1:
        return rows[0]
    means = np.array([one["mean"] for one in rows])
    summary = {"mean": float(means.mean()), "sd": float(means.std(ddof=1))}
    return rows[0] | summary | {"n": len(rows), "repeated": "splits"}


def _ratios(run: Run, study: Study) -> list[dict[str, Any]]:
    found = []
    for line in study.lines:
        one = Run(run / line.path(study.seeds[0]))
        if line.role != "point" or not one.has_results:
            continue
        assert isinstance(line.config, ExperimentConfig)
        scores = stopped_scores([one], "accuracy", line.config.evaluation.splits)
        at = score_row(line.label, "accuracy", scores, [])
        loss = line.config.loss
        ratio = loss.rectify_weight / loss.discriminate_weight
        found.append({"ratio": ratio, **{name: at[name] for name in ("mean", "sd", "n")}})
    return found


def _seconds(run: Run, study: Study) -> dict[str, float]:
    """How long the trainings took, evaluations included, by line of the table."""
    seconds = dict.fromkeys((line.label for line in study.lines), 0.0)
    for line, seed in study.runs():
        for record in Run(run / line.path(seed)).records("timing.jsonl"):
            seconds[line.label] += float(record.get("elapsed_s", 0.0))
    return {label: round(total, 1) for label, total in seconds.items()}


def _kind(environment: Mapping[str, Any]) -> tuple[str, ...]:
    torch_version = environment.get("versions", {}).get("torch")
    return str(environment.get("commit")), str(environment.get("device")), str(torch_version)


def _environments(run: Run, study: Study) -> list[dict[str, Any]]:
    """Each combination of commit, device and torch that trained some of it, and how many runs."""
    found: dict[tuple[str, ...], int] = {}
    for line, seed in study.runs():
        each = Run(run / line.path(seed))
        if not each.has_results:
            continue
        environment = each.read_json("environment.json")
        try:
            parts = [environment, *environment.get("resumed", [])]
            for key in dict.fromkeys(map(_kind, parts)):
                found[key] = found.get(key, 0) + 1
        except (AttributeError, TypeError):
            raise RunError(f"{each / 'environment.json'} is damaged") from None
    names = ("commit", "device", "torch")
    return [{**dict(zip(names, key, strict=True)), "runs": count} for key, count in found.items()]
