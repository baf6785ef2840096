"""What packs the weights on a GPU is held to this in tests/test_gpu_kernels.py."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from orbitset.cuda.packing import fragment_indices


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
    index = fragment_indices(inputs, outputs, transposed=transposed)
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
