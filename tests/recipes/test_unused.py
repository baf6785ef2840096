"""What a training does not use is refused through every door, with what it belongs to."""

import json

import numpy as np
import pytest

from orbitset import OrbitEncoder
from orbitset.config import UnknownSetting, to_dict
from orbitset.datasets.source import open_source
from orbitset.errors import ConfigError
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.compose import Request, compose, searched_config
from orbitset.recipes.experiment import read_experiment
from orbitset.recipes.own_images import OrbitOptions, observed_images
from orbitset.recipes.unused import belonging

UNUSED = [
    ("OE", "loss.mining=all", "OE does not use loss.mining, which belongs to OJ, OT and ST"),
    ("OE", "loss.margin=1", "OE does not use loss.margin, which belongs to OJ, OT and ST"),
    (
        "OT",
        "loss.rectify_weight=2",
        "OT does not use loss.rectify_weight, which belongs to OJ, OE, IN.R, IM.R, SG.R and PR.R",
    ),
    ("ST", "loss.discriminate_weight=2", "ST does not use .*, which belongs to OJ and OT$"),
    ("EX", "loss.reduction=sum", "EX does not use .*, which belongs to OJ, OT, OE, ST and AE$"),
    ("ST-STN", "loss.scale=as-printed", "ST-STN does not use .*, which belongs to OJ, OT and OE$"),
    ("OJ", "evaluation.apart=3", "one-shot does not use evaluation.apart, which belongs to pairs$"),
    ("OJ", "orbits.alike=light", "training on computed orbits .* belongs to observed orbits$"),
    ("OJ", "video.trained_share=0.5", "training on images .* which belongs to videos$"),
]


@pytest.mark.parametrize(("method", "setting", "words"), UNUSED)
def test_train_and_tune_refuse_it(method, setting, words):
    request = Request(source="affine-digits", method=method, settings=(setting,))
    with pytest.raises(ConfigError, match=words):
        compose(request)
    with pytest.raises(ConfigError, match=words):
        searched_config(request)


@pytest.mark.parametrize(("method", "setting", "words"), UNUSED[:7])
def test_a_configuration_file_is_refused_for_it(tmp_path, method, setting, words):
    name, _, value = setting.partition("=")
    group, _, last = name.partition(".")
    values = to_dict(affine_digits(method))
    values[group][last] = value
    with pytest.raises(ConfigError, match=words):
        read_experiment(values)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=words):
        compose(Request(), config_file=file)


def test_observed_orbits_refuse_what_only_computed_ones_have(face_manifest):
    words = "training on observed orbits does not use orbits.canvas_px, which .* computed orbits"
    with pytest.raises(ConfigError, match=words):
        observed_images(
            open_source(str(face_manifest)),
            options=OrbitOptions(orbit=["person"]),
            settings={"orbits.canvas_px": "32"},
        )
    request = Request(
        source=str(face_manifest),
        observed=OrbitOptions(orbit=["person", "light"], label="person", split="session=1,2/3/4"),
        settings=("evaluation.draws=3",),
    )
    with pytest.raises(ConfigError, match="pairs does not use evaluation.draws, .* one-shot$"):
        compose(request)


def test_the_estimator_refuses_it():
    rng = np.random.default_rng(0)
    encoder = OrbitEncoder("OT", loss_settings={"rectify_weight": 2.0}, channels=(4,), epochs=1)
    words = "OT does not use loss_settings.rectify_weight, which belongs to OJ, OE, IN.R, IM.R, SG.R and PR.R"
    with pytest.raises(ValueError, match=words):
        encoder.fit(rng.random((12, 8, 8)), np.repeat([0, 1, 2], 4))


@pytest.mark.parametrize("name", ["loss.mragin", "loss.margin.deep", "lost.margin", "margin"])
def test_what_belongs_to_nobody_is_left_to_the_nearest_name(name):
    with pytest.raises(
        UnknownSetting, match=f"there is no setting '{name}' .did you mean loss.margin?"
    ):
        compose(Request(source="affine-digits", method="OT", settings=(f"{name}=1",)))


@pytest.mark.parametrize("name", ["loss.margn", "los.margin", "orbits.margin"])
def test_a_misspelt_setting_of_other_methods_is_suggested_with_them(name):
    with pytest.raises(ConfigError, match=f"there is no setting '{name}'") as info:
        compose(Request(source="affine-digits", method="IN", settings=(f"{name}=1",)))
    assert info.value.hint == "did you mean loss.margin, which belongs to OJ, OT and ST?"


def test_other_errors_pass():
    with pytest.raises(ConfigError, match="^too low$"), belonging(method="OT"):
        raise ConfigError("too low")
