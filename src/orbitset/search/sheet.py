"""A contact sheet: rows of small pictures with captions, as one HTML page that needs nothing beside it."""

import base64
import functools
import html
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

_MOST_PX = 160
_SMALL_PX = 64
"""A picture up to this size is shown pixel by pixel, and larger than it is"""

_CSS = """
:root { color-scheme: light dark; --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --accent: #c8384e;
  --page: #fafaf9; --card: #fff; --empty: #f3f4f6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --soft: #9ca3af; --line: #374151; --accent: #f0788a;
    --page: #14171c; --card: #1c2027; --empty: #262b34; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 75rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; letter-spacing: -.01em; }
h1, h2, p { overflow-wrap: anywhere; }
h2 { font-size: 1.02rem; margin: 0; }
p { margin: .3rem 0 .8rem; max-width: 46rem; }
.soft { color: var(--soft); font-size: .92rem; }
.row { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem 1rem;
  margin: 1rem 0; content-visibility: auto; contain-intrinsic-size: auto 15rem; }
.row .soft { margin: 0; }
.pictures { display: grid; gap: .9rem .7rem; margin-top: .7rem;
  grid-template-columns: repeat(auto-fill, minmax(5.8rem, 1fr)); }
figure { margin: 0; min-width: 0; max-width: 10rem; }
.frame { aspect-ratio: 1; display: flex; align-items: center; justify-content: center; overflow: hidden;
  border: 1px solid var(--line); border-radius: 6px; background: var(--empty); }
.frame img { width: 100%; height: 100%; object-fit: contain; }
.frame img.small { image-rendering: pixelated; }
.empty { border-style: dashed; color: var(--soft); font-size: .8rem; line-height: 1.3; text-align: center;
  padding: .4rem; overflow-wrap: anywhere; }
.marked .frame { border-color: var(--accent); box-shadow: 0 0 0 2px var(--accent); }
figcaption { font-size: .8rem; line-height: 1.35; margin-top: .35rem; overflow-wrap: anywhere; }
.marked figcaption b { color: var(--accent); }
figcaption b { font-weight: 600; }
figcaption span { display: block; color: var(--soft); font-variant-numeric: tabular-nums; }
@media (max-width: 30rem) {
  main { padding: 1.5rem .75rem 3rem; }
  .row { padding: .7rem .75rem .8rem; }
  .pictures { grid-template-columns: repeat(3, 1fr); gap: .7rem .5rem; }
}
"""


@dataclass(frozen=True)
class SheetPicture:
    """A picture: a file, an image, or uint8 pixels of shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)."""

    image: Path | str | Image.Image | np.ndarray
    caption: str
    detail: str = ""
    """A second line"""
    is_marked: bool = False


@dataclass(frozen=True)
class SheetRow:
    heading: str
    pictures: Sequence[SheetPicture]
    note: str = ""


def contact_sheet(
    rows: Sequence[SheetRow],
    *,
    title: str,
    note: str = "",
    most_rows: int = 500,
    most_pictures: int = 60,
    open_file: Callable[[str], BinaryIO] | None = None,
) -> str:
    """The page. Rows beyond the most, and pictures of a row beyond the most, are counted and not shown.

    A file that cannot be read is an empty box with its name; `open_file` may know of other places for files.

    >>> page = contact_sheet([SheetRow("Nearest to a.png", [])], title="Search")
    >>> "<h2>Nearest to a.png</h2>" in page
    True
    """
    read = functools.cache(functools.partial(_read, open_file or _open))
    shown = [f"<h1>{_text(title)}</h1>"]
    if note:
        shown.append(f'<p class="soft">{_text(note)}</p>')
    shown += [_row(row, most_pictures, read) for row in rows[:most_rows]]
    if len(rows) > most_rows:
        shown.append(f'<p class="soft">{_more(len(rows) - most_rows, "row")} not shown.</p>')
    body = "\n".join(shown)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_CSS}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _row(row: SheetRow, most_pictures: int, read: Callable[[str], str]) -> str:
    parts = [f"<h2>{_text(row.heading)}</h2>"]
    if row.note:
        parts.append(f'<p class="soft">{_text(row.note)}</p>')
    figures = "".join(_figure(picture, read) for picture in row.pictures[:most_pictures])
    if figures:
        parts.append(f'<div class="pictures">{figures}</div>')
    if len(row.pictures) > most_pictures:
        more = _more(len(row.pictures) - most_pictures, "picture")
        parts.append(f'<p class="soft">{more} not shown.</p>')
    return f'<section class="row">{"".join(parts)}</section>'


def _figure(picture: SheetPicture, read: Callable[[str], str]) -> str:
    kind = ' class="marked"' if picture.is_marked else ""
    detail = f"<span>{_text(picture.detail)}</span>" if picture.detail else ""
    return (
        f"<figure{kind}>{_frame(picture, read)}"
        f"<figcaption><b>{_breakable(picture.caption)}</b>{detail}</figcaption></figure>"
    )


def _frame(picture: SheetPicture, read: Callable[[str], str]) -> str:
    """The picture in its frame; `read` reads a file that is shown more than once only once."""
    image = picture.image
    source = read(str(image)) if isinstance(image, str | Path) else _source(image)
    if not source:
        name = _text(Path(str(image)).name)
        return f'<div class="frame empty">{name} cannot be read</div>'
    alt = _text(picture.caption)
    return f'<div class="frame"><img alt="{alt}" loading="lazy" decoding="async" {source}></div>'


def _open(path: str) -> BinaryIO:
    return Path(path).open("rb")


def _read(open_file: Callable[[str], BinaryIO], path: str) -> str:
    """The source of a file's picture; nothing if it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is odd in a file that can be read
            with open_file(path) as file, Image.open(file) as opened:
                opened.draft("RGB", (2 * _MOST_PX, 2 * _MOST_PX))
                return _source(opened)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        return ""


def _source(image: Image.Image | np.ndarray) -> str:
    """What an img element shows, and how."""
    small = _thumbnail(_from_array(image) if isinstance(image, np.ndarray) else image)
    is_small = max(small.size) <= _SMALL_PX
    is_png = is_small or small.mode == "RGBA"
    buffer = io.BytesIO()
    if is_png:
        small.save(buffer, "PNG", optimize=True)
    else:
        small.save(buffer, "JPEG", quality=85)
    data = base64.b64encode(buffer.getvalue()).decode()
    kind = 'class="small" ' if is_small else ""
    return f'{kind}src="data:image/{"png" if is_png else "jpeg"};base64,{data}"'


def _thumbnail(image: Image.Image) -> Image.Image:
    """At most 160 pixels wide and high, upright, in grey, RGB or RGBA; the image itself stays as it is."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, np.float64)
        span = float(np.ptp(values)) or 1.0
        small = Image.fromarray(((values - values.min()) / span * 255).astype(np.uint8))
    else:
        is_clear = image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info
        mode = "L" if image.mode in ("1", "L") else "RGB"
        small = image.convert("RGBA" if is_clear else mode)
    small.thumbnail((_MOST_PX, _MOST_PX))
    return ImageOps.exif_transpose(small)


def _from_array(pixels: np.ndarray) -> Image.Image:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    is_colour = pixels.ndim == 3 and pixels.shape[2] in (3, 4)
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or is_colour) or not pixels.size:
        raise ValueError(
            f"pixels are {pixels.dtype} of shape {pixels.shape}; give uint8, grey or with 3 or 4 channels"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def _more(count: int, what: str) -> str:
    return f"1 more {what} is" if count == 1 else f"{count:,} more {what}s are"


def _breakable(text: str) -> str:
    """Escaped, and a path may go on in the next line."""
    return _text(text).replace("/", "/<wbr>").replace("_", "_<wbr>")


def _text(text: str) -> str:
    """Escaped; what is no text in a file's name becomes a question mark."""
    return html.escape(text.encode("utf-8", "replace").decode())
