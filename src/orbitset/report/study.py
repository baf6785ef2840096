"""The page of a study: the paper's table and figures beside ours, from the folders of its runs alone."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orbitset.report import figures, parts
from orbitset.report.tables import (
    format_interval,
    format_p,
    format_paper,
    format_repeats,
    format_value,
    metric_name,
    ordered,
)
from orbitset.run_folder import Run

_SHOWN_COLUMNS = 10
_HOW = (
    "One labelled image per class, nearest neighbour in code space. For each random split of the test orbits "
    "the time to stop was chosen on one half and scored on the other; the s.d. is over splits, with seeds "
    "averaged within each. p is of a paired t-test of OJ against the row, as in the paper, times the three "
    "tests the paper made. Other readings of OJ keep the settings chosen for it. Raw pixels and the "
    "untrained encoder are scored on all test images, over draws of the labelled ones. Stopped: the "
    "median epoch."
)


def study_page(run: Run, results: dict[str, Any], shown_in: parts.Figures) -> str:
    scored = {row["method"] for row in results["rows"]}
    lines = {line["label"]: line for line in run.config["lines"] if line["label"] in scored}
    at = run.config["seeds"].index(results["seeds"][0])
    first = {label: Run(run / line["runs"][at]) for label, line in lines.items()}
    methods = [label for label, line in lines.items() if line["role"] == "method"]
    found = {label: parts.arrays(each) for label, each in first.items()}
    shown = [
        heading(run, methods, shown_in.cut_down, results["environments"]),
        _measures(results),
        _curves(shown_in, methods, results, own_measures(run.config["lines"][0]["config"])),
        maps(shown_in, {label: found[label] for label in methods}, "class"),
        _pictures(shown_in, found),
        _ratios(shown_in, results),
        times(run, list(lines), results),
        settings(lines, first),
    ]
    return parts.frame(f"orbitset · {run.config['name']}", shown)


def own_measures(config: Mapping[str, Any]) -> list[str]:
    """The names of the measures from outside that a run was scored by."""
    return [name.partition(":")[2] for name in config["measures"]]


def heading(
    run: Run, methods: Sequence[str], mark: str | None, environments: Sequence[dict[str, Any]]
) -> str:
    environment = run.read_json("environment.json")
    mixed = None
    if len(environments) > 1:
        kinds = (
            f"{one['runs']} on {one['device']}, torch {one['torch']}, commit {one['commit']}"
            for one in environments
        )
        mixed = f"Not all runs are of one kind: {'; '.join(kinds)}."
    return (
        f"<h1>{html.escape(run.config['name'])}: {len(methods)} methods</h1>"
        f'<p class="soft">{html.escape(environment["device"])}, '
        f"{html.escape(environment['started_at'][:10])}, "
        f"commit {html.escape(environment['commit'] or 'unknown')}, "
        f"seeds {', '.join(map(str, run.config['seeds']))}, "
        f"<code>{html.escape(environment['command'])}</code></p>"
        + parts.note(mark)
        + parts.note(mixed)
    )


def _measures(results: dict[str, Any]) -> str:
    """A table of scores and one of tests for every measure, the paper's first."""
    shown = ["<h2>Results</h2>", f"<p>{_HOW}</p>"]
    for metric in dict.fromkeys(row["metric"] for row in results["rows"]):
        rows, tests, seeds = (
            [one for one in results[kind] if one["metric"] == metric]
            for kind in ("rows", "tests", "over_seeds")
        )
        tables = score_table(rows) + tests_table(tests, results["about_tests"]) + seeds_table(seeds)
        name = metric_name(metric)
        if metric == "accuracy":
            shown.append(tables)
        else:
            shown.append(f"<details><summary>{html.escape(name)}</summary>{tables}</details>")
    return "".join(shown)


def score_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            row["method"],
            format_value(row),
            format_paper(row),
            format_p(row["p_corrected"]),
            format_interval(row["seeds_low"], row["seeds_high"]),
            "" if row["epoch"] is None else f"{row['epoch']:.2g}",
            format_repeats(row),
        ]
        for row in ordered(rows)
    ]
    head = [
        "method",
        "mean ± s.d.",
        "paper",
        "p",
        "95 % over seeds",
        "stopped at epoch",
        "repeated",
    ]
    filled = [at for at in range(len(head)) if any(row[at] for row in cells)]
    return parts.table([head[at] for at in filled], [[row[at] for at in filled] for row in cells])


def tests_table(tests: Sequence[dict[str, Any]], about: str) -> str:
    cells = [
        [
            f"{test['method']} − {test['against']}",
            test["test"],
            difference(test["difference"], test),
            *(format_p(test[name]) for name in ("p", "p_bonferroni", "p_holm")),
        ]
        for test in tests
    ]
    head = ["difference", "test", "mean (95 %)", "p", "Bonferroni", "Holm"]
    return f"<p>{html.escape(about)}</p>{parts.table(head, cells)}" if tests else ""


def seeds_table(pairs: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            f"{pair['method']} − {pair['against']}",
            difference(pair["mean"], pair),
            f"{pair['repeats']} seeds",
        ]
        for pair in pairs
    ]
    text = "<p>Differences seed by seed say how much another training would change.</p>"
    return text + parts.table(["difference", "mean (95 %)", "over"], cells) if pairs else ""


def difference(mean: float, interval: dict[str, Any]) -> str:
    shown = f"{mean:+.3f} ({interval['low']:+.3f} to {interval['high']:+.3f})"
    return shown.replace("-", "−")


def _curves(
    shown_in: parts.Figures, methods: Sequence[str], results: dict[str, Any], own: Sequence[str]
) -> str:
    curves = [(label, results["curves"][label]) for label in methods]
    shown = []
    for measure in [*results["protocol"]["curves"], *own]:
        pixels = [
            row["mean"]
            for row in results["rows"]
            if (row["method"], row["metric"]) == ("pixels", measure)
        ]
        name = metric_name(measure)
        drawn = figures.accuracy_curves(curves, pixels[0] if pixels else None, measure, name)
        caption = f"{name[0].upper()}{name[1:]} during training, mean over seeds"
        caption += "; the band is one s.d. over draws." if measure == "accuracy" else "."
        shown.append(shown_in.show(measure, drawn, caption))
    return section("Accuracy against epochs", "".join(shown))


def maps(
    shown_in: parts.Figures, found: Mapping[str, Mapping[str, np.ndarray]], coloured_by: str
) -> str:
    """The same test images in the plane of every method that has them."""
    points = [(label, arrays["tsne"]) for label, arrays in found.items() if "tsne" in arrays]
    if not points:
        return ""
    labels = next(arrays["tsne_labels"] for arrays in found.values() if "tsne" in arrays)
    drawn = figures.tsne_maps(points, labels)
    caption = (
        "The same test images for every method at the end of training, by t-SNE, coloured by "
        f"{coloured_by}."
    )
    return section("Codes in the plane", shown_in.show("tsne", drawn, caption))


def _pictures(shown_in: parts.Figures, found: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    any_arrays = next(iter(found.values()))
    drawn = figures.member_strips(any_arrays["members"])
    caption = "Members of four test orbits, the canonical one first."
    shown = [section("Orbits", shown_in.show("orbits", drawn, caption))]
    inputs = [("canonical", any_arrays["canonical"]), ("transformed", any_arrays["transformed"])]
    rectified = [
        (label, found[label]["rectified"]) for label in ("AE", "OE", "OJ") if label in found
    ]
    if "OJ" in found:
        rows = figures.image_rows(_cut([*inputs, ("rectified", found["OJ"]["rectified"])]))
        caption = "Test images, each under a random transformation, rectified by OJ at the end of training."
        shown.append(section("Rectified", shown_in.show("rectified", rows, caption)))
    transformers = [
        (label, found[label]["rectified"]) for label in ("ST-STN", "OT-STN", "OJ") if label in found
    ]
    if len(transformers) > 1:
        rows = figures.image_rows(_cut([("input", any_arrays["transformed"]), *transformers]))
        caption = (
            "What the spatial transformers show their encoders, with class labels (ST-STN) and without "
            "(OT-STN), and what OJ decodes."
        )
        shown.append(section("Against spatial transformers", shown_in.show("stn", rows, caption)))
    if rectified:
        columns = figures.image_columns(_cut([*inputs, *rectified]))
        caption = "The canonical image, the one shown, and what AE, OE and OJ decode from it."
        shown.append(section("Decoded", shown_in.show("decoded", columns, caption)))
    return "".join(shown)


def _cut(rows: Sequence[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    return [(label, images[:_SHOWN_COLUMNS]) for label, images in rows]


def section(title: str, shown: str) -> str:
    return f"<h2>{html.escape(title)}</h2>{parts.card(shown)}"


def _ratios(shown_in: parts.Figures, results: dict[str, Any]) -> str:
    if not results["ratios"]:
        return ""
    drawn = figures.ratio_curve(results["ratios"])
    caption = (
        "One seed and a fifth of the length for each point; all other settings, the margin and the learning "
        "rate among them, are those of OJ. The bars are one s.d. over splits."
    )
    shown = shown_in.show("ratio", drawn, caption)
    return section("Weight of the two terms", shown)


def times(run: Run, labels: Sequence[str], results: dict[str, Any]) -> str:
    seconds = results["seconds"]
    cells = []
    for label in labels:
        lines = [line for line in run.config["lines"] if line["label"] == label]
        runs = [Run(run / path) for line in lines for path in line["runs"]]
        ended = [each.records()[-1] for each in runs if each.has_results]
        images = ended[0]["images"]
        cells.append([label, f"{images:,}", str(len(ended)), f"{seconds[label]:,.0f} s"])
    total = sum(seconds.values())
    return (
        "<h2>Time</h2><p>Trainings with their evaluations, summed up though several may have run side by "
        f"side: {total / 60:.1f} minutes in all, those for curves included.</p>"
        + parts.table(["method", "images per training", "trainings", "time"], cells)
    )


def settings(lines: dict[str, Any], first: dict[str, Run]) -> str:
    found = ["<h2>Configuration and environment</h2>"]
    for label, line in lines.items():
        found.append(parts.details(f"{label}, configuration", line["config"]))
        environment = first[label].read_json("environment.json")
        found.append(parts.details(f"{label}, environment of the first seed", environment))
    return "".join(found)
