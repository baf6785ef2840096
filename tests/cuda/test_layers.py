"""What of the kernels can be held to a reference without a GPU; the rest is in tests/test_gpu_kernels.py."""

import itertools

import pytest

from orbitset.cuda import layers, shapes


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


@pytest.mark.parametrize("images", [256, 1024])
def test_shapes_that_give_weights_too_fit_a_multiprocessor(images):
    """Its warps cover the channels of both operands, 16 by 16, and share the pixels evenly."""
    for size, inputs, outputs, kind, output in shapes.BOTH_GRADIENTS:
        layer = (size, inputs, outputs, kind, output)
        assert layers.can_give_weights(*layer)
        shape = layers.convolution_shape(*layer, gives_weights=True, images=images)
        gives_first = (kind, output, outputs) == ("GRAD_POOL", "MASK", 16)
        _, _, threads, shared = layers.convolution_plan(*layer, shape, True, gives_first)
        own = shared + 16 * (inputs + outputs) + 1024  # coefficients, and what the system takes
        assert threads * shape.min_blocks <= 2048 and own * shape.min_blocks <= 228 * 1024
        warps_k, rest = divmod(threads // 32, inputs * outputs // 256)
        assert rest == 0 and shape.pixels % (16 * warps_k) == 0


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
    for size, inputs, outputs, *_ in [
        *shapes.CONVOLUTIONS,
        *shapes.BOTH_GRADIENTS,
        *shapes.WEIGHT_GRADIENTS,
    ]:
        assert size in (8, 16, 32, 64) and {inputs, outputs} <= {16, 32, 64, 128}
