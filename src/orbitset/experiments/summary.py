"""What the runs of a study show together, computed from their metrics alone."""

from collections.abc import Mapping
from typing import Any

from orbitset.errors import RunError
from orbitset.experiments.scores import (
    Scores,
    mean_curve,
    over_seeds,
    paired_tests,
    score_row,
    stopped_scores,
)
from orbitset.experiments.single import MEASURES
from orbitset.experiments.study import Line, Study
from orbitset.runs import Run

_AGAINST = ("EX", "OT", "OE")
"""What the paper tests OJ against; p is corrected for these, whether or not all were trained"""
_PAIRS = (("OJ", "OE"), ("OJ", "EX"), ("OJ", "OT"), ("OT-STN", "OT"), ("ST-STN", "ST"))


def summarise(run: Run, study: Study) -> dict[str, Any]:
    """What results.json holds: of the seeds that are complete, and then marked as unfinished."""
    seeds = _complete_seeds(run, study)
    lines = {line.label: line for line in study.lines if line.role != "point"}
    runs = {label: [Run(run / line.path(seed)) for seed in seeds] for label, line in lines.items()}
    rows: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    for measure in MEASURES.values():
        scores = {
            label: stopped_scores(found, measure, lines[label].config.evaluation.splits)
            for label, found in runs.items()
        }
        found_tests = _tests(scores)
        tests += [{"metric": measure, **test} for test in found_tests]
        differences += [{"metric": measure, **pair} for pair in over_seeds(scores, _PAIRS)]
        rows += _baselines(next(iter(runs.values()))[0], measure)
        rows += [
            score_row(label, measure, found, found_tests, **_papers(lines[label], measure))
            for label, found in scores.items()
        ]
    mark = "; ".join(filter(None, [study.cut_down, _unfinished(run, study, seeds)])) or None
    return {
        "rows": [{**one, "cut_down": mark} for one in rows],
        "seeds": seeds,
        "tests": tests,
        "over_seeds": differences,
        "ratios": _ratios(run, study),
        "curves": {label: mean_curve(found) for label, found in runs.items()},
        "seconds": _seconds(run, study),
        "environments": _environments(run, study),
    }


def _complete_seeds(run: Run, study: Study) -> list[int]:
    """Those with which every line of the table was trained; an error if there is none, or another's run."""
    table = [line for line in study.lines if line.role != "point"]
    for line, seed in study.runs():
        study.check(line, seed, Run(run / line.path(seed)))
    complete = [
        seed
        for seed in study.seeds
        if all(Run(run / line.path(seed)).has_results for line in table)
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


def _unfinished(run: Run, study: Study, seeds: list[int]) -> str | None:
    parts = []
    if len(seeds) < len(study.seeds):
        parts.append(f"{len(seeds)} of {len(study.seeds)} seeds")
    points = [line for line in study.lines if line.role == "point"]
    done = sum(Run(run / line.path(study.seeds[0])).has_results for line in points)
    if done < len(points):
        parts.append(f"{done} of {len(points)} points of the curve over weights")
    return f"unfinished: {', '.join(parts)}" if parts else None


def _papers(line: Line, measure: str) -> dict[str, float | None]:
    paper = line.paper.get(measure, {})
    return {"paper": paper.get("mean"), "paper_sd": paper.get("sd"), "paper_p": paper.get("p")}


def _tests(scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    compared = {label: found for label, found in scores.items() if label in ("OJ", *_AGAINST)}
    if "OJ" not in compared or len(compared) < 2:
        return []
    return paired_tests("OJ", compared, comparisons=len(_AGAINST))


def _baselines(run: Run, measure: str) -> list[dict[str, Any]]:
    """Raw pixels and the untrained encoder: nothing is stopped there, so they are scored on all images."""
    try:
        rows: list[dict[str, Any]] = run.read_json("results.json")["rows"]
        names = ("pixels", "untrained")
        return [one for one in rows if one["method"] in names and one["metric"] == measure]
    except (KeyError, TypeError) as error:
        raise RunError(f"{run / 'results.json'} is damaged: {error!r}") from None


def _ratios(run: Run, study: Study) -> list[dict[str, Any]]:
    found = []
    for line in study.lines:
        one = Run(run / line.path(study.seeds[0]))
        if line.role != "point" or not one.has_results:
            continue
        scores = stopped_scores([one], "accuracy", line.config.evaluation.splits)
        at = score_row(line.label, "accuracy", scores, [])
        loss = line.config.loss
        ratio = loss.rectify_weight / loss.discriminate_weight
        found.append({"ratio": ratio, **{name: at[name] for name in ("mean", "sd", "n")}})
    return found


def _seconds(run: Run, study: Study) -> dict[str, float]:
    """How long the trainings took, evaluations included, by line of the table."""
    seconds = {line.label: 0.0 for line in study.lines}
    for line, seed in study.runs():
        for record in Run(run / line.path(seed)).records("timing.jsonl"):
            seconds[line.label] += float(record.get("elapsed_s", 0.0))
    return {label: round(total, 1) for label, total in seconds.items()}


def _environments(run: Run, study: Study) -> list[dict[str, Any]]:
    """Each combination of commit, device and torch that trained some of it, and how many runs."""
    found: dict[tuple[str, ...], int] = {}
    for line, seed in study.runs():
        each = Run(run / line.path(seed))
        if not each.has_results:
            continue
        environment = each.read_json("environment.json")
        try:
            for one in [environment, *environment.get("resumed", [])]:
                torch_version = one.get("versions", {}).get("torch")
                key = (str(one.get("commit")), str(one.get("device")), str(torch_version))
                found[key] = found.get(key, 0) + 1
        except (AttributeError, TypeError):
            raise RunError(f"{each / 'environment.json'} is damaged") from None
    names = ("commit", "device", "torch")
    return [{**dict(zip(names, key, strict=True)), "runs": count} for key, count in found.items()]
