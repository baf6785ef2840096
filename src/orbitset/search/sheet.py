"""A contact sheet: rows of small pictures with captions, as one HTML page that needs nothing beside it."""

import base64
import functools
import io
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps

from orbitset.errors import OrbitsetError
from orbitset.pages import render

_MOST_PX = 160
_SMALL_PX = 64
"""A picture up to this size is enlarged with visible pixels"""


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


def short_names(paths: Sequence[str]) -> list[str]:
    """The names of files, with as many folders before them as tell them apart.

    >>> short_names(["photos/ant/1.png", "photos/bee/1.png", "photos/bee/2.png"])
    ['ant/1.png', 'bee/1.png', '2.png']
    """
    names = {path: Path(path).name for path in paths}
    for depth in range(2, 1 + max((len(Path(path).parts) for path in names), default=0)):
        count = Counter(names.values())
        repeated = [path for path in names if count[names[path]] > 1]
        names |= {path: str(Path(*Path(path).parts[-depth:])) for path in repeated}
    return [names[path] for path in paths]


def contact_sheet(
    rows: Sequence[SheetRow],
    *,
    title: str,
    note: str = "",
    most_rows: int = 500,
    most_pictures: int = 60,
    open_file: Callable[[str], BinaryIO] | None = None,
) -> str:
    """The page. Rows beyond `most_rows`, and pictures of a row beyond `most_pictures`, are only counted.

    An unreadable file becomes an empty box with its name. `open_file` opens files that are no plain paths.

    >>> page = contact_sheet([SheetRow("Nearest to a.png", [])], title="Search")
    >>> "<h2>Nearest to a.png</h2>" in page
    True
    """
    read = functools.cache(functools.partial(_read, open_file or _open))
    shown_rows = [
        {
            "heading": row.heading,
            "note": row.note,
            "pictures": [_picture(picture, read) for picture in row.pictures[:most_pictures]],
            "hidden_pictures": max(0, len(row.pictures) - most_pictures),
        }
        for row in rows[:most_rows]
    ]
    hidden_rows = max(0, len(rows) - most_rows)
    return render("sheet.html", title=title, note=note, rows=shown_rows, hidden_rows=hidden_rows)


def _picture(picture: SheetPicture, read: Callable[[str], tuple[str, bool]]) -> dict[str, Any]:
    """The values for the template; `read` caches files."""
    image = picture.image
    is_file = isinstance(image, str | Path)
    source, is_small = read(str(image)) if is_file else _source(image)  # type: ignore[arg-type]
    name = Path(image).name if is_file else ""  # type: ignore[arg-type]
    return vars(picture) | {"source": source, "is_small": is_small, "name": name}


def _open(path: str) -> BinaryIO:
    return Path(path).open("rb")


def _read(open_file: Callable[[str], BinaryIO], path: str) -> tuple[str, bool]:
    """The source of an image file, as `_source`; empty if it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd but readable files
            with open_file(path) as file, Image.open(file) as opened:
                opened.draft("RGB", (2 * _MOST_PX, 2 * _MOST_PX))
                return _source(opened)
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        Image.DecompressionBombError,
        OrbitsetError,
    ):
        return "", False


def _source(image: Image.Image | np.ndarray) -> tuple[str, bool]:
    """The source of an img element, and whether to enlarge it with visible pixels."""
    small = _thumbnail(_from_array(image) if isinstance(image, np.ndarray) else image)
    is_small = max(small.size) <= _SMALL_PX
    is_png = is_small or small.mode == "RGBA"
    buffer = io.BytesIO()
    if is_png:
        small.save(buffer, "PNG", optimize=True)
    else:
        small.save(buffer, "JPEG", quality=85)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{'png' if is_png else 'jpeg'};base64,{data}", is_small


def _thumbnail(image: Image.Image) -> Image.Image:
    """A copy, at most 160 pixels wide and high, upright, in grey, RGB or RGBA."""
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
