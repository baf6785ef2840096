"""What of the kernels can be held to a reference without a GPU; the rest is in tests/test_gpu_kernels.py."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from orbitset.kernels import layers, shapes


def _unpacked(packed, taps, rows, columns):
    """The matrices (tap, row, column) a warp would see, by the layout of the tensor cores' second operand."""
    matrices = torch.zeros(taps, rows, columns, dtype=torch.float64)
    places = packed.view(taps, rows // 16, columns // 16, 32, 4, 2)
    for tap, step, block, lane, register, half in itertools.product(*map(range, places.shape)):
        row = step * 16 + (register % 2) * 8 + 2 * (lane % 4) + half
        column = block * 16 + (register // 2) * 8 + lane // 4
        matrices[tap, row, column] = places[tap, step, block, lane, register, half]
    return matrices


def _pack(weight, *, transposed):
    outputs, inputs = weight.shape[:2]
    index = layers.fragment_indices(inputs, outputs, transposed=transposed)
    flat = torch.cat([weight.permute(0, 2, 3, 1).reshape(-1), torch.zeros(1, dtype=torch.float64)])
    return flat[index]


def _convolve(images, matrices):
    """Sum over taps of shifted pixels times matrices, as the kernel does it."""
    padded = F.pad(images, (1, 1, 1, 1)).permute(0, 2, 3, 1)
    height, width = images.shape[2:]
    total = 0
    for tap, matrix in enumerate(matrices):
        row, column = divmod(tap, 3)
        total = total + padded[:, row : row + height, column : column + width] @ matrix
    return total.permute(0, 3, 1, 2)


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (16, 32), (32, 16)])
def test_packed_weights_convolve_forward_and_transposed(inputs, outputs):
    weight = torch.randn(outputs, inputs, 3, 3, dtype=torch.float64)
    images = torch.randn(2, inputs, 5, 6, dtype=torch.float64)
    forward = _unpacked(_pack(weight, transposed=False), 9, inputs, outputs)
    torch.testing.assert_close(_convolve(images, forward), F.conv2d(images, weight, padding=1))
    features = torch.randn(2, outputs, 5, 6, dtype=torch.float64)
    back = _unpacked(_pack(weight, transposed=True), 9, outputs, inputs)
    expected = F.conv_transpose2d(features, weight, padding=1)
    torch.testing.assert_close(_convolve(features, back), expected)


def test_one_channel_is_read_as_nine_and_written_as_sixteen():
    weight = torch.randn(16, 1, 3, 3, dtype=torch.float64)
    images = torch.randn(2, 1, 5, 6, dtype=torch.float64)
    (matrix,) = _unpacked(_pack(weight, transposed=False), 1, 16, 16)
    assert (matrix[9:] == 0).all()
    surroundings = F.unfold(images, 3, padding=1).transpose(1, 2)
    expected = F.conv2d(images, weight, padding=1).flatten(2).transpose(1, 2)
    torch.testing.assert_close(surroundings @ matrix[:9], expected)
    features = torch.randn(2, 16, 5, 6, dtype=torch.float64)
    back = _unpacked(_pack(weight, transposed=True), 9, 16, 16)
    expected = F.conv_transpose2d(features, weight, padding=1)
    torch.testing.assert_close(_convolve(features, back)[:, :1], expected)


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("pixels", [64, 128, 256, 512])
def test_tiles_cover_an_image(size, pixels):
    if pixels > 32 * size:
        pytest.skip("larger than the shapes that are used")
    images, rows, columns = layers.tile(size, pixels)
    assert images * rows * columns == pixels
    assert size % rows == 0 and size % columns == 0
    assert images == 1 or rows == columns == size


_LAYERS = [
    (size, inputs, outputs)
    for size in (4, 8, 16, 32, 64, 128)
    for inputs, outputs in itertools.product((16, 32, 64, 128), repeat=2)
]


@pytest.mark.parametrize("kind", ["ACT", "ACT_POOL", "ACT_UP", "ACT_SWITCH", "GRAD", "GRAD_POOL"])
@pytest.mark.parametrize("images", [1, 256, 1024])
def test_every_convolution_has_a_shape_that_fits_a_block(kind, images):
    """At most 1,024 threads and 227 KiB of shared memory, and whole warps of work."""
    for size, inputs, outputs in _LAYERS:
        for output in ("STATS", "MASK", "MASK_POOL", "SUM_MASK", "SWITCH_MASK"):
            layer = (size, inputs, outputs, kind, output)
            shape = layers.convolution_shape(*layer, images=images)
            _, _, threads, shared = layers.convolution_plan(*layer, shape)
            assert 32 <= threads <= 1024 and shared <= 222 * 1024
            assert shape.pixels % (16 * shape.mt) == 0 and outputs % (8 * shape.nt) == 0


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("images", [1, 256, 1024])
def test_every_weight_gradient_has_a_shape_that_fits_a_block(is_tied, images):
    for size, inputs, outputs in _LAYERS:
        for encoder, decoder in (
            (("ACT", "GRAD_POOL"), ("GRAD", "ACT_UP")),
            (("ACT_POOL", "GRAD"), ("GRAD", "ACT")),
        ):
            shape = layers.gradient_shape(
                size, inputs, outputs, encoder[0], is_tied=is_tied, images=images
            )
            _, _, threads, shared = layers.weight_gradient_plan(
                size, inputs, outputs, encoder, decoder if is_tied else None, shape
            )
            assert 32 <= threads <= 1024 and shared <= 222 * 1024
            assert inputs % (16 * shape.warps_m) == 0
            assert outputs % (8 * shape.nt * shape.warps_n) == 0
            assert shape.pixels % (16 * shape.warps_k) == 0


def test_measured_shapes_are_of_layers_that_exist():
    for size, inputs, outputs, *_ in [*shapes.CONVOLUTIONS, *shapes.WEIGHT_GRADIENTS]:
        assert size in (8, 16, 32, 64) and {inputs, outputs} <= {16, 32, 64, 128}
