"""The parts a page is made of: its frame, its figures (also kept as files) and its details."""

import base64
import html
import io
import json
import textwrap
import zipfile
import zlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from orbitset.errors import RunError
from orbitset.run_folder import Run

CSS = """
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


_DPI = 160


def frame(title: str, parts: list[str]) -> str:
    """A whole page, which needs nothing beside it."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{CSS}</style></head>\n"
        f"<body><main>\n{''.join(parts)}</main></body></html>\n"
    )


def note(text: str | None) -> str:
    return f'<p class="note">{html.escape(text)}</p>' if text else ""


def card(content: str) -> str:
    return f'<div class="card">{content}</div>'


def table(head: list[str], rows: list[list[str]]) -> str:
    """The first cell of a row is the method it is about."""
    lines = []
    for cells in rows:
        kind = ' class="baseline"' if cells[0] in ("pixels", "untrained", "begun with") else ""
        first, *rest = map(html.escape, cells)
        body = "".join(f"<td>{cell}</td>" for cell in rest)
        lines.append(f'<tr{kind}><td class="method">{first}</td>{body}</tr>')
    titles = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    return card(f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>")


def details(label: str, content: Any) -> str:
    text = html.escape(json.dumps(content, indent=2))
    return f"<details><summary>{html.escape(label)}</summary><pre>{text}</pre></details>"


class Figures:
    """The figures of a page: shown in it, and kept as files once the whole page could be made.

    What is cut down has that written into every figure, since figures travel without pages.
    """

    def __init__(self, cut_down: str | None) -> None:
        self.cut_down = cut_down
        self.files: dict[str, bytes] = {}

    def show(self, name: str, drawn: Figure, caption: str) -> str:
        """The figure as part of a page."""
        content = self.files[f"{name}.png"] = picture(drawn, self.cut_down)
        data = base64.b64encode(content).decode()
        width = round(drawn.get_figwidth() * 96)
        caption = html.escape(caption)
        return (
            f"<figure><figcaption>{caption}</figcaption>"
            f'<img alt="{caption}" width="{width}" src="data:image/png;base64,{data}"></figure>'
        )


def picture(drawn: Figure, cut_down: str | None) -> bytes:
    """A figure as PNG, with a line below if it is of something cut down."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=_DPI)
    return _marked(buffer.getvalue(), cut_down) if cut_down else buffer.getvalue()


def _marked(png: bytes, text: str) -> bytes:
    """The picture with a line of text below it."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    font = ImageFont.load_default(size=_DPI // 9)
    lines = textwrap.wrap(text, max(20, int(picture.width / font.getlength("n"))))
    line_px = _DPI // 6
    height = picture.height + line_px * len(lines) + line_px // 2
    marked = Image.new("RGB", (picture.width, height), "white")
    marked.paste(picture)
    draw = ImageDraw.Draw(marked)
    for number, line in enumerate(lines):
        place = (line_px // 2, picture.height + number * line_px)
        draw.text(place, line, fill="#c8384e", font=font)
    buffer = io.BytesIO()
    marked.save(buffer, format="PNG")
    return buffer.getvalue()


def arrays(run: Run) -> dict[str, np.ndarray]:
    path = run / "arrays.npz"
    try:
        with np.load(path, allow_pickle=False) as loaded:
            return dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(f"{path} is damaged: {error}") from None
