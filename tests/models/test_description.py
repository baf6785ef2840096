from dataclasses import replace

import pytest
import torch

from orbitset.config import from_dict, to_dict
from orbitset.encoders import EncoderConfig
from orbitset.errors import ConfigError
from orbitset.models import load_model_folder, save_model_folder
from orbitset.models.description import Description, Input, Network, identify


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


def test_the_id_is_told_by_all_that_decides_the_codes(build_model):
    model = build_model()
    weights, about = model.network.state_dict(), model.description
    first = identify(weights, about.network, about.input)
    assert len(first) == 16 and identify(dict(weights), about.network, about.input) == first
    other = {name: value + 1 for name, value in weights.items()}
    assert identify(other, about.network, about.input) != first
    for network, shown in (
        (replace(about.network, encoder=replace(about.network.encoder, pool=4)), about.input),
        (
            replace(about.network, encoder=replace(about.network.encoder, contrast="local")),
            about.input,
        ),
        (about.network, replace(about.input, image_px=12)),
    ):
        assert identify(weights, network, shown) != first


def test_a_setting_that_is_new_leaves_the_ids_of_old_models():
    weights = {"weight": torch.arange(4.0)}
    network, shown = Network(encoder=EncoderConfig()), Input(channels=1, size_px=64)
    assert identify(weights, network, shown) == "b4130b0b96d89716"  # before encoders had a contrast


def test_a_copy_of_a_model_has_its_id(build_model, tmp_path):
    model = build_model()
    save_model_folder(model, tmp_path / "one")
    first = load_model_folder(tmp_path / "one")
    save_model_folder(first, tmp_path / "two")
    assert load_model_folder(tmp_path / "two").id == first.id
