"""One image file at a time: what a user's camera, scanner or web page left there, as uint8 of a known shape.

Turned upright as its EXIF data says, transparent parts black, 16-bit greys scaled, other colours converted.
Large JPEGs are decoded at a fraction of their size where that is all that is needed.
"""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge in pixels"""
SUFFIXES = frozenset(
    f".{name}"
    for name in "jpg jpeg png bmp gif tif tiff webp ppm pgm pbm jp2 avif".split()  # noqa: SIM905
)
"""Of files that are taken for images when a folder is looked through"""
_MOST_PIXELS = 50_000_000
"""Of an image once decoded"""
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Wanted:
    """How images are wanted: fitted whole into a square of `size_px`, or all of one `expected` size."""

    size_px: int | None = None
    is_colour: bool = False
    expected: tuple[int, int] | None = None

    def read(self, path: Path, box: Box | None = None) -> np.ndarray | str:
        """(C, H, W) uint8, or why there is none."""
        image = decoded(path, self.size_px if box is None else None, is_colour=self.is_colour)
        if isinstance(image, str):
            return image
        if self.size_px is None and image.size != self.expected:
            return f"has {shown(image.size)} px, most have {shown(self.expected)}"
        if box is not None and not _overlaps(box, image.size):
            return f"has {shown(image.size)} px, and its box lies outside"
        return self.fit(image, box)

    def fit(self, image: Image.Image, box: Box | None = None) -> np.ndarray:
        """An image that was decoded already."""
        plain = _opaque(_eight_bits(image)).convert("RGB" if self.is_colour else "L")
        if box is not None:
            left, top, right, bottom = map(round, box)
            plain = plain.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
        if self.size_px is not None and plain.size != (self.size_px, self.size_px):
            plain = ImageOps.pad(plain, (self.size_px, self.size_px), Image.Resampling.LANCZOS)
        array = np.asarray(plain)
        return array.transpose(2, 0, 1) if self.is_colour else array[None]


def decoded(path: Path, size_px: int | None = None, *, is_colour: bool = True) -> Image.Image | str:
    """The image turned upright, or why there is none.

    If it is to be fitted into `size_px`, it may come at a fraction of its size, twice that at least.
    """
    try:
        if path.stat().st_size == 0:
            return "is empty: it has 0 bytes"
        with Image.open(path) as opened:
            if size_px is not None and opened.format == "JPEG":
                opened.draft("RGB" if is_colour else "L", (2 * size_px, 2 * size_px))
            width, height = opened.size
            if width * height > _MOST_PIXELS:
                return f"has {shown(opened.size)} px, more than {_MOST_PIXELS:,}; make it smaller"
            if getattr(opened, "n_frames", 1) > 1:
                return f"has {opened.n_frames} frames; give one of them"  # type: ignore[attr-defined]
            if opened.mode in ("I", "F"):
                return f"has pixels of 32 bits (mode {opened.mode}), whose scale is unknown; give 8 or 16"
            return ImageOps.exif_transpose(opened).copy()
    except _TOO_LARGE as error:
        return f"is too large to be read: {error}"
    except (OSError, ValueError, SyntaxError, MemoryError) as error:
        return f"cannot be read as an image: {error}"


def size_of(path: Path) -> tuple[int, int] | None:
    """Width and height once upright, if it can be read."""
    try:
        with Image.open(path) as opened:
            # 5 to 8 are the orientations that swap width and height
            width, height = opened.size
            is_turned = opened.getexif().get(0x0112, 1) >= 5
            return (height, width) if is_turned else (width, height)
    except (OSError, ValueError, SyntaxError, *_TOO_LARGE):
        return None


@contextlib.contextmanager
def large_images() -> Iterator[None]:
    """Inside, Pillow leaves it to `decoded` to say what is too large: it knows what is decoded of it."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        with warnings.catch_warnings():
            # damaged EXIF data and odd transparency are no reason not to show an image
            warnings.filterwarnings("ignore", module="PIL")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def shown(size: tuple[int, int] | None) -> str:
    return "none" if size is None else f"{size[0]}x{size[1]}"


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit greys scaled instead of clipped."""
    if not image.mode.startswith("I;16"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))


def _opaque(image: Image.Image) -> Image.Image:
    """On black, as what lies outside an image is."""
    if not image.has_transparency_data:
        return image
    with_alpha = image.convert("RGBA")
    black = Image.new("RGBA", image.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, with_alpha).convert("RGB")


def _overlaps(box: Box, size: tuple[int, int]) -> bool:
    left, top, right, bottom = box
    return left < size[0] and top < size[1] and right > 0 and bottom > 0
