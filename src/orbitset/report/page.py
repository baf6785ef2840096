"""One self-contained HTML page made from run folders, and the figures it shows as files."""

import base64
import html
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from orbitset.errors import RunError
from orbitset.files import write_atomically
from orbitset.report import figures
from orbitset.report.tables import format_repeats, format_value, metric_name, ordered
from orbitset.runs import Run

_CSS = """
:root { --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --accent: #c8384e; }
* { box-sizing: border-box; }
body { margin: 0; background: #fafaf9; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .3rem; }
p { margin: .3rem 0 .8rem; max-width: 46rem; }
.soft { color: var(--soft); font-size: .92rem; }
.note { border-left: 3px solid var(--accent); padding: .1rem 0 .1rem .9rem; margin: 1rem 0; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 1rem;
  overflow-x: auto; }
.pair { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(25rem, 100%), 1fr)); }
img { display: block; max-width: 100%; height: auto; }
figure { margin: 0 0 1rem; }
figcaption { color: var(--soft); font-size: .92rem; margin-bottom: .5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .85rem; }
th, td { padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
td.method { font-weight: 600; }
tr.baseline td { color: var(--soft); font-weight: 400; }
details { margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre { font-size: .82rem; line-height: 1.45; overflow-x: auto; margin: .5rem 0 0; }
"""


def write_report(run: Run) -> Path:
    """Draw all figures of a finished run, or of the runs inside it, and write report.html."""
    results = run.require().read_json("results.json")
    runs = [Run(run / name) for name in run.config["runs"]] if "runs" in run.config else [run]
    page = run / "report.html"
    try:
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
    return page


def _page(run: Run, runs: list[Run], rows: list[dict[str, Any]]) -> str:
    title = f"orbitset · {run.config['name']}"
    parts = [_heading(run, runs), _results(rows)]
    if any(record.get("accuracy") for record in runs[0].records()):
        parts.append(_curves(run, runs, rows))
    for each in runs:
        parts.append(_images(run, each))
    parts.append(_strips(run, runs[0]))
    parts.append(_geometry(run, runs))
    parts.append(_settings(runs))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_CSS}</style></head>\n"
        f"<body><main>\n{''.join(parts)}</main></body></html>\n"
    )


def _heading(run: Run, runs: list[Run]) -> str:
    config, environment = runs[0].config, runs[0].read_json("environment.json")
    methods = ", ".join(each.config["method"] for each in runs)
    note = run.config.get("note")
    return (
        f"<h1>{html.escape(run.config['name'])}: {html.escape(methods)}</h1>"
        f'<p class="soft">Data {html.escape(config["data"])}, seed {config["seed"]}, '
        f"{html.escape(environment['device'])}, {html.escape(environment['started_at'][:10])}, "
        f"commit {html.escape(environment['commit'] or 'unknown')}</p>"
        + (f'<p class="note">{html.escape(note)}</p>' if note else "")
    )


def _results(rows: list[dict[str, Any]]) -> str:
    lines = []
    with_paper = any(row["paper"] is not None for row in rows)
    for row in ordered(rows):
        kind = ' class="baseline"' if row["method"] in ("pixels", "untrained") else ""
        low_high = f"{row['low']:.3f} – {row['high']:.3f}" if "low" in row else ""
        paper = "" if row["paper"] is None else f"{row['paper']:.2f}"
        cells = [
            f'<td class="method">{html.escape(row["method"])}</td>',
            *(
                f"<td>{html.escape(cell)}</td>"
                for cell in (
                    metric_name(row["metric"]),
                    format_value(row),
                    low_high,
                    format_repeats(row),
                    *([paper] if with_paper else []),
                )
            ),
        ]
        lines.append(f"<tr{kind}>{''.join(cells)}</tr>")
    return (
        "<h2>Results</h2><p>One labelled image per class, nearest neighbour in code space. The s.d. is "
        "over draws of the labelled images with one trained model, so it does not say how much another "
        "training would differ.</p>"
        '<div class="card"><table><thead><tr><th>method</th><th>metric</th><th>mean ± s.d.</th>'
        f"<th>2.5 – 97.5 %</th><th>repeated</th>{'<th>paper</th>' if with_paper else ''}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _curves(run: Run, runs: list[Run], rows: list[dict[str, Any]]) -> str:
    pixels = [r for r in rows if r["method"] == "pixels" and r["metric"] == "accuracy"]
    curves = [(each.config["method"], each.records()) for each in runs]
    figure = figures.accuracy_curves(curves, pixels[0]["mean"] if pixels else None)
    shown = _figure(run, "accuracy", figure, "One-shot accuracy during training.")
    return (
        "<h2>Accuracy against epochs</h2><p>An epoch shows every member of every orbit once. The band is "
        f'one s.d. over draws.</p><div class="card">{shown}</div>'
    )


def _images(run: Run, each: Run) -> str:
    method = each.config["method"]
    if method not in ("OJ", "OE", "AE"):
        return ""
    figure = figures.rectification_grid(_arrays(each), "decoded" if method == "AE" else "rectified")
    what = (
        "An autoencoder gives back its input; nothing asks it to rectify."
        if method == "AE"
        else "Test images never seen in training, each under a random transformation."
    )
    shown = _figure(run, f"rectified-{method}", figure, what)
    return f'<h2>Decoded by {method}</h2><div class="card">{shown}</div>'


def _strips(run: Run, each: Run) -> str:
    figure = figures.member_strips(_arrays(each)["members"])
    shown = _figure(run, "orbits", figure, "Members of four test orbits, the canonical one first.")
    return f'<h2>Orbits</h2><div class="card">{shown}</div>'


def _geometry(run: Run, runs: list[Run]) -> str:
    cards = []
    for each in runs:
        method, arrays = each.config["method"], _arrays(each)
        margin = float(arrays["margin"]) if "margin" in arrays else None
        curve = figures.invariance_curves(arrays, margin, method)
        caption = "Same-orbit pairs within ε, and other pairs beyond it."
        cards.append(_figure(run, f"invariance-{method}", curve, caption))
        if "tsne" in arrays:
            points = figures.tsne_map(arrays["tsne"], arrays["tsne_labels"], method)
            caption = "Codes of test images in the plane (t-SNE), coloured by class."
            cards.append(_figure(run, f"tsne-{method}", points, caption))
    body = "".join(f'<div class="card">{card}</div>' for card in cards)
    return (
        "<h2>Geometry of the codes</h2><p>The paper calls an embedding ε-invariant when images of one orbit "
        "lie within squared distance ε and all others beyond it: both curves at 1 for one ε. The dotted "
        "line is the margin α of the methods that have one; that ε = α follows only for codes of bounded "
        "length.</p>"
        f'<div class="pair">{body}</div>'
    )


def _settings(runs: list[Run]) -> str:
    parts = ["<h2>Configuration and environment</h2>"]
    for each in runs:
        method = html.escape(each.config["method"])
        for label, content in (
            ("configuration", each.config),
            ("environment", each.read_json("environment.json")),
        ):
            text = html.escape(json.dumps(content, indent=2))
            parts.append(
                f"<details><summary>{method}, {label}</summary><pre>{text}</pre></details>"
            )
    return "".join(parts)


def _arrays(run: Run) -> dict[str, np.ndarray]:
    with np.load(run / "arrays.npz", allow_pickle=False) as loaded:
        return dict(loaded)


def _figure(run: Run, name: str, figure: Figure, caption: str) -> str:
    """Save the figure in the run's folder and give it as part of a page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    write_atomically(run / "figures" / f"{name}.png", buffer.getvalue())
    data = base64.b64encode(buffer.getvalue()).decode()
    width = round(figure.get_figwidth() * 96)
    caption = html.escape(caption)
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f'<img alt="{caption}" width="{width}" src="data:image/png;base64,{data}"></figure>'
    )
