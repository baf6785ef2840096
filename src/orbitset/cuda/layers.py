"""The kernels of the fused network, each instantiated for the layer it serves.

A layer is a 3x3 convolution of `inputs` to `outputs` channels on images of `size` pixels per side.
"""

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from orbitset.cuda import shapes
from orbitset.cuda.nvrtc import Kernel, source
from orbitset.cuda.packing import MAX_LAYERS

Kind = Literal["RAW", "ACT", "ACT_POOL", "ACT_UP", "ACT_SWITCH", "GRAD", "GRAD_POOL", "IM2COL"]
Output = Literal["STORE", "STATS", "MASK", "MASK_POOL", "SUM_MASK", "SWITCH_MASK", "IMAGE"]

MAX_NORMS = 40
MANY_IMAGES = shapes.MANY_IMAGES
SLAB_WIDTH = 128
"""Mirrors finish_step.cu: how many weights a block adds up."""
REPLICAS = 4
"""Mirrors common.cu: how often the sums of a batch norm are kept."""
_SHARED_BYTES = 96 * 1024
"""What a guessed shape may take, so that two blocks fit on a multiprocessor"""


class Norm(ctypes.Structure):
    """Mirrors `struct Norm` of common.cu."""

    _fields_ = [
        ("gamma", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("grad_sums", ctypes.c_void_p),
        ("count", ctypes.c_float),
        ("eps", ctypes.c_float),
    ]


class Operand(ctypes.Structure):
    """Mirrors `struct Operand` of common.cu."""

    _fields_ = [
        ("values", ctypes.c_void_p),
        ("pre", ctypes.c_void_p),
        ("switches", ctypes.c_void_p),
        ("norm", Norm),
    ]


class Pair(ctypes.Structure):
    """Mirrors `struct Pair` of weight_gradient.cu."""

    _fields_ = [("shifted", Operand), ("still", Operand)]


class Slabs(ctypes.Structure):
    """Mirrors `struct Slabs` of finish_step.cu."""

    _fields_ = [
        ("slabs", ctypes.c_void_p * 2),
        ("counts", ctypes.c_int * 2),
        ("gradient", ctypes.c_void_p),
        ("inputs", ctypes.c_int),
        ("outputs", ctypes.c_int),
        ("stride", ctypes.c_int),
        ("first_block", ctypes.c_int),
    ]


class NormUpdate(ctypes.Structure):
    """Mirrors `struct NormUpdate` of finish_step.cu."""

    _fields_ = [
        ("norm", Norm),
        ("running_mean", ctypes.c_void_p),
        ("running_variance", ctypes.c_void_p),
        ("gamma_gradient", ctypes.c_void_p),
        ("beta_gradient", ctypes.c_void_p),
        ("batches", ctypes.c_void_p),
        ("channels", ctypes.c_int),
        ("momentum", ctypes.c_float),
    ]


@dataclass(frozen=True)
class ConvolutionShape:
    """How a convolution is cut up: pixels per tile, and per warp MT x 16 pixels by NT x 8 channels."""

    pixels: int
    mt: int
    nt: int
    min_blocks: int
    buffers: int


@dataclass(frozen=True)
class GradientShape:
    """How a weight gradient is cut up: warps along the inputs, the outputs (NT x 8 each) and the pixels."""

    pixels: int
    warps_m: int
    nt: int
    warps_n: int
    warps_k: int
    min_blocks: int
    buffers: int


def operand(
    values: Tensor | None,
    pre: Tensor | None = None,
    norm: Norm | None = None,
    switches: Tensor | None = None,
) -> Operand:
    places = (None if part is None else part.data_ptr() for part in (values, pre, switches))
    return Operand(*places, norm or Norm())


def tile(size: int, pixels: int) -> tuple[int, int, int]:
    """Images, rows and columns of a tile of so many pixels.

    >>> tile(64, 512), tile(8, 128)
    ((1, 16, 32), (2, 8, 8))
    """
    columns = min(32, size)
    rows = min(size, pixels // columns)
    return pixels // (rows * columns), rows, columns


def convolution_shape(
    size: int,
    inputs: int,
    outputs: int,
    kind: Kind,
    output: Output,
    *,
    gives_weights: bool = False,
    images: int,
) -> ConvolutionShape:
    """As measured, or a guess for layers that were not."""
    table = shapes.BOTH_GRADIENTS if gives_weights else shapes.CONVOLUTIONS
    measured = table.get((size, inputs, outputs, *_measured_as(kind, output)))
    if measured is not None:
        return ConvolutionShape(*measured[images >= MANY_IMAGES])
    for pixels in (256, 128, 64):
        shape = ConvolutionShape(pixels, 4, min(outputs, 32) // 8, min_blocks=1, buffers=1)
        _, _, threads, shared = convolution_plan(size, inputs, outputs, kind, output, shape)
        if threads <= 256 and shared <= _SHARED_BYTES and pixels <= 32 * size:
            break
    return shape


def can_give_weights(size: int, inputs: int, outputs: int, kind: Kind, output: Output) -> bool:
    """Whether a convolution that gives its input's gradient can give that of its weights beside it."""
    return (size, inputs, outputs, *_measured_as(kind, output)) in shapes.BOTH_GRADIENTS


def _measured_as(kind: Kind, output: Output) -> tuple[Kind, Output]:
    """Un-pooling by switches is cut up as un-pooling by copies was measured to be best."""
    return (
        "ACT_UP" if kind == "ACT_SWITCH" else kind,
        "SUM_MASK" if output == "SWITCH_MASK" else output,
    )


def gradient_shape(
    size: int, inputs: int, outputs: int, kind: Kind, *, is_tied: bool, images: int
) -> GradientShape:
    """As measured, or a guess for layers that were not; the kind is that of the encoder's input."""
    measured = shapes.WEIGHT_GRADIENTS.get((size, inputs, outputs, kind, is_tied))
    if measured is not None:
        return GradientShape(*measured[images >= MANY_IMAGES])
    warps_m, nt = min(inputs, 32) // 16, min(outputs, 32) // 8
    # the kinds that take most shared memory: pooling is undone beside what is pooled
    worst: tuple[Kinds, Kinds] = (("ACT_POOL", "GRAD"), ("GRAD", "ACT"))
    for pixels in (256, 128, 64):
        shape = GradientShape(pixels, warps_m, nt, 1, 4 // warps_m, min_blocks=1, buffers=1)
        shared = weight_gradient_plan(size, inputs, outputs, *worst, shape)[3]
        if shared <= _SHARED_BYTES and pixels <= 32 * size:
            break
    return shape


def _tile_bytes(
    kind: Kind, channels: int, tile_shape: tuple[int, int, int], halo: int
) -> tuple[int, int]:
    """`Tile::BYTES` and `Tile::EXTRA` of tile.cu."""
    images, rows, columns = tile_shape
    if kind == "IM2COL":
        return images * rows * columns * _pitch(channels), 4 * images * (rows + 2) * (columns + 8)
    high, wide = rows + 2 * halo, columns + 2 * halo
    places = {"ACT_POOL": 3, "GRAD": 1}.get(kind, 0) * images * high * wide
    if kind == "GRAD_POOL":
        places = images * (rows // 2 + 2 * halo) * (columns // 2 + 2 * halo)
    is_swapped = channels <= 32
    width = -(-wide // 8) * 8 if is_swapped else wide
    pitch = _pitch(channels)
    return images * high * width * pitch, places * 2 * channels


def _pitch(channels: int) -> int:
    """`Layout::PITCH` of tile.cu."""
    return 2 * channels + (0 if channels <= 32 else 16)


_MASKED_BY: Mapping[Output, Kind] = {
    "MASK": "ACT", "MASK_POOL": "ACT_POOL", "SUM_MASK": "ACT_UP", "SWITCH_MASK": "ACT_SWITCH",
}  # fmt: skip


def convolution_plan(
    size: int,
    inputs: int,
    outputs: int,
    kind: Kind,
    output: Output,
    shape: ConvolutionShape,
    gives_weights: bool = False,
    gives_first: bool = False,
) -> tuple[str, str, int, int]:
    """Name, source, threads and bytes of shared memory."""
    cut = images, rows, columns = tile(size, shape.pixels)
    taps = 1 if kind == "IM2COL" else 9
    warps_m, warps_n = shape.pixels // (16 * shape.mt), outputs // (8 * shape.nt)
    threads = 32 * warps_m * warps_n
    tile_bytes, extra = _tile_bytes(kind, inputs, cut, 1 if taps == 9 else 0)
    still_at = buffer = max(tile_bytes, shape.pixels * _pitch(outputs))
    if gives_weights:
        still, still_extra = _tile_bytes(_MASKED_BY[output], outputs, cut, 0)
        buffer, extra = buffer + still, extra + still_extra
    first_at = shape.buffers * buffer + extra
    surroundings = sum(_tile_bytes("IM2COL", 16, cut, 0)) if gives_first else 0
    shared = max(first_at + surroundings, 16 * threads * 4)
    constants = {
        "IN": inputs, "OUT": outputs, "SIZE": size, "ROWS": rows, "COLUMNS": columns,
        "IMAGES": images, "TAPS": taps, "MT": shape.mt, "NT": shape.nt, "WARPS_M": warps_m,
        "WARPS_N": warps_n, "MIN_BLOCKS": shape.min_blocks, "BUFFERS": shape.buffers,
        "BUFFER_BYTES": buffer, "KIND": kind, "OUTPUT": output, "STILL_AT": still_at,
        "GIVES_WEIGHTS": int(gives_weights), "GIVES_FIRST": int(gives_first),
        "FIRST_AT": first_at,
    }  # fmt: skip
    name = f"convolution_{size}px_{inputs}_to_{outputs}_{kind}_{output}"
    name += "_and_weights" * gives_weights + "_and_first" * gives_first
    return name, _checked("convolution.cu", constants, name), threads, shared


@functools.cache
def convolution(
    size: int,
    inputs: int,
    outputs: int,
    kind: Kind,
    output: Output,
    shape: ConvolutionShape,
    gives_weights: bool = False,
    gives_first: bool = False,
) -> Kernel:
    plan = convolution_plan(size, inputs, outputs, kind, output, shape, gives_weights, gives_first)
    name, text, threads, shared = plan
    return Kernel(text, name, threads=threads, shared_bytes=shared)


Kinds = tuple[Kind, Kind]
"""Of the shifted and of the still operand."""


def weight_gradient_plan(
    size: int,
    inputs: int,
    outputs: int,
    encoder: Kinds,
    decoder: Kinds | None,
    shape: GradientShape,
) -> tuple[str, str, int, int]:
    """Name, source, threads and bytes of shared memory."""
    cut = images, rows, columns = tile(size, shape.pixels)
    taps = 1 if encoder[0] == "IM2COL" else 9
    in_block, out_block = 16 * shape.warps_m, 8 * shape.nt * shape.warps_n
    threads = 32 * shape.warps_m * shape.warps_n * shape.warps_k
    shared = (shape.warps_k - 1) * shape.nt * 4 * shape.warps_m * shape.warps_n * 32 * 4
    for kinds in (encoder, decoder or encoder):
        shifted, shifted_extra = _tile_bytes(kinds[0], in_block, cut, 1 if taps == 9 else 0)
        still, still_extra = _tile_bytes(kinds[1], out_block, cut, 0)
        shared = max(shared, shape.buffers * (shifted + still) + shifted_extra + still_extra)
    other = decoder or encoder
    constants = {
        "IN": inputs, "OUT": outputs, "SIZE": size, "ROWS": rows, "COLUMNS": columns,
        "IMAGES": images, "TAPS": taps, "NT": shape.nt, "WARPS_M": shape.warps_m,
        "WARPS_N": shape.warps_n, "WARPS_K": shape.warps_k, "MIN_BLOCKS": shape.min_blocks,
        "BUFFERS": shape.buffers, "KIND": encoder[0], "OTHER_KIND": encoder[1],
        "HAS_DECODER": int(decoder is not None), "DECODER_KIND": other[0],
        "DECODER_OTHER_KIND": other[1],
    }  # fmt: skip
    tied = "_tied" if decoder else ""
    name = f"weight_gradient_{size}px_{inputs}_to_{outputs}_{encoder[0]}{tied}"
    return name, _checked("weight_gradient.cu", constants, name), threads, shared


@functools.cache
def weight_gradient(
    size: int,
    inputs: int,
    outputs: int,
    encoder: Kinds,
    decoder: Kinds | None,
    shape: GradientShape,
) -> Kernel:
    name, text, threads, shared = weight_gradient_plan(
        size, inputs, outputs, encoder, decoder, shape
    )
    return Kernel(text, name, threads=threads, shared_bytes=shared)


@functools.cache
def pointwise(size: int, channels: int, kind: Kind, output: Output) -> Kernel:
    constants = {
        "SIZE": size, "CHANNELS": channels, "THREADS": 256, "KIND": kind, "OUTPUT": output,
    }  # fmt: skip
    name = f"pointwise_{size}px_{channels}_{kind}_{output}"
    return Kernel(_checked("pointwise.cu", constants, name), name, threads=256)


def switches_plan(size: int, channels: int) -> tuple[str, str, int]:
    """Name, source and threads."""
    name, threads = f"switches_{size}px_{channels}", 256
    constants = {"SIZE": size, "CHANNELS": channels, "THREADS": threads}
    return name, _checked("switches.cu", constants, name), threads


@functools.cache
def find_switches(size: int, channels: int) -> Kernel:
    """Of windows whose maxima have `size` pixels per side."""
    name, text, threads = switches_plan(size, channels)
    return Kernel(text, name, threads=threads)


@functools.cache
def sum_slabs(*, has_many: bool) -> Kernel:
    """Many slabs, as there are of layers with few weights, are shared by more threads."""
    down = 32 if has_many else 8
    return Kernel(finish_step_source(down), "sum_slabs", threads=32 * down)


@functools.cache
def first_gradient() -> Kernel:
    return Kernel(finish_step_source(), "first_gradient", threads=160)


@functools.cache
def update_norms() -> Kernel:
    return Kernel(finish_step_source(), "update_norms", threads=128)


def finish_step_source(down: int = 8) -> str:
    sizes = {"MAX_LAYERS": MAX_LAYERS, "MAX_NORMS": MAX_NORMS, "DOWN": down}
    text = _checked("finish_step.cu", sizes, "")
    return text + (
        f"static_assert(WIDTH == {SLAB_WIDTH} && sizeof(Slabs) == {ctypes.sizeof(Slabs)} && "
        f'sizeof(NormUpdate) == {ctypes.sizeof(NormUpdate)}, "as Python has it");\n'
    )


def _checked(file: str, constants: Mapping[str, object], name: str) -> str:
    """Source that does not compile if what Python mirrors of it has become another."""
    return source(file, constants, name) + (
        f"static_assert(sizeof(Operand) == {ctypes.sizeof(Operand)} && "
        f'REPLICAS == {REPLICAS}, "as Python has it");\n'
    )
