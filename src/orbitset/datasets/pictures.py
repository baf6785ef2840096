"""One image file at a time: what a user's camera, scanner or web page left there, as uint8 of a known shape.

Turned upright as its EXIF data says, transparent parts black, 16-bit greys scaled, other colours converted.
Large JPEGs are decoded at a fraction of their size where that is all that is needed.
"""

import contextlib
import io
import logging
import math
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from orbitset.errors import ConfigError
from orbitset.limits import BYTES_PER_PIXEL, PIXELS, decoding


class Shares(NamedTuple):
    """Left, top, right and bottom as shares of an image, whatever its size."""

    left: float
    top: float
    right: float
    bottom: float


Box = tuple[float, float, float, float] | Shares
"""Left, top, right and bottom edge in pixels, or as shares"""
SUFFIXES = frozenset(
    f".{name}"
    for name in "jpg jpeg png bmp gif tif tiff webp ppm pgm pbm jp2 avif".split()  # noqa: SIM905
)
"""Of files that are taken for images when a folder is looked through"""
_BYTES_OF_COEFFICIENTS = 6
"""Of a pixel of a JPEG in several scans, whose coefficients are all kept however small it is decoded"""
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_CONVERTED_BY = {"LAB": "RGB", "La": "LA"}
"""Modes that Pillow turns into grey or colour in two steps only"""
logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors go to stderr


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes inside a file that are an image: a member of a tar. Every thread opens the file for itself."""

    file: Path
    start: int
    size: int

    def open(self) -> BinaryIO:
        with self.file.open("rb") as file:
            file.seek(self.start)
            return io.BytesIO(file.read(self.size))


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """An image that a function or an array gave, or a frame of a video."""

    pixels: Image.Image | np.ndarray
    """An array is uint8 (C, H, W)"""

    @property
    def image(self) -> Image.Image:
        if isinstance(self.pixels, Image.Image):
            return self.pixels
        is_grey = len(self.pixels) == 1
        return Image.fromarray(self.pixels[0] if is_grey else self.pixels.transpose(1, 2, 0))

    @property
    def size(self) -> int:
        image = self.image
        return math.prod(image.size) * len(image.getbands())

    def open(self) -> BinaryIO:
        """The image as PNG."""
        file = io.BytesIO()
        self.image.save(file, "PNG")
        file.seek(0)
        return file


ImageFile = Path | Stretch | InMemory
"""What an image is read from"""


def open_bytes(image: ImageFile) -> BinaryIO:
    return image.open("rb") if isinstance(image, Path) else image.open()


def num_bytes(image: ImageFile) -> int:
    return image.stat().st_size if isinstance(image, Path) else image.size


def stamp(image: Path | Stretch) -> tuple[int, ...]:
    """Size and time of a file: they differ if its content may have changed."""
    try:
        about = (image if isinstance(image, Path) else image.file).stat()
    except OSError:
        return (-1, -1)
    inside = () if isinstance(image, Path) else (image.start, image.size)
    return (about.st_size, about.st_mtime_ns, *inside)


@dataclass(frozen=True)
class ImageForm:
    """The form of decoded images: fitted whole into a square of `size_px`, or all of one `expected` size."""

    size_px: int | None = None
    is_colour: bool = False
    expected: tuple[int, int] | None = None

    def read(self, file: ImageFile, box: Box | None = None) -> np.ndarray | str:
        """(C, H, W) uint8, or why there is none."""
        size_px = self.size_px if box is None else None
        with _decoded(file, size_px, box, is_colour=self.is_colour) as image:
            if isinstance(image, str):
                return image
            if self.size_px is None and image.size != self.expected:
                return f"has {dimensions(image.size)} px, most have {dimensions(self.expected)}"
            if fault := box_fault(box, image.size):
                return fault
            try:
                return self.fit(image, box)
            except Exception as error:
                return why_unreadable(error)

    def fit(self, image: Image.Image, box: Box | None = None) -> np.ndarray:
        """An image that was decoded already."""
        plain = _opaque(_eight_bits(image)).convert("RGB" if self.is_colour else "L")
        if box is not None:
            left, top, right, bottom = _pixels(box, image.size)
            plain = plain.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
        if self.size_px is not None and plain.size != (self.size_px, self.size_px):
            plain = _padded(plain, self.size_px)
        array = np.asarray(plain)
        return array.transpose(2, 0, 1) if self.is_colour else array[None]


def decoded(
    file: ImageFile, size_px: int | None = None, *, is_colour: bool = True
) -> Image.Image | str:
    """The image turned upright, or why there is none.

    If it is to be fitted into `size_px`, it may come at a fraction of its size, twice that at least.
    """
    with _decoded(file, size_px, is_colour=is_colour) as image:
        return image


@contextlib.contextmanager
def _decoded(
    file: ImageFile, size_px: int | None, box: Box | None = None, *, is_colour: bool
) -> Iterator[Image.Image | str]:
    """The same; while the image is in use, its memory counts among that of all images in use."""
    with contextlib.ExitStack() as stack:
        try:
            image = _within_limits(file, size_px, box, is_colour, stack)
        except Exception as error:
            image = why_unreadable(error)
        yield image


def _within_limits(
    file: ImageFile,
    size_px: int | None,
    box: Box | None,
    is_colour: bool,
    stack: contextlib.ExitStack,
) -> Image.Image | str:
    if isinstance(file, InMemory):
        return file.image
    if num_bytes(file) == 0:
        return "is empty: it has 0 bytes"
    with _opened(file) as opened:
        needed = _bytes_of_coefficients(opened)
        if needed > BYTES_PER_PIXEL * PIXELS.value:
            return (
                f"is a progressive JPEG of {dimensions(opened.size)} px, and decoding it takes "
                f"{needed / 1e9:.1f} GB; save it as a baseline JPEG, or raise {PIXELS.variable}"
            )
        if size_px is not None and opened.format in ("JPEG", "MPO"):
            opened.draft("RGB" if is_colour else "L", (2 * size_px, 2 * size_px))
        needed += BYTES_PER_PIXEL * (math.prod(opened.size) + _pixels_of_box(box, opened.size))
        stack.enter_context(decoding(needed))
        return upright(opened)


def upright(image: Image.Image) -> Image.Image | str:
    """An open image turned as its EXIF data says, or why it cannot be used."""
    if math.prod(image.size) > PIXELS.value:
        return f"has {dimensions(image.size)} px, {PIXELS.described}"
    if image.format == "EPS":
        return "is PostScript, a program rather than an image"
    # the pictures after the first of an MPO are previews, depths or the other eye's
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if frames > 1:
        return f"has {frames} frames; give one of them"
    is_sixteen = image.mode == "I" and image.format in ("PNG", "PPM")
    if image.mode in ("I", "F") and not is_sixteen:
        return f"has pixels of 32 bits (mode {image.mode}), whose scale is unknown; give 8 or 16"
    image.load()
    turn = _TURNS.get(_orientation(image))
    turned = image.copy() if turn is None else image.transpose(turn)
    return _eight_bits(turned, is_sixteen=is_sixteen)


def why_unreadable(error: Exception) -> str:
    """What an error says of a file: damaged ones raise whatever their reader stumbles over.

    An error of a setting, such as a limit that is no number, is not the file's, and is raised again.
    """
    if isinstance(error, ConfigError):
        raise error
    if isinstance(error, _TOO_LARGE):
        return f"is too large to be read: {error}"
    if isinstance(error, UnidentifiedImageError):
        return "cannot be read as an image: it is of no known format"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"cannot be read as an image: {reason}"


def size_of(file: ImageFile) -> tuple[int, int] | None:
    """Width and height once upright, if it can be read."""
    if isinstance(file, InMemory):
        return file.image.size
    try:
        with _opened(file) as opened:
            # 5 to 8 are the orientations that swap width and height
            width, height = opened.size
            return (height, width) if _orientation(opened) in (5, 6, 7, 8) else (width, height)
    except Exception:
        return None


_LARGE = threading.Lock()
_allowed = contextlib.ExitStack()
_inside = 0


@contextlib.contextmanager
def large_images() -> Iterator[None]:
    """Inside, Pillow leaves it to `decoded` to say what is too large: it knows what is decoded of it.

    What was set before comes back when the last of those who are inside has left, in whatever order they do.
    """
    global _inside
    with _LARGE:
        if not _inside:
            _allowed.enter_context(_all_sizes())
        _inside += 1
    try:
        yield
    finally:
        with _LARGE:
            _inside -= 1
            if not _inside:
                _allowed.close()


@contextlib.contextmanager
def _all_sizes() -> Iterator[None]:
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        with warnings.catch_warnings():
            # damaged EXIF data and odd transparency are no reason not to show an image
            warnings.filterwarnings("ignore", module="PIL")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def dimensions(size: tuple[int, int] | None) -> str:
    return "none" if size is None else f"{size[0]}x{size[1]}"


def _opened(file: Path | Stretch) -> Image.Image:
    """Of a path Pillow is told the name, so that it can map what lies there uncompressed."""
    return Image.open(file if isinstance(file, Path) else file.open())


def _orientation(image: Image.Image) -> int:
    try:
        orientation: int = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF data, which may be anything
        return 1
    return orientation


def _eight_bits(image: Image.Image, *, is_sixteen: bool = False) -> Image.Image:
    """16-bit greys scaled instead of clipped."""
    if not (is_sixteen or image.mode.startswith("I;16")):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))


def _opaque(image: Image.Image) -> Image.Image:
    """On black, as what lies outside an image is."""
    if image.mode in _CONVERTED_BY:
        image = image.convert(_CONVERTED_BY[image.mode])
    if not image.has_transparency_data:
        return image
    with_alpha = image.convert("RGBA")
    black = Image.new("RGBA", image.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, with_alpha).convert("RGB")


def _padded(image: Image.Image, size_px: int) -> Image.Image:
    """Whole in the middle of a black square; at least one pixel of it, however thin it is."""
    width, height = image.size
    if 2 * size_px * min(width, height) <= max(width, height):
        thin = (1, size_px) if width < height else (size_px, 1)
        image = image.resize(thin, Image.Resampling.LANCZOS)
    return ImageOps.pad(image, (size_px, size_px), Image.Resampling.LANCZOS)


def _pixels(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    scale = (*size, *size) if isinstance(box, Shares) else (1, 1, 1, 1)
    left, top, right, bottom = (round(edge * by) for edge, by in zip(box, scale, strict=True))
    return left, top, right, bottom


def box_fault(box: Box | None, size: tuple[int, int]) -> str | None:
    """Why an image of that size cannot be cut to its box, if it cannot."""
    if box is None:
        return None
    left, top, right, bottom = _pixels(box, size)
    if left >= size[0] or top >= size[1] or right <= 0 or bottom <= 0:
        return f"has {dimensions(size)} px, and its box lies outside"
    if _pixels_of_box(box, size) > PIXELS.value:
        return f"has a box of {right - left:,}x{bottom - top:,} px, {PIXELS.described}"
    return None


def _pixels_of_box(box: Box | None, size: tuple[int, int]) -> int:
    if box is None:
        return 0
    left, top, right, bottom = _pixels(box, size)
    return max(1, right - left) * max(1, bottom - top)


def _bytes_of_coefficients(image: Image.Image) -> int:
    """What a JPEG takes beside its pixels if it comes in several scans, as progressive ones do."""
    if image.format not in ("JPEG", "MPO"):
        return 0
    is_at_once = False
    if image.format == "JPEG" and "progressive" not in image.info:
        # Pillow has just read the header of the first scan; if that is the only one, it names all components
        num_components, file = image.layers, image.fp  # type: ignore[attr-defined]
        length = 6 + 2 * num_components
        file.seek(-length - 2, 1)
        is_at_once = file.read(length + 2).startswith(b"\xff\xda" + length.to_bytes(2, "big"))
    return 0 if is_at_once else _BYTES_OF_COEFFICIENTS * math.prod(image.size)
