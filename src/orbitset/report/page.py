"""One self-contained HTML page made from run folders, and the figures it shows as files."""

import html
from pathlib import Path
from typing import Any

from orbitset.errors import RunError
from orbitset.files import write_atomically
from orbitset.report import figures, parts
from orbitset.report.faces import faces_page, is_of_pairs
from orbitset.report.study import own_measures, study_page
from orbitset.report.tables import (
    format_interval,
    format_repeats,
    format_value,
    metric_name,
    ordered,
    write_tables,
)
from orbitset.run_folder import Run


def write_report(run: Run, results: dict[str, Any] | None = None) -> Path:
    """Draw all figures of a finished run, of the runs inside it or of a study, and write report.html.

    Results are those in the folder, or new ones, which then go there. Nothing is written unless all of it
    could be made.
    """
    run.require().refuse_search("reported")
    found = run.read_json("results.json") if results is None else results
    try:
        figures_of = parts.Figures(_mark(found))
        if is_of_pairs(run):
            text = faces_page(run, found, figures_of)
        elif run.kind == "study":
            text = study_page(run, found, figures_of)
        else:
            inside = run.config.get("runs")
            runs = [Run(run / name) for name in inside] if inside else [run]
            text = _page(run, runs, found, figures_of)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RunError(f"{run.path} is damaged: {error!r}") from error
    if results is not None:
        run.write_json("results.json", results)
    write_tables(run / "tables", found["rows"], found.get("tests", []))
    for name, content in figures_of.files.items():
        write_atomically(run / "figures" / name, content)
    page = run / "report.html"
    write_atomically(page, text.encode())
    return page


def _mark(results: dict[str, Any]) -> str | None:
    marks = dict.fromkeys(row.get("cut_down") for row in results["rows"])
    return "; ".join(filter(None, marks)) or None


def _page(run: Run, runs: list[Run], results: dict[str, Any], shown_in: parts.Figures) -> str:
    title = f"orbitset · {run.config['name']}"
    sections = [_heading(run, runs), _results(results), _curves(shown_in, runs, results)]
    sections += [_images(shown_in, each) for each in runs]
    sections += [_strips(shown_in, runs[0]), _geometry(shown_in, runs), _settings(runs)]
    return parts.frame(title, sections)


def _heading(run: Run, runs: list[Run]) -> str:
    config, environment = runs[0].config, runs[0].read_json("environment.json")
    methods = ", ".join(each.config["method"] for each in runs)
    notes = [run.config.get("note"), runs[0].config.get("cut_down")]
    if config["evaluation"].get("on") == "validation":
        notes.append("Scored on validation images; the test images were left out.")
    return (
        f"<h1>{html.escape(run.config['name'])}: {html.escape(methods)}</h1>"
        f'<p class="soft">Data {html.escape(config["data"])}, seed {config["seed"]}, '
        f"{html.escape(environment['device'])}, {html.escape(environment['started_at'][:10])}, "
        f"commit {html.escape(environment['commit'] or 'unknown')}</p>"
        + "".join(parts.note(text) for text in notes)
    )


def _results(results: dict[str, Any]) -> str:
    rows = results["rows"]
    with_paper = any(row["paper"] is not None for row in rows)
    cells = [
        [
            row["method"],
            metric_name(row["metric"]),
            format_value(row),
            format_interval(row.get("low"), row.get("high")),
            format_repeats(row),
            *([] if not with_paper else ["" if row["paper"] is None else f"{row['paper']:.2f}"]),
        ]
        for row in ordered(rows)
    ]
    head = ["method", "metric", "mean ± s.d.", "2.5 – 97.5 %", "repeated"]
    how = html.escape(results["protocol"]["how"])
    return f"<h2>Results</h2><p>{how}</p>" + parts.table(
        [*head, *(["paper"] if with_paper else [])], cells
    )


def _curves(shown_in: parts.Figures, runs: list[Run], results: dict[str, Any]) -> str:
    """A figure for each measure that the protocol wants to be drawn, and for the user's own."""
    own = own_measures(runs[0].config)
    curves = [(each.config["method"], each.records()) for each in runs]
    cards = []
    for measure in [*results["protocol"]["curves"], *own]:
        pixels = [
            row["mean"]
            for row in results["rows"]
            if (row["method"], row["metric"]) == ("pixels", measure)
        ]
        name = metric_name(measure)
        drawn = figures.accuracy_curves(curves, pixels[0] if pixels else None, measure, name)
        caption = f"{name[0].upper()}{name[1:]} during training."
        if any(record[measure]["sd"] for _, records in curves for record in records):
            caption += " The band is one s.d. over draws."
        cards.append(parts.card(shown_in.show(measure, drawn, caption)))
    return (
        "<h2>Accuracy against epochs</h2><p>An epoch shows every member of every orbit once.</p>"
        + "".join(cards)
    )


def _images(shown_in: parts.Figures, each: Run) -> str:
    method = each.config["method"]
    arrays = parts.arrays(each)
    if method not in ("OJ", "OE", "AE") or "rectified" not in arrays:
        return ""
    figure = figures.rectification_grid(arrays, "decoded" if method == "AE" else "rectified")
    what = (
        "An autoencoder gives back its input; nothing asks it to rectify."
        if method == "AE"
        else "Images never seen in training, each under a random transformation."
    )
    shown = shown_in.show(f"rectified-{method}", figure, what)
    return f'<h2>Decoded by {method}</h2><div class="card">{shown}</div>'


def _strips(shown_in: parts.Figures, each: Run) -> str:
    arrays = parts.arrays(each)
    if "members" not in arrays:
        return ""
    figure = figures.member_strips(arrays["members"])
    caption = "Members of four orbits never trained on, the canonical one first."
    shown = shown_in.show("orbits", figure, caption)
    return f'<h2>Orbits</h2><div class="card">{shown}</div>'


def _geometry(shown_in: parts.Figures, runs: list[Run]) -> str:
    cards = []
    for each in runs:
        method, arrays = each.config["method"], parts.arrays(each)
        if "epsilons" not in arrays:
            continue
        margin = float(arrays["margin"]) if "margin" in arrays else None
        curve = figures.invariance_curves(arrays, margin, method)
        caption = "Same-orbit pairs within ε, and other pairs beyond it."
        cards.append(shown_in.show(f"invariance-{method}", curve, caption))
        if "tsne" in arrays:
            points = figures.tsne_map(arrays["tsne"], arrays["tsne_labels"], method)
            caption = (
                "Codes of images never seen in training, in the plane by t-SNE, coloured by class."
            )
            cards.append(shown_in.show(f"tsne-{method}", points, caption))
    if not cards:
        return ""
    body = "".join(f'<div class="card">{card}</div>' for card in cards)
    return (
        "<h2>Geometry of the codes</h2><p>The paper calls an embedding ε-invariant when images of one orbit "
        "lie within squared distance ε and all others beyond it: both curves at 1 for one ε. The dotted "
        "line is the margin α of the methods that have one; that ε = α follows only for codes of bounded "
        "length.</p>"
        f'<div class="pair">{body}</div>'
    )


def _settings(runs: list[Run]) -> str:
    found = ["<h2>Configuration and environment</h2>"]
    for each in runs:
        method = each.config["method"]
        found.append(parts.details(f"{method}, configuration", each.config))
        environment = each.read_json("environment.json")
        found.append(parts.details(f"{method}, environment", environment))
    return "".join(found)
