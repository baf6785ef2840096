"""The page of runs on observed orbits, of one or of a whole study: verification and retrieval."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orbitset.report import figures, parts
from orbitset.report.study import (
    heading,
    maps,
    own_measures,
    score_table,
    section,
    seeds_table,
    settings,
    tests_table,
    times,
)
from orbitset.report.tables import metric_name
from orbitset.run_folder import Run

_Rows = list[tuple[str, Sequence[np.ndarray | None]]]
_Hits = dict[str, Sequence[bool | None]]
_OJS, _EXS = "OJ's top-1", "EX's top-1"
MEASURES = ("auc", "top1")
_COLUMNS = 10
_HOW = (
    "AUC: over all pairs of test images, how often two images of the same {label} are nearer than two "
    "others. Top-1: each test image asks all others{excluded}; how often the nearest shows the same {label}."
)
_STOPPED = (
    "The time to stop was chosen for each measure on a part of the data that is neither trained on nor "
    "scored; “sides swapped” scores that part and chooses on the other. The s.d. is over splits of the "
    "data, each trained anew, with seeds averaged within each; p is of a paired t-test of OJ against the "
    "row, as in the paper, times the three tests the paper made. Raw pixels and the untrained encoder need "
    "no stopping."
)
_AT_END = (
    "Scored at the end of training. The s.d. is over splits of the data, each trained anew, with seeds "
    "averaged within each; the interval is over seeds; p is of a paired t-test of OJ against the row, over "
    "splits, times the three tests the paper made."
)
_RULE = (
    "Of queries that were drawn at random, in their order: the first six where OJ and EX are both right; "
    "then the first two where only OJ is, where only EX is, and where both are wrong, as far as there are "
    "any. {mistakes}Green frames are right, red ones wrong."
)
_FOLLOW = (
    "Last come the first mistakes in the order of all queries of a method that makes none among these, "
    "without the other's answer. "
)
_FLAWLESS = "OJ makes no mistake among them. "


def is_of_pairs(run: Run) -> bool:
    """Whether a run, or the study's runs, are judged by pairs of observed images."""
    lines = run.config.get("lines")
    config = lines[0]["config"] if lines else run.config
    return config.get("protocol") == "pairs"


def faces_page(run: Run, results: dict[str, Any], shown_in: parts.Figures) -> str:
    if run.kind == "study":
        lines = run.config["lines"]
        at = run.config["seeds"].index(results["seeds"][0])
        table = [line for line in lines if line["role"] == "method"]
        first = {line["label"]: line for line in reversed(table)}
        labels = list(dict.fromkeys(line["label"] for line in table))
        runs = {label: Run(run / first[label]["runs"][at]) for label in labels}
        config = table[0]["config"]
        curves = results["curves"]
        ending = [
            times(run, labels, results),
            settings({label: first[label] for label in labels}, runs),
        ]
        top = heading(run, labels, shown_in.cut_down, results["environments"])
    else:
        config = run.config
        runs = {config["method"]: run}
        curves = {config["method"]: _own_curve(run)}
        ending = [
            "<h2>Configuration and environment</h2>",
            parts.details("configuration", config),
            parts.details("environment", run.read_json("environment.json")),
        ]
        top = _single_heading(run, shown_in.cut_down)
    found = {label: parts.arrays(each) for label, each in runs.items()}
    lists = [each / "left_out.json" for each in runs.values()]
    if found_list := next((path for path in lists if path.is_file()), None):
        where = found_list.relative_to(run.path)
        top += parts.note(f"Some of the data could not be used: {where} says what, and why.")
    shown = [
        top,
        _measures(results, config),
        _curves(shown_in, curves, results, own_measures(config)),
        maps(shown_in, found, config["orbits"]["label"]),
        _pictures(shown_in, found),
        *ending,
    ]
    return parts.frame(f"orbitset · {run.config['name']}", shown)


def _single_heading(run: Run, mark: str | None) -> str:
    config, environment = run.config, run.read_json("environment.json")
    return (
        f"<h1>{html.escape(config['name'])}: {html.escape(config['method'])}</h1>"
        f'<p class="soft">Seed {config["seed"]}, {html.escape(environment["device"])}, '
        f"{html.escape(environment['started_at'][:10])}, "
        f"commit {html.escape(environment['commit'] or 'unknown')}</p>" + parts.note(mark)
    )


def _own_curve(run: Run) -> list[dict[str, Any]]:
    return [
        {"epoch": record["epoch"]}
        | {
            name: {"mean": value["mean"], "sd": 0.0}
            for name, value in record.items()
            if isinstance(value, dict) and "mean" in value
        }
        for record in run.records()
    ]


def _measures(results: dict[str, Any], config: Mapping[str, Any]) -> str:
    """A table of scores and one of tests for each measure."""
    label = config["orbits"]["label"]
    excluded = config["evaluation"]["exclude"]
    said = f", except those of its {label} with its {' or '.join(excluded)}" if excluded else ""
    how = _HOW.format(label=html.escape(label), excluded=html.escape(said))
    if config["encoder"].get("contrast") == "local":
        how += " Every encoder looks at the local contrast of images, raw pixels are as given."
    stopped = ""
    if "tests" in results:
        stopped = f"<p>{_STOPPED if config['evaluation']['validation'] else _AT_END}</p>"
    lost = max((row.get("unanswerable") or 0 for row in results["rows"]), default=0)
    if lost:
        stopped += parts.note(f"{lost:,} queries have nothing to find and are not scored.")
    shown = [f"<h2>Results</h2><p>{how}</p>{stopped}"]
    for metric in dict.fromkeys(row["metric"] for row in results["rows"]):
        rows, tests, seeds = (
            [one for one in results.get(kind, []) if one["metric"] == metric]
            for kind in ("rows", "tests", "over_seeds")
        )
        if not config["evaluation"]["validation"]:
            rows = [row | {"epoch": None} for row in rows]
        tables = (
            score_table(rows)
            + tests_table(tests, results.get("about_tests", ""))
            + seeds_table(seeds)
        )
        name = html.escape(metric_name(metric))
        if metric in (*MEASURES, *own_measures(config)):
            shown.append(f"<h2>{name[0].upper() + name[1:]}</h2>{tables}")
        else:
            shown.append(f"<details><summary>{name}</summary>{tables}</details>")
    return "".join(shown)


def _curves(
    shown_in: parts.Figures,
    curves: Mapping[str, list[dict[str, Any]]],
    results: dict[str, Any],
    own: Sequence[str],
) -> str:
    shown = []
    for measure in [*MEASURES, *own]:
        pixels = [
            row["mean"]
            for row in results["rows"]
            if (row["method"], row["metric"]) == ("pixels", measure)
        ]
        name = metric_name(measure)
        drawn = figures.accuracy_curves(
            list(curves.items()), pixels[0] if pixels else None, measure, name
        )
        caption = f"{name[0].upper() + name[1:]} on test images during training"
        if "curves" in results:
            counts = sorted({curve[0][measure]["n"] for curve in curves.values()})
            caption += (
                f", mean over {' or '.join(map(str, counts))} trainings; the band is one s.d."
            )
        else:
            caption += "."
        shown.append(shown_in.show(measure, drawn, caption))
    return section("Against epochs", "".join(shown))


def _pictures(shown_in: parts.Figures, found: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    found = {label: arrays for label, arrays in found.items() if "query" in arrays}
    if not found:
        return ""
    any_arrays = next(iter(found.values()))
    drawn = figures.member_strips(any_arrays["members"][:, :13])
    caption = "Members of a few test orbits."
    shown = [section("Orbits", shown_in.show("orbits", drawn, caption))]
    if "OJ" in found and "EX" in found:
        rows, hits = _retrieval_rows(found["OJ"], found["EX"])
        drawn = figures.image_rows(rows, hits)
        has_followed = any(None in of for of in hits.values())
        is_flawless = False not in hits[_OJS]
        mistakes = _FOLLOW * has_followed + _FLAWLESS * is_flawless
        rule = _RULE.format(mistakes=mistakes)
        shown.append(section("Retrieval", shown_in.show("retrieval", drawn, rule)))
    elif "OJ" in found:
        rows, hits = _answers_of(found["OJ"])
        caption = (
            "The first eight random queries that OJ answers right, and the first two it does not."
        )
        drawn = figures.image_rows(rows, hits)
        shown.append(section("Retrieval", shown_in.show("retrieval", drawn, caption)))
    decoded = [(label, found[label]["rectified"]) for label in ("AE", "OE", "OJ") if label in found]
    if decoded:
        inputs = [("canonical", any_arrays["canonical"]), ("query", any_arrays["query"])]
        columns = [(label, images[:_COLUMNS]) for label, images in [*inputs, *decoded]]
        caption = (
            "Random test images, their targets, and what is decoded from their codes."
            + _errors(found)
        )
        drawn = figures.image_columns(columns)
        shown.append(section("Rectified", shown_in.show("decoded", drawn, caption)))
    return "".join(shown)


def _errors(found: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """How far rectified images are from their targets, where that was learned."""
    said, count = [], 0
    for label in ("OE", "OJ"):
        if label in found:
            target, made = (found[label][name].astype(float) for name in ("canonical", "rectified"))
            count, variance = len(target), np.square(target - target.mean(0)).mean()
            if variance > 0:
                said.append(f"{label} {np.square(made - target).mean() / variance:.2f}")
    if not said:
        return ""
    return (
        f" The squared error over {count} of them, as a share of the variance of the targets: "
        f"{', '.join(said)}."
    )


def _answers_of(oj: Mapping[str, np.ndarray]) -> tuple[_Rows, _Hits]:
    right, wrong = _first(oj["is_hit"], 8), _first(~oj["is_hit"], 2)
    rows: _Rows = []
    for label, name in (("canonical", "canonical"), ("query", "query"), (_OJS, "nearest")):
        mistakes = oj.get(f"mistake_{name}", oj[name][wrong])
        rows.append((label, [*oj[name][right], *mistakes]))
    return rows, {_OJS: [at < len(right) for at in range(len(rows[0][1]))]}


def _retrieval_rows(
    oj: Mapping[str, np.ndarray], ex: Mapping[str, np.ndarray]
) -> tuple[_Rows, _Hits]:
    # heads that two kinds of devices rendered may differ by a grey level
    difference = np.abs(oj["query"].astype(float) - ex["query"].astype(float)).mean()
    if oj["query"].shape != ex["query"].shape or difference > 1:
        raise ValueError("OJ and EX were asked different queries")
    is_oj, is_ex = oj["is_hit"], ex["is_hit"]
    both = [
        *_first(is_oj & is_ex, 6),
        *_first(is_oj & ~is_ex, 2),
        *_first(~is_oj & is_ex, 2),
        *_first(~is_oj & ~is_ex, 2),
    ]
    images: dict[str, list[np.ndarray | None]] = {
        "canonical": [*oj["canonical"][both]],
        "query": [*oj["query"][both]],
        _OJS: [*oj["nearest"][both]],
        _EXS: [*ex["nearest"][both]],
        "rectified": [*oj["rectified"][both]],
    }
    hits: dict[str, list[bool | None]] = {_OJS: is_oj[both].tolist(), _EXS: is_ex[both].tolist()}
    for own, other, arrays in ((_OJS, _EXS, oj), (_EXS, _OJS, ex)):
        if False in hits[own]:
            continue
        for at in range(len(arrays.get("mistake_query", ()))):
            for name in ("canonical", "query"):
                images[name].append(arrays[f"mistake_{name}"][at])
            images[own].append(arrays["mistake_nearest"][at])
            images[other].append(None)
            images["rectified"].append(arrays["mistake_rectified"][at] if own == _OJS else None)
            hits[own].append(False)
            hits[other].append(None)
    return list(images.items()), dict(hits)


def _first(chosen: np.ndarray, most: int) -> list[int]:
    places: list[int] = np.flatnonzero(chosen)[:most].tolist()
    return places
