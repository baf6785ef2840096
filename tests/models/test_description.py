import pytest

from orbitset.config import from_dict, to_dict
from orbitset.errors import ConfigError
from orbitset.models.description import Description, Input, identify


def test_it_goes_to_json_and_back(build_model):
    about = build_model(size_px=32, image_px=28, has_transformer=True).description
    assert from_dict(Description, to_dict(about)) == about


def test_what_is_shown_must_be_possible():
    assert Input(size_px=32, channels=3, image_px=32).is_colour
    for wrong in ({"size_px": 1}, {"size_px": 16, "channels": 2}):
        with pytest.raises(ConfigError, match="give at least 2 px, and 1 or 3"):
            Input(**wrong)
    for image_px in (0, 17, -3):
        with pytest.raises(ConfigError, match=f"input.image_px is {image_px}; give at most 16"):
            Input(size_px=16, image_px=image_px)


def test_thresholds_are_found_by_the_rate_they_were_measured_for(build_model):
    calibration = build_model().calibration
    assert calibration.at(0.01).threshold == 0.002
    with pytest.raises(ConfigError, match="rate of 0.02, only 0.001, 0.01, 0.05"):
        calibration.at(0.02)


def test_the_id_is_told_by_the_weights(tmp_path):
    (tmp_path / "weights").write_bytes(b"weights")
    first = identify(tmp_path / "weights")
    (tmp_path / "weights").write_bytes(b"weights!")
    assert len(first) == 16 and identify(tmp_path / "weights") != first
