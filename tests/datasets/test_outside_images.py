"""Images from a function: arrays of every form, lists, factors, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from orbitset.datasets import outside_images
from orbitset.datasets.decode import Decoding
from orbitset.datasets.source import open_source
from orbitset.datasets.table import Grouping
from orbitset.errors import DataError


@pytest.fixture
def given(monkeypatch):
    """A source whose function gives what a test says."""

    def give(result):
        def function():
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(outside_images, "import_named", lambda *_, **__: function)
        return open_source("my_data:images")

    return give


def pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def loaded(source, **options):
    return source.load_observed(Grouping(orbit=("thing",)), Decoding(**options))


THINGS = {"thing": ["a", "a", "b", "b"], "view": np.arange(4)}


@pytest.mark.parametrize("kind", ["NHW", "NCHW", "NHWC", "float", "tensor", "arrays", "pictures"])
def test_images_may_come_in_any_form(given, kind):
    grey, colour = pixels(4, 8, 8), pixels(4, 3, 8, 8)
    images = {
        "NHW": grey,
        "NCHW": colour,
        "NHWC": colour.transpose(0, 2, 3, 1),
        "float": grey / 255,
        "tensor": torch.from_numpy(colour),
        "arrays": list(grey),
        "pictures": [Image.fromarray(image) for image in grey],
    }[kind]
    is_colour = kind in ("NCHW", "NHWC", "tensor")
    seen, left_out = loaded(given((images, THINGS)), is_colour=is_colour)
    expected = colour if is_colour else grey[:, None]
    assert np.array_equal(seen.images.numpy(), expected) and left_out == ()
    assert seen.values == {"thing": ("a", "b"), "view": ("0", "1", "2", "3")}


def test_images_of_several_sizes_are_fitted(given):
    images = [pixels(8, 8), pixels(8, 6, 3), pixels(20, 10), Image.new("RGB", (5, 9))]
    seen, _ = loaded(given((images, THINGS)), size_px=8)
    assert seen.images.shape == (4, 1, 8, 8)
    assert np.array_equal(seen.images[0, 0].numpy(), images[0])


def test_images_without_a_value_of_the_orbit_are_named(given):
    things = {"thing": ["a", None, "a", float("nan")]}
    source = given((pixels(4, 8, 8), things))
    assert source.table().columns["thing"] == ("a", "", "a", "")
    table = source.table(["thing"])
    assert table.paths == ("my_data:images#0", "my_data:images#2")
    assert [str(problem) for problem in table.left_out][0] == "row 2: its thing is empty"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (pixels(4, 8, 8), "gave ndarray; give images, and a mapping"),
        ((pixels(4, 8, 8), {}), "gave tuple; give images, and a mapping"),
        (
            (pixels(4, 8, 8), pixels(4)),
            "my_data:images gave images and an ndarray; in place of the ndarray give a dict of factors",
        ),
        ((pixels(4, 8, 8), {"thing": "abc"}), "gave no list of values of thing for 4 images"),
        ((pixels(4, 8, 8), {"thing": ["a"]}), "gave 1 values of thing for 4 images"),
        (([], {"thing": []}), "gave no images"),
        ((pixels(4, 8), THINGS), r"images from my_data:images have shape \(4, 8\)"),
        ((pixels(4, 8, 8).astype(int), THINGS), "have dtype int64; give uint8, or floats"),
        (([pixels(8, 8), pixels(8)], THINGS), r"my_data:images, image 1, have shape \(1, 8\)"),
        (RuntimeError("no disk"), "the source my_data:images failed: RuntimeError: no disk"),
    ],
)
def test_what_is_not_understood_is_said(given, result, words):
    with pytest.raises(DataError, match=words):
        loaded(given(result))
