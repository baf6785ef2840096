"""One self-contained HTML page made from run folders, and the figures it shows as files."""

import html
import zipfile
from pathlib import Path
from typing import Any

from orbitset.errors import RunError
from orbitset.files import write_atomically
from orbitset.report import figures, parts
from orbitset.report.study import study_page
from orbitset.report.tables import (
    format_repeats,
    format_value,
    metric_name,
    ordered,
    write_tables,
)
from orbitset.runs import Run


def write_report(run: Run) -> Path:
    """Draw all figures of a finished run, of the runs inside it or of a study, and write report.html."""
    run.require().refuse_search("reported")
    results = run.read_json("results.json")
    page = run / "report.html"
    try:
        if run.kind == "study":
            text = study_page(run, results)
        else:
            inside = run.config.get("runs")
            runs = [Run(run / name) for name in inside] if inside else [run]
            text = _page(run, runs, results["rows"])
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        zipfile.BadZipFile,
    ) as error:
        raise RunError(f"{run.path} is damaged: {error!r}") from error
    write_atomically(page, text.encode())
    write_tables(run / "tables", results["rows"])
    return page


def _page(run: Run, runs: list[Run], rows: list[dict[str, Any]]) -> str:
    title = f"orbitset · {run.config['name']}"
    shown = [_heading(run, runs), _results(rows)]
    if any(record.get("accuracy") for record in runs[0].records()):
        shown.append(_curves(run, runs, rows))
    for each in runs:
        shown.append(_images(run, each))
    shown.append(_strips(run, runs[0]))
    shown.append(_geometry(run, runs))
    shown.append(_settings(runs))
    return parts.frame(title, shown)


def _heading(run: Run, runs: list[Run]) -> str:
    config, environment = runs[0].config, runs[0].read_json("environment.json")
    methods = ", ".join(each.config["method"] for each in runs)
    note = run.config.get("note")
    return (
        f"<h1>{html.escape(run.config['name'])}: {html.escape(methods)}</h1>"
        f'<p class="soft">Data {html.escape(config["data"])}, seed {config["seed"]}, '
        f"{html.escape(environment['device'])}, {html.escape(environment['started_at'][:10])}, "
        f"commit {html.escape(environment['commit'] or 'unknown')}</p>" + parts.note(note)
    )


def _results(rows: list[dict[str, Any]]) -> str:
    with_paper = any(row["paper"] is not None for row in rows)
    cells = [
        [
            row["method"],
            metric_name(row["metric"]),
            format_value(row),
            f"{row['low']:.3f} – {row['high']:.3f}" if "low" in row else "",
            format_repeats(row),
            *([] if not with_paper else ["" if row["paper"] is None else f"{row['paper']:.2f}"]),
        ]
        for row in ordered(rows)
    ]
    head = ["method", "metric", "mean ± s.d.", "2.5 – 97.5 %", "repeated"]
    return (
        "<h2>Results</h2><p>One labelled image per class, nearest neighbour in code space. The s.d. is "
        "over draws of the labelled images with one trained model, so it does not say how much another "
        "training would differ.</p>"
        + parts.table([*head, *(["paper"] if with_paper else [])], cells)
    )


def _curves(run: Run, runs: list[Run], rows: list[dict[str, Any]]) -> str:
    pixels = [r for r in rows if r["method"] == "pixels" and r["metric"] == "accuracy"]
    curves = [(each.config["method"], each.records()) for each in runs]
    figure = figures.accuracy_curves(curves, pixels[0]["mean"] if pixels else None)
    shown = parts.figure(run, "accuracy", figure, "One-shot accuracy during training.")
    return (
        "<h2>Accuracy against epochs</h2><p>An epoch shows every member of every orbit once. The band is "
        f'one s.d. over draws.</p><div class="card">{shown}</div>'
    )


def _images(run: Run, each: Run) -> str:
    method = each.config["method"]
    if method not in ("OJ", "OE", "AE"):
        return ""
    figure = figures.rectification_grid(
        parts.arrays(each), "decoded" if method == "AE" else "rectified"
    )
    what = (
        "An autoencoder gives back its input; nothing asks it to rectify."
        if method == "AE"
        else "Test images never seen in training, each under a random transformation."
    )
    shown = parts.figure(run, f"rectified-{method}", figure, what)
    return f'<h2>Decoded by {method}</h2><div class="card">{shown}</div>'


def _strips(run: Run, each: Run) -> str:
    figure = figures.member_strips(parts.arrays(each)["members"])
    shown = parts.figure(
        run, "orbits", figure, "Members of four test orbits, the canonical one first."
    )
    return f'<h2>Orbits</h2><div class="card">{shown}</div>'


def _geometry(run: Run, runs: list[Run]) -> str:
    cards = []
    for each in runs:
        method, arrays = each.config["method"], parts.arrays(each)
        margin = float(arrays["margin"]) if "margin" in arrays else None
        curve = figures.invariance_curves(arrays, margin, method)
        caption = "Same-orbit pairs within ε, and other pairs beyond it."
        cards.append(parts.figure(run, f"invariance-{method}", curve, caption))
        if "tsne" in arrays:
            points = figures.tsne_map(arrays["tsne"], arrays["tsne_labels"], method)
            caption = "Codes of test images in the plane (t-SNE), coloured by class."
            cards.append(parts.figure(run, f"tsne-{method}", points, caption))
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
