"""The blocks that the template of a report shows: texts, tables and figures."""

import base64
import io
import json
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

Block = dict[str, Any]
"""`kind` says how templates/report.html shows it"""
_DPI = 160


def heading(text: str) -> Block:
    return {"kind": "heading", "text": text}


def paragraph(text: str) -> Block:
    return {"kind": "paragraph", "text": text}


def notes(*texts: str | None) -> list[Block]:
    """A marked paragraph for each text that there is."""
    return [{"kind": "note", "text": text} for text in texts if text]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """The first cell of a row is what the row is about."""
    return {"kind": "table", "head": head, "rows": rows}


def grid(blocks: Sequence[Block]) -> Block:
    """Blocks side by side where there is room."""
    return {"kind": "grid", "blocks": blocks}


def details(summary: str, *blocks: Block) -> Block:
    """Blocks that are folded up."""
    return {"kind": "details", "text": summary, "blocks": blocks}


def as_json(summary: str, content: Any) -> Block:
    return details(summary, {"kind": "code", "text": json.dumps(content, indent=2)})


class Figures:
    """The figures of a page: shown in it, and written as files once the whole page could be made.

    What is cut down has that written into every figure, since figures travel without pages.
    """

    def __init__(self, cut_down: str | None) -> None:
        self.cut_down = cut_down
        self.files: dict[str, bytes] = {}

    def show(self, name: str, figure: Figure, caption: str) -> Block:
        content = self.files[f"{name}.png"] = picture(figure, self.cut_down)
        return {
            "kind": "figure",
            "caption": caption,
            "width": round(figure.get_figwidth() * 96),
            "data": base64.b64encode(content).decode(),
        }


def picture(figure: Figure, cut_down: str | None) -> bytes:
    """A figure as PNG, with a line below if it is of something cut down."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
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
