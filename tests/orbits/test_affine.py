import math

import pytest
import torch

from orbitset.errors import ConfigError
from orbitset.orbits.affine import IDENTITY, AffineRanges, sample_affine, warp


def slow_warp(image_HW, params, canvas_px):
    """One image, pixel by pixel in float64: the forward map by its definition, then its inverse."""
    rotation, shear, scale, right, down = params
    cos, sin = math.cos(rotation), math.sin(rotation)
    a, b = scale * cos, scale * (cos * shear - sin)
    c, d = scale * sin, scale * (sin * shear + cos)
    height, width = len(image_HW), len(image_HW[0])
    middle = (canvas_px - 1) / 2
    shown = torch.zeros(canvas_px, canvas_px, dtype=torch.float64)
    for row in range(canvas_px):
        for column in range(canvas_px):
            x, y = column - middle - right, row - middle - down
            source_x = (d * x - b * y) / (a * d - b * c) + (width - 1) / 2
            source_y = (a * y - c * x) / (a * d - b * c) + (height - 1) / 2
            shown[row, column] = bilinear(image_HW, source_x, source_y)
    return shown


def bilinear(image_HW, x, y):
    total = 0.0
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < len(image_HW) and 0 <= column < len(image_HW[0]):
                total += (1 - abs(x - column)) * (1 - abs(y - row)) * image_HW[row][column]
    return total


def random_images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def show(image, *, canvas_px, rotation=0.0, shear=0.0, scale=1.0, right=0.0, down=0.0):
    """A small uint8 image given as rows, warped, and read back as whole grey levels."""
    images = torch.tensor(image, dtype=torch.uint8)[None, None]
    params = torch.tensor([[rotation, shear, scale, right, down]])
    return (warp(images, params, canvas_px)[0, 0] * 255).round().int().tolist()


@pytest.mark.parametrize("canvas_px", [11, 12])
@pytest.mark.parametrize("size", [(8, 8), (7, 7), (6, 9), (9, 4)])
@pytest.mark.parametrize("channels", [1, 3])
def test_warp_equals_the_slow_oracle(size, canvas_px, channels):
    images = random_images(4, channels, *size)
    ranges = AffineRanges(translation_px=4.0)
    params = sample_affine(4, ranges, torch.Generator().manual_seed(1))
    shown = warp(images, params, canvas_px)
    for n in range(4):
        for c in range(channels):
            grey = (images[n, c].double() / 255).tolist()
            expected = slow_warp(grey, params[n].double().tolist(), canvas_px)
            torch.testing.assert_close(shown[n, c].double(), expected, atol=1e-4, rtol=0)


def test_warp_equals_the_slow_oracle_on_the_papers_canvas():
    images = random_images(2, 1, 28, 28)
    params = sample_affine(2, AffineRanges(), torch.Generator().manual_seed(2))
    for image, row, shown in zip(images, params, warp(images, params, 64), strict=True):
        expected = slow_warp((image[0].double() / 255).tolist(), row.double().tolist(), 64)
        torch.testing.assert_close(shown[0].double(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("height", "width", "canvas_px"), [(4, 4, 8), (3, 5, 9), (4, 2, 4)])
def test_identity_places_the_image_in_the_middle_of_a_black_canvas(height, width, canvas_px):
    images = random_images(2, 3, height, width)
    expected = torch.zeros(2, 3, canvas_px, canvas_px)
    top, left = (canvas_px - height) // 2, (canvas_px - width) // 2
    expected[..., top : top + height, left : left + width] = images / 255
    shown = warp(images, torch.tensor([IDENTITY, IDENTITY]), canvas_px)
    torch.testing.assert_close(shown, expected, atol=1e-5, rtol=0)


def test_identity_on_a_smaller_canvas_keeps_the_middle():
    image = [[1, 2, 3, 4], [5, 60, 70, 8], [9, 100, 110, 12], [13, 14, 15, 16]]
    assert show(image, canvas_px=2) == [[60, 70], [100, 110]]


def test_rotation_by_90_degrees_turns_right_into_down():
    image = [[10, 20], [30, 40]]
    assert show(image, canvas_px=2, rotation=math.pi / 2) == [[30, 10], [40, 20]]


def test_rotation_by_180_degrees_turns_the_image_upside_down():
    image = [[10, 20, 30], [40, 50, 60], [70, 80, 90]]
    assert show(image, canvas_px=3, rotation=math.pi) == [[90, 80, 70], [60, 50, 40], [30, 20, 10]]


def test_odd_width_on_an_even_canvas_lies_between_the_pixels():
    assert show([[10, 20, 30], [40, 50, 60]], canvas_px=4)[1:3] == [
        [5, 15, 25, 15],
        [20, 45, 55, 30],
    ]


def test_shift_moves_right_and_down_by_whole_pixels():
    assert show([[10, 20], [30, 40]], canvas_px=4, right=1, down=-1) == [
        [0, 0, 10, 20],
        [0, 0, 30, 40],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
    ]


def test_shift_by_half_a_pixel_halves_between_neighbours():
    image = [[0, 0, 0], [0, 100, 0], [0, 0, 0]]
    assert show(image, canvas_px=3, right=0.5) == [[0, 0, 0], [0, 50, 50], [0, 0, 0]]


def test_shift_out_of_the_canvas_leaves_black():
    assert show([[10, 20], [30, 40]], canvas_px=4, right=15, down=15) == [[0] * 4] * 4


def test_scale_2_of_a_single_pixel_spreads_over_its_neighbours_with_half_weight():
    image = [[0, 0, 0], [0, 100, 0], [0, 0, 0]]
    enlarged = show(image, canvas_px=5, scale=2)
    assert enlarged[2] == [0, 50, 100, 50, 0]
    assert enlarged[1] == [0, 25, 50, 25, 0]
    assert enlarged[0] == [0] * 5


def test_shear_moves_lower_rows_to_the_right():
    image = [[0, 10, 0], [0, 20, 0], [0, 30, 0]]
    assert show(image, canvas_px=3, shear=1.0) == [[10, 0, 0], [0, 20, 0], [0, 0, 30]]


def test_shift_comes_after_rotation():
    image = [[0, 0, 0], [0, 100, 0], [0, 0, 0]]
    assert show(image, canvas_px=3, rotation=math.pi / 2, right=1)[1] == [0, 0, 100]


def test_rotation_comes_after_shear():
    image = [[0, 10, 0], [0, 20, 0], [0, 30, 0]]
    turned = show(image, canvas_px=3, shear=1.0, rotation=math.pi / 2)
    assert turned == [[0, 0, 10], [0, 20, 0], [30, 0, 0]]


def test_every_image_has_its_own_parameters():
    image = random_images(1, 1, 6, 6).expand(5, -1, -1, -1)
    params = sample_affine(5, AffineRanges(translation_px=2), torch.Generator().manual_seed(0))
    together = warp(image, params, 10)
    for n in range(5):
        alone = warp(image[:1], params[n : n + 1], 10)[0]
        torch.testing.assert_close(together[n], alone, atol=1e-6, rtol=0)
        assert (together[n] - together[n - 1]).abs().max() > 0.1


def test_uint8_becomes_float32_between_0_and_1():
    white = torch.full((8, 1, 28, 28), 255, dtype=torch.uint8)
    params = sample_affine(8, AffineRanges(), torch.Generator().manual_seed(0))
    shown = warp(white, params, 64)
    assert shown.dtype == torch.float32
    assert shown.min() == 0
    assert shown.max().item() == pytest.approx(1, abs=1e-6)


def test_float_images_are_taken_as_they_are():
    image = torch.tensor([[[[0.25, 0.5], [0.75, 1.0]]]])
    shown = warp(image, torch.tensor([IDENTITY]), 2)
    torch.testing.assert_close(shown, image, atol=1e-6, rtol=0)


def test_sampled_parameters_fill_their_ranges():
    ranges = AffineRanges(rotation_deg=30, shear=0.5, scale_min=0.5, scale_max=2, translation_px=3)
    params = sample_affine(20_000, ranges, torch.Generator().manual_seed(0)).double()
    low = torch.tensor([-math.pi / 6, -0.5, 0.5, -3, -3], dtype=torch.float64)
    high = torch.tensor([math.pi / 6, 0.5, 2, 3, 3], dtype=torch.float64)
    share = (params - low) / (high - low)
    assert share.min() >= -1e-6 and share.max() <= 1 + 1e-6
    deciles = torch.quantile(share, torch.linspace(0, 1, 11).double(), dim=0)
    expected = torch.linspace(0, 1, 11).double()[:, None].expand(11, 5)
    torch.testing.assert_close(deciles, expected, atol=0.02, rtol=0)


def test_sampled_parameters_are_independent_of_each_other():
    params = sample_affine(20_000, AffineRanges(), torch.Generator().manual_seed(3))
    assert (torch.corrcoef(params.T) - torch.eye(5)).abs().max() < 0.03


def test_the_papers_ranges_are_the_default():
    params = sample_affine(5_000, AffineRanges(), torch.Generator().manual_seed(0))
    assert params.max(0).values.tolist() == pytest.approx([math.pi / 2, 0.3, 1.3, 15, 15], rel=0.01)
    assert params.min(0).values.tolist() == pytest.approx(
        [-math.pi / 2, -0.3, 0.7, -15, -15], rel=0.01
    )


def test_a_range_of_one_value_gives_that_value():
    ranges = AffineRanges(rotation_deg=0, shear=0, scale_min=1, scale_max=1, translation_px=0)
    params = sample_affine(3, ranges, torch.Generator().manual_seed(0))
    assert params.tolist() == [list(IDENTITY)] * 3


def test_equal_generators_give_equal_parameters():
    draws = [sample_affine(4, AffineRanges(), torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("name", ["rotation_deg", "shear", "translation_px"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_ranges_that_are_negative_or_not_finite_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}; give a number of at least 0"):
        AffineRanges(**{name: value})


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-1, 1), (1.2, 1.1), (1, math.inf), (math.nan, 1)]
)
def test_scales_that_are_no_range_are_refused(low, high):
    with pytest.raises(ConfigError, match="are not a range; give 0 < scale_min <= scale_max"):
        AffineRanges(scale_min=low, scale_max=high)


def test_images_in_float64_are_transformed_in_float64():
    images, params = random_images(3, 1, 9, 7).double() / 255, drawn_params(3)
    warped = warp(images, params, 12)
    assert warped.dtype == torch.float64
    for image, row, shown in zip(images, params.double().tolist(), warped, strict=True):
        expected = slow_warp(image[0].tolist(), row, 12)
        torch.testing.assert_close(shown[0], expected, atol=1e-9, rtol=0)


def drawn_params(num):
    return sample_affine(num, AffineRanges(), torch.Generator().manual_seed(0))
