import math

import numpy as np
import pytest
import torch

from orbitset.errors import ConfigError
from orbitset.orbits.photometric import (
    NEUTRAL,
    PARAMETERS,
    PhotometricRanges,
    apply_photometric,
    draw_photometric,
)
from orbitset.seeds import stream

EVERYTHING = PhotometricRanges(flip_probability=0.5)
STEPS = {
    "flip": {"flip_probability": 0.5},
    "crop": {"crop_area_min": 0.3, "crop_aspect_max": 2.0},
    "light": {"illumination": 1.0, "illumination_cycles": 1.5},
    "blur": {"blur_min_px": 0.3, "blur_max_px": 1.5, "blur_probability": 0.7},
    "saturation": {"saturation": 1.0},
    "hue": {"hue_deg": 180.0},
    "brightness": {"brightness": 0.6},
    "contrast": {"contrast": 0.9},
    "gamma": {"gamma_max": 2.5},
    "noise": {"noise": 0.2},
}


def only(**settings):
    """Ranges that change nothing but what is named."""
    neutral = {
        "crop_area_min": 1.0, "brightness": 0.0, "contrast": 0.0, "gamma_max": 1.0, "saturation": 0.0,
        "hue_deg": 0.0, "blur_max_px": 0.0, "illumination": 0.0, "noise": 0.0,
    }  # fmt: skip
    return PhotometricRanges(**(neutral | settings))


def random_images(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def drawn(num, ranges, seed=0):
    return draw_photometric(num, ranges, stream("test", seed))


def params_with(num=1, **values):
    """Rows that are neutral but for what is named."""
    return torch.tensor(
        [list((dict(zip(PARAMETERS, NEUTRAL, strict=True)) | values).values())] * num
    )


def column(params, name):
    return params[:, PARAMETERS.index(name)]


def slow_apply(image_CHW, row, radius):
    """One image in float64, pixel by pixel, step by step as documented."""
    p = dict(zip(PARAMETERS, row, strict=True))
    image = image_CHW[:, :, ::-1] if p["flip"] else image_CHW
    image = np.stack([slow_crop(plane, p) for plane in image])
    image = np.stack([slow_light(plane, p) for plane in image])
    image = np.stack([slow_blur(plane, p["blur_px"], radius) for plane in image])
    if len(image) == 3:
        image = slow_colours(image, p["saturation"], p["hue"])
    image = image * p["brightness"]
    image = image.mean() + p["contrast"] * (image - image.mean())
    image = image.clip(0, 1) ** p["gamma"]
    noise = slow_normal(int(p["noise_key"]), image.size)
    return (image + p["noise"] * np.reshape(noise, image.shape)).clip(0, 1)


def at(plane, row, column):
    """The outermost pixels go on beyond the border."""
    return plane[np.clip(row, 0, plane.shape[0] - 1), np.clip(column, 0, plane.shape[1] - 1)]


def slow_crop(plane, p):
    """Pixel i is the square from i to i + 1; the window is read in those numbers."""
    left = (p["crop_x"] - p["crop_width"] + 1) / 2 * plane.shape[1]
    top = (p["crop_y"] - p["crop_height"] + 1) / 2 * plane.shape[0]
    cropped = np.zeros_like(plane)
    for row, column in np.ndindex(plane.shape):
        x = left + (column + 0.5) * p["crop_width"] - 0.5
        y = top + (row + 0.5) * p["crop_height"] - 0.5
        for i in (math.floor(y), math.floor(y) + 1):
            for j in (math.floor(x), math.floor(x) + 1):
                cropped[row, column] += (1 - abs(x - j)) * (1 - abs(y - i)) * at(plane, i, j)
    return cropped


def slow_light(plane, p):
    lit = np.zeros_like(plane)
    for row, column in np.ndindex(plane.shape):
        x, y = (column + 0.5) / plane.shape[1] - 0.5, (row + 0.5) / plane.shape[0] - 0.5
        along = math.cos(p["light_direction"]) * x + math.sin(p["light_direction"]) * y
        wave = math.sin(2 * math.pi * p["light_cycles"] * along + p["light_phase"])
        lit[row, column] = plane[row, column] * (1 + p["light_strength"] * wave)
    return lit


def slow_blur(plane, sigma, radius):
    """The square kernel at once, not one side after the other."""
    if sigma == 0:
        return plane
    blurred, total = np.zeros_like(plane), 0.0
    rows, columns = np.indices(plane.shape)
    for i, j in np.ndindex(2 * radius + 1, 2 * radius + 1):
        weight = math.exp(-((i - radius) ** 2 + (j - radius) ** 2) / (2 * sigma * sigma))
        blurred, total = (
            blurred + weight * at(plane, rows + i - radius, columns + j - radius),
            total + weight,
        )
    return blurred / total


def slow_colours(image, saturation, hue):
    """Across the grey axis, a colour's angle from red grows by the hue and its distance by the factor."""
    changed = np.zeros_like(image)
    for place in np.ndindex(image.shape[1:]):
        red, green, blue = image[:, *place]
        x, y = (2 * red - green - blue) / math.sqrt(6), (green - blue) / math.sqrt(2)
        angle, distance = math.atan2(y, x) + hue, saturation * math.hypot(x, y)
        x, y = distance * math.cos(angle) / math.sqrt(6), distance * math.sin(angle) / math.sqrt(2)
        changed[:, *place] = (red + green + blue) / 3 + np.array([2 * x, y - x, -y - x])
    return changed


def slow_hash(word):
    word = (word ^ word >> 16) * 0x7FEB352D % 2**32
    word = (word ^ word >> 15) * 0x846CA68B % 2**32
    return word ^ word >> 16


def slow_normal(key, count):
    pairs = []
    for counter in range((count + 1) // 2):
        bits = slow_hash(slow_hash((key + 0x9E3779B9) % 2**32) ^ slow_hash(counter))
        radius = math.sqrt(-2 * math.log((bits % 65536 + 0.5) / 65536))
        angle = 2 * math.pi * (bits // 65536) / 65536
        pairs.append((radius * math.cos(angle), radius * math.sin(angle)))
    return np.array(pairs).T.flatten()[:count]


def assert_equals_the_slow_oracle(images, params, ranges):
    shown = apply_photometric(images, params, ranges)
    radius = math.ceil(3 * ranges.blur_max_px)
    for image, row, found in zip(images, params, shown, strict=True):
        expected = slow_apply(image.double().numpy(), row.double().tolist(), radius)
        np.testing.assert_allclose(found.double().numpy(), expected, atol=2e-5, rtol=0)
    return shown


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("step", STEPS)
def test_each_step_equals_the_slow_oracle(step, channels):
    ranges = only(**STEPS[step])
    images = random_images(5, channels, 7, 6)
    shown = assert_equals_the_slow_oracle(images, drawn(5, ranges, seed=4), ranges)
    assert torch.equal(shown, images) == (channels == 1 and step in ("saturation", "hue"))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 5, 9), (1, 3, 3)])
def test_all_steps_together_equal_the_slow_oracle(shape):
    assert_equals_the_slow_oracle(random_images(6, *shape), drawn(6, EVERYTHING), EVERYTHING)


@pytest.mark.parametrize("channels", [1, 3])
def test_neutral_ranges_are_exactly_the_identity(channels):
    ranges = only()
    images, params = random_images(8, channels, 9, 12), drawn(8, ranges)
    assert torch.equal(apply_photometric(images, params, ranges), images)
    assert torch.equal(apply_photometric(images, params, EVERYTHING), images)
    for name, neutral in zip(PARAMETERS, NEUTRAL, strict=True):
        if name not in ("light_direction", "light_phase", "light_cycles", "noise_key"):
            assert column(params, name).tolist() == [neutral] * 8


@pytest.mark.parametrize("shape", [(1, 9, 12), (3, 16, 16), (3, 64, 64)])
def test_neutral_rows_among_others_are_exactly_the_identity(shape):
    images, params = random_images(8, *shape), drawn(8, EVERYTHING)
    images[0, :, 0, 0], images[0, :, 0, 1] = 0, 1
    params[::2] = torch.tensor(NEUTRAL)
    shown = apply_photometric(images, params, EVERYTHING)
    assert torch.equal(shown[::2], images[::2])
    assert ((shown[1::2] - images[1::2]).abs().amax((1, 2, 3)) > 0.05).all()


def test_a_crop_of_the_whole_is_exactly_the_identity():
    images, ranges = random_images(4, 3, 11, 10), only(crop_area_min=0.5)
    assert torch.equal(apply_photometric(images, params_with(4), ranges), images)
    whole = drawn(4, only(crop_area_min=1.0, crop_aspect_max=3.0))
    assert torch.equal(apply_photometric(images, whole, ranges), images)


def test_a_crop_of_a_quarter_shows_that_quarter_enlarged():
    image = torch.zeros(1, 1, 8, 8)
    image[..., 4:, :4] = 1
    params = params_with(crop_width=0.5, crop_height=0.5, crop_x=-0.5, crop_y=0.5)
    shown = apply_photometric(image, params, only(crop_area_min=0.25))
    assert shown[0, 0, 1:, :-1].min() == 1
    assert shown[0, 0, 0, 0].item() == pytest.approx(0.75)


def test_crops_keep_the_share_of_the_area_and_lie_within_the_image():
    ranges = PhotometricRanges(crop_area_min=0.2, crop_area_max=0.9, crop_aspect_max=2.0)
    params = drawn(5_000, ranges).double()
    width, height, x, y = (column(params, f"crop_{n}") for n in ("width", "height", "x", "y"))
    area, aspect = (width * height).aminmax(), (width / height).aminmax()
    assert [*area] == pytest.approx([0.2, 0.9], abs=1e-3)
    assert [*aspect] == pytest.approx([0.5, 2], rel=0.02)
    assert (x.abs() + width).max() <= 1 + 1e-6 and (y.abs() + height).max() <= 1 + 1e-6


def test_drawn_parameters_fill_their_ranges():
    ranges = PhotometricRanges(
        brightness=0.2, contrast=0.4, saturation=0.6, hue_deg=90, gamma_max=2, blur_min_px=0.5,
        blur_max_px=2, blur_probability=0.25, illumination=0.7, illumination_cycles=0.5, noise=0.1,
        flip_probability=0.3,
    )  # fmt: skip
    params = drawn(20_000, ranges)
    expected = {
        "brightness": (0.8, 1.2), "contrast": (0.6, 1.4), "saturation": (0.4, 1.6), "gamma": (0.5, 2),
        "hue": (-math.pi / 2, math.pi / 2), "blur_px": (0, 2), "light_strength": (0, 0.7),
        "light_direction": (0, math.tau), "light_phase": (0, math.tau), "light_cycles": (0, 0.5),
        "noise": (0, 0.1), "noise_key": (0, 2**24), "flip": (0, 1),
    }  # fmt: skip
    for name, (low, high) in expected.items():
        found, slack = column(params, name), 2e-3 * (high - low)
        assert low - 1e-6 <= found.min() <= low + slack, name
        assert high - slack <= found.max() <= high * (1 + 1e-6), name
    blur, flip, key = (column(params, name) for name in ("blur_px", "flip", "noise_key"))
    assert (blur > 0).float().mean() == pytest.approx(0.25, abs=0.02)
    assert blur[blur > 0].min() >= 0.5
    assert flip.unique().tolist() == [0, 1] and flip.mean() == pytest.approx(0.3, abs=0.02)
    assert torch.equal(key, key.round())


def test_drawn_parameters_are_float32_and_independent_of_each_other():
    params = drawn(20_000, EVERYTHING)
    assert params.dtype == torch.float32
    correlation = torch.corrcoef(params.T).fill_diagonal_(0)
    both = PARAMETERS.index("crop_width"), PARAMETERS.index("crop_height")
    correlation[both, both[::-1]] = 0
    assert correlation.abs().max() < 0.03


def test_setting_one_range_leaves_what_is_drawn_for_the_others():
    first, other = drawn(6, PhotometricRanges()), drawn(6, PhotometricRanges(contrast=0.9))
    differs = (first != other).any(0)
    assert [n for n, d in zip(PARAMETERS, differs, strict=True) if d] == ["contrast"]


def test_equal_seeds_give_equal_images_and_others_do_not():
    images = random_images(4, 3, 8, 8)
    made = []
    for seed in (5, 5, 6):
        torch.manual_seed(len(made))
        made.append(apply_photometric(images, drawn(4, EVERYTHING, seed), EVERYTHING))
    assert torch.equal(made[0], made[1])
    assert (made[0] - made[2]).abs().amax((1, 2, 3)).min() > 0.05


@pytest.mark.parametrize("step", STEPS)
def test_every_image_has_its_own_draw(step):
    image = random_images(1, 3, 8, 8).expand(12, -1, -1, -1)
    ranges = only(**STEPS[step])
    params = drawn(12, ranges)
    together = apply_photometric(image, params, ranges)
    for n in range(12):
        alone = apply_photometric(image[:1], params[n : n + 1], ranges)[0]
        torch.testing.assert_close(together[n], alone, atol=1e-6, rtol=0)
    distinct = len(together.flatten(1).unique(dim=0))
    expected = {"flip": 2, "blur": 1 + int((column(params, "blur_px") > 0).sum())}
    assert distinct == expected.get(step, 12)


@pytest.mark.parametrize("channels", [1, 3])
def test_values_stay_between_0_and_1_under_the_widest_ranges(channels):
    widest = PhotometricRanges(
        crop_area_min=0.05, brightness=1, contrast=1, gamma_max=5, saturation=1, hue_deg=180,
        blur_max_px=2, illumination=1, illumination_cycles=3, noise=1,
    )  # fmt: skip
    images = random_images(32, channels, 8, 8).round()
    shown = apply_photometric(images, drawn(32, widest), widest)
    assert shown.min() == 0 and shown.max() == 1 and shown.isfinite().all()
    assert torch.equal(images, random_images(32, channels, 8, 8).round()), "written to"


def test_grey_images_in_three_channels_stay_grey_and_equal_those_in_one():
    grey = random_images(6, 1, 8, 8)
    ranges = PhotometricRanges(noise=0.0, saturation=1.0, hue_deg=180)
    one = apply_photometric(grey, drawn(6, ranges), ranges)
    three = apply_photometric(grey.expand(-1, 3, -1, -1), drawn(6, ranges), ranges)
    torch.testing.assert_close(three, one.expand(-1, 3, -1, -1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("circles", "channels"),
    [(1, [0, 1, 2]), (-1, [0, 1, 2]), (2, [0, 1, 2]), (1 / 3, [2, 0, 1]), (-1 / 3, [1, 2, 0])],
)
def test_hue_by_the_full_circle_is_the_identity_and_by_a_third_takes_red_to_green(
    circles, channels
):
    images, params = random_images(4, 3, 8, 8), params_with(4, hue=circles * math.tau)
    shown = apply_photometric(images, params, only(hue_deg=180))
    torch.testing.assert_close(shown, images[:, channels], atol=1e-5, rtol=0)


def test_a_blurred_point_keeps_its_sum_and_has_the_variance_asked_for():
    image = torch.zeros(1, 1, 21, 21)
    image[0, 0, 10, 10] = 1
    ranges = only(blur_max_px=2.0)
    shown = apply_photometric(image, params_with(blur_px=2.0), ranges)[0, 0]
    assert shown.sum().item() == pytest.approx(1, abs=1e-5)
    variance = (shown.sum(0) * (torch.arange(21) - 10.0) ** 2).sum().item()
    assert variance == pytest.approx(4, rel=0.06)


def test_noise_is_normal_and_independent_between_images_channels_and_pixels():
    images, ranges = torch.full((64, 3, 32, 32), 0.5), only(noise=0.05)
    params = drawn(64, ranges)
    column(params, "noise").fill_(0.05)
    noise = (apply_photometric(images, params, ranges).double() - 0.5) / 0.05
    moments = [(noise**power).mean().item() for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)
    for dim in range(4):
        assert (noise * noise.roll(1, dim)).mean().abs() < 0.01
    halves = noise.flatten(1).unflatten(1, (2, -1)).square()
    assert halves.prod(1).mean().item() == pytest.approx(1, abs=0.03)


def test_nothing_depends_on_reading_values_back_to_the_host():
    images, params = random_images(2, 3, 8, 8).to("meta"), drawn(2, EVERYTHING).to("meta")
    assert apply_photometric(images, params, EVERYTHING).shape == images.shape


@pytest.mark.parametrize(
    ("names", "values", "wanted"),
    [
        ("brightness contrast saturation illumination noise", [-0.1, 1.1, math.nan], "from 0 to 1"),
        ("blur_probability flip_probability", [-0.1, 1.1, math.inf], "from 0 to 1"),
        ("hue_deg", [-1, 181, math.nan], "from 0 to 180"),
        ("illumination_cycles", [-1, math.inf, math.nan], "of at least 0"),
        ("gamma_max crop_aspect_max", [0.9, math.inf, math.nan], "of at least 1"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(names, values, wanted):
    for name in names.split():
        for value in values:
            with pytest.raises(ConfigError, match=f"^{name} is {value}; give a number {wanted}$"):
                PhotometricRanges(**{name: value})


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("crop_area_min", "crop_area_max", [(0, 1), (0.8, 0.7), (0.5, 1.1), (math.nan, 1)]),
        ("blur_min_px", "blur_max_px", [(-1, 1), (2, 1), (0, math.inf), (0, math.nan)]),
    ],
)
def test_what_is_no_range_is_refused_by_name(first, second, pairs):
    for low, high in pairs:
        with pytest.raises(
            ConfigError, match=f"^{first} {low} and {second} {high} are not a range"
        ):
            PhotometricRanges(**{first: low, second: high})


def test_changes_are_moderate_by_default():
    """What the documentation of each range says, reached by some of many draws."""
    columns = dict(zip(PARAMETERS, drawn(20_000, PhotometricRanges()).unbind(1), strict=True))
    columns["crop area"] = columns["crop_width"] * columns["crop_height"]
    columns["crop aspect"] = columns["crop_width"] / columns["crop_height"]
    expected = {
        "flip": (0, 0), "crop area": (0.6, 1), "crop aspect": (3 / 4, 4 / 3), "light_strength": (0, 0.3),
        "light_cycles": (0, 0.75), "blur_px": (0, 1), "saturation": (0.7, 1.3),
        "hue": (-math.pi / 9, math.pi / 9),
        "brightness": (0.7, 1.3), "contrast": (0.7, 1.3), "gamma": (1 / 1.3, 1.3), "noise": (0, 0.02),
    }  # fmt: skip
    for name, (low, high) in expected.items():
        slack = 0.01 * (high - low)
        assert low - 1e-6 <= float(columns[name].min()) <= low + slack, name
        assert high - slack <= float(columns[name].max()) <= high + 1e-6, name
    assert float((columns["blur_px"] == 0).float().mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [1, 3])
def test_a_gpu_gives_the_same_images_and_is_not_waited_for(channels):
    images, params = random_images(64, channels, 33, 48), drawn(64, EVERYTHING)
    params[0] = torch.tensor(NEUTRAL)
    there, params_there = images.cuda(), params.cuda()
    apply_photometric(there, params_there, EVERYTHING)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # recording refuses whatever waits
        shown = apply_photometric(there, params_there, EVERYTHING)
    graph.replay()
    expected = apply_photometric(images, params, EVERYTHING)
    torch.testing.assert_close(shown.cpu(), expected, atol=1e-4, rtol=0)
    assert torch.equal(shown[0], there[0])
