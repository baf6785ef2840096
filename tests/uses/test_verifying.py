import numpy as np
import pytest
from PIL import Image

import orbitset
from orbitset.errors import ConfigError, DataError
from orbitset.uses import verify_pair
from orbitset.uses.verifying import pair_picture, threshold_of


@pytest.fixture(scope="module")
def model(model_folder):
    return orbitset.load(model_folder)


@pytest.fixture(scope="module")
def pair(photos):
    return photos / "ant" / "1.png", photos / "bee" / "1.png"


def test_an_image_is_the_same_as_itself(model, pair):
    verdict = verify_pair(model, pair[0], pair[0])
    assert verdict.distance == 0 and verdict.is_same
    assert verify_pair(model, pair[0], pair[0], threshold=0).is_same


def test_the_threshold_is_the_models_own_for_a_rate_or_the_given_one(model, pair, photos):
    verdict = verify_pair(model, *pair)
    assert not verdict.is_same
    assert verdict.threshold == 0.002 and verdict.point.tar == 0.5
    assert verify_pair(model, *pair, far=0.05).threshold == 0.003
    assert verify_pair(model, pair[0], photos / "ant" / "2.png", far=0.001).is_same
    own = verify_pair(model, *pair, threshold=verdict.distance)
    assert own.is_same and own.point is None
    assert not verify_pair(model, *pair, threshold=np.nextafter(own.distance, 0)).is_same


@pytest.mark.parametrize("threshold", [-1, float("nan"), float("inf")])
def test_a_threshold_must_be_a_distance(model, pair, threshold):
    with pytest.raises(ConfigError, match="give a squared distance, at least 0"):
        verify_pair(model, *pair, threshold=threshold)


def test_a_rate_that_was_not_measured_is_refused(model, pair):
    with pytest.raises(ConfigError, match="rate of 0.5, only 0.001, 0.01, 0.05"):
        verify_pair(model, *pair, far=0.5)


def test_a_model_without_calibration_needs_a_threshold(build_model, pair):
    model = build_model(calibration=None)
    with pytest.raises(ConfigError, match="no measured threshold; give one .* --threshold"):
        threshold_of(model, 0.01)
    assert not verify_pair(model, *pair, threshold=0).is_same


def test_an_image_that_cannot_be_read_is_named(model, pair):
    with pytest.raises(DataError, match="there is no image, .* gone.png"):
        verify_pair(model, pair[0], "gone.png")


@pytest.mark.parametrize("channels", [1, 3])
def test_the_picture_shows_both_above_both_upright(build_model, pair, channels):
    model = build_model(channels=channels)
    picture = pair_picture(model, *pair)
    assert picture.dtype == np.uint8
    assert picture.shape == ((32, 32) if channels == 1 else (32, 32, 3))
    pixels = model.form.read(pair[1])
    assert np.array_equal(
        picture[:16, 16:], pixels[0] if channels == 1 else pixels.transpose(1, 2, 0)
    )
    assert np.abs(picture[16:, :16].astype(int) - model.rectify(pair[0])[0]).max() <= 1


def test_what_is_unlike_anything_trained_on_is_crossed_out(knowing_folder, photos, tmp_path):
    model = orbitset.load(knowing_folder)
    noise = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    pair = photos / "ant" / "1.png", tmp_path / "noise.png"
    first, second = verify_pair(model, *pair).confidence
    assert first > 0 and second == 0
    picture = pair_picture(model, *pair)
    is_red = (picture == (255, 0, 0)).all(2)
    assert is_red[16:, 16:].sum() >= 16 and is_red.sum() == is_red[16:, 16:].sum()
    assert pair_picture(model, pair[0], pair[0]).shape == (32, 32)
