import json
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from orbitset.config import (
    UnknownSetting,
    differences,
    from_dict,
    parse_settings,
    replacing,
    to_dict,
    with_settings,
)
from orbitset.encoders import EncoderConfig
from orbitset.errors import ConfigError
from orbitset.orbits import AffineRanges, OrbitConfig
from orbitset.orbits.observed import ObservedConfig
from orbitset.orbits.photometric import PhotometricRanges
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.experiment import Experiment, read_experiment
from orbitset.recipes.methods import METHODS
from orbitset.training import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.5
    sizes: tuple[int, ...] = (1, 2)
    kind: Literal["plain", "fancy"] = "plain"


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str = "x"
    count: int = 3
    is_on: bool = False
    limit: float | None = None
    inner: Inner = field(default_factory=Inner)


def experiment(**options):
    return Experiment(**{"name": "n", "data": "digits", **options})


def test_a_configuration_survives_json():
    config = experiment(
        method="OT",
        seed=5,
        orbits=OrbitConfig(members=9, affine=AffineRanges(shear=0.1)),
        encoder=EncoderConfig(channels=(8, 16), unpooling="corner"),
        loss=METHODS["OT"].settings(margin=0.7),
    )
    assert read_experiment(json.loads(json.dumps(to_dict(config)))) == config


def test_to_dict_is_nested_plain_values():
    assert to_dict(Outer()) == {
        "name": "x",
        "count": 3,
        "is_on": False,
        "limit": None,
        "inner": {"rate": 0.5, "sizes": [1, 2], "kind": "plain"},
    }


def test_values_that_are_left_out_keep_their_defaults():
    assert from_dict(Outer, {"inner": {"rate": 2.0}}) == Outer(inner=Inner(rate=2.0))
    assert from_dict(Outer, {}) == Outer()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("name=hello", Outer(name="hello")),
        ("name=a=b,c", Outer(name="a=b,c")),
        ("count=7", Outer(count=7)),
        ("count=-7", Outer(count=-7)),
        ("is_on=true", Outer(is_on=True)),
        ("limit=3", Outer(limit=3.0)),
        ("limit=1e-3", Outer(limit=0.001)),
        ("limit=null", Outer()),
        ("inner.rate=0.25", Outer(inner=Inner(rate=0.25))),
        ("inner.rate = 2 ", Outer(inner=Inner(rate=2.0))),
        ("inner.sizes=4,5,6", Outer(inner=Inner(sizes=(4, 5, 6)))),
        ("inner.sizes=[4]", Outer(inner=Inner(sizes=(4,)))),
        ("inner.sizes=[]", Outer(inner=Inner(sizes=()))),
        ("inner.kind=fancy", Outer(inner=Inner(kind="fancy"))),
    ],
)
def test_a_setting_changes_the_one_field_it_names(setting, expected):
    assert with_settings(Outer(), [setting]) == expected


def test_a_whole_number_becomes_a_float_where_one_is_asked_for():
    rate = with_settings(Outer(), ["inner.rate=2"]).inner.rate
    assert (rate, type(rate)) == (2.0, float)


def test_fields_three_levels_deep_are_set():
    config = with_settings(experiment(), ["orbits.affine.shear=0.5", "encoder.channels=8,16"])
    assert config.orbits.affine.shear == 0.5
    assert config.encoder.channels == (8, 16)
    assert config.orbits.affine.scale_max == 1.3


def test_later_settings_win_and_the_given_configuration_stays():
    config = Outer()
    assert with_settings(config, ["count=1", "name=y", "count=2"]) == Outer(count=2, name="y")
    assert config == Outer()
    assert with_settings(config, []) == config


def test_settings_are_checked_together_and_not_one_by_one():
    config = with_settings(experiment(), ["orbits.members=2", "orbits.members_per_batch=2"])
    assert (config.orbits.members, config.orbits.members_per_batch) == (2, 2)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("count=many", "count is 'many'; give a whole number"),
        ("count=1.5", "count is 1.5; give a whole number"),
        ("count=true", "count is True; give a whole number"),
        ("count=null", "count is None; give a whole number"),
        ("count=1,2", r"count is \[1, 2\]; give a whole number"),
        ("count=", "count is ''; give a whole number"),
        ("is_on=1", "is_on is 1; give true or false"),
        ("is_on=yes", "is_on is 'yes'; give true or false"),
        ("limit=high", "limit is 'high'; give a number"),
        ("inner.rate=true", "inner.rate is True; give a number"),
        ("inner.sizes=x", "inner.sizes is 'x'; give a list such as 16,32,64"),
        ("inner.sizes=4,x", "inner.sizes is '4,x'; give a list"),
        ("inner.sizes=4,1.5", "inner.sizes is 1.5; give a whole number"),
        ("inner.kind=other", "inner.kind is 'other'; choose one of plain, fancy"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_that_names_the_setting(setting, text):
    with pytest.raises(ConfigError, match=text):
        with_settings(Outer(), [setting])


def test_values_out_of_range_are_refused_by_the_dataclass():
    with pytest.raises(ConfigError, match="loss.margin is -1.0; give a number above 0"):
        with_settings(experiment(), ["loss.margin=-1"])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cuont", "count"),
        ("inner.rte", "inner.rate"),
        ("inner.rate.deep", "inner.rate"),
        ("iner.kind", "inner.kind"),
        ("sizes", "inner.sizes"),
        ("outer.sizes", "inner.sizes"),
    ],
)
def test_an_unknown_setting_suggests_the_nearest_name(name, near):
    with pytest.raises(UnknownSetting, match=f"there is no setting '{name}'") as info:
        with_settings(Outer(), [f"{name}=1"])
    assert info.value.hint == f"did you mean {near}?"
    assert info.value.name == name


def test_an_unknown_setting_far_from_all_lists_them():
    with pytest.raises(ConfigError, match="there is no setting 'zzzzzz'") as info:
        with_settings(Outer(), ["zzzzzz=1"])
    assert info.value.hint == (
        "settings are name, count, is_on, limit, inner.rate, inner.sizes, inner.kind"
    )


def test_a_misspelt_choice_suggests_the_nearest():
    with pytest.raises(ConfigError) as info:
        with_settings(Outer(), ["inner.kind=fancey"])
    assert info.value.hint == "did you mean fancy?"


@pytest.mark.parametrize("value", ["1", "null", '{"rate": 1}'])
def test_a_group_of_settings_cannot_be_set_as_one(value):
    text = "inner is a group of settings; set one of inner.rate, inner.sizes, inner.kind"
    with pytest.raises(ConfigError, match=text):
        with_settings(Outer(), [f"inner={value}"])


def test_a_setting_without_a_value_says_how_to_write_it():
    with pytest.raises(ConfigError, match="setting 'count' has no '='; write it as name=value"):
        with_settings(Outer(), ["count"])


def test_from_dict_names_the_whole_path_of_an_unknown_key():
    with pytest.raises(ConfigError, match="there is no setting 'inner.rat'") as info:
        from_dict(Outer, {"inner": {"rat": 1}})
    assert info.value.hint == "did you mean inner.rate?"


def test_from_dict_refuses_a_value_in_place_of_a_group():
    with pytest.raises(ConfigError, match="inner is 3; give a group of settings"):
        from_dict(Outer, {"inner": 3})


def test_differences_name_what_changed():
    changed = with_settings(Outer(), ["count=4", "inner.sizes=9,9", "limit=2"])
    assert differences(Outer(), changed) == [
        "count: 3 → 4",
        "limit: None → 2.0",
        "inner.sizes: [1, 2] → [9, 9]",
    ]
    assert differences(changed, changed) == []


def test_a_group_that_one_side_lacks_is_a_difference():
    plain = affine_digits("OJ")
    lit = replace(plain, orbits=replace(plain.orbits, photometric=PhotometricRanges()))
    there, back = differences(plain, lit), differences(lit, plain)
    assert "orbits.photometric: None → –" in there and "orbits.photometric: – → None" in back
    assert len(there) == len(back) > 2


def test_a_text_may_look_like_a_number_and_a_choice_may_be_in_any_case():
    config = with_settings(affine_digits("OJ"), ["name=2024", "method=oj", "orbits.mode=FRESH"])
    assert (config.name, config.method, config.orbits.mode) == ("2024", "OJ", "fresh")


def test_a_missing_setting_is_named():
    with pytest.raises(ConfigError, match="the setting name is missing"):
        from_dict(Experiment, {})


def test_infinite_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"loss\.margin is inf; give a finite number"):
        with_settings(affine_digits("OJ"), ["loss.margin=Infinity"])


@dataclass(frozen=True, kw_only=True)
class Length:
    metres: float | None = replacing("feet", None)
    feet: float | None = replacing("metres", None)
    steps: int = replacing("stops", 10, empty=())
    stops: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Way:
    length: Length = field(default_factory=Length)


def test_a_setting_takes_the_place_of_the_one_it_replaces():
    way = Way(length=Length(feet=3.0, stops=(1.0,)))
    assert with_settings(way, ["length.metres=2"]).length == Length(metres=2.0, stops=(1.0,))
    assert with_settings(way, ["length.steps=4"]).length == Length(feet=3.0, steps=4)
    assert with_settings(way, ["length.stops=2"]).length == Length(feet=3.0, stops=(2.0,))
    assert with_settings(way, ["length.metres=null"]) == way, "what is not set replaces nothing"


@pytest.mark.parametrize("settings", [("metres=2", "feet=6"), ("stops=1,2", "steps=4")])
def test_settings_that_replace_each_other_are_refused_together(settings):
    for several in (settings, settings[::-1]):
        with pytest.raises(ConfigError, match="contradict each other; set one of them"):
            with_settings(Length(), several)
        with pytest.raises(ConfigError, match=r"length\.\w+ and length\.\w+ contradict"):
            with_settings(Way(), [f"length.{setting}" for setting in several])
    assert with_settings(Length(), ["metres=2", "feet=null"]) == Length(metres=2.0)


def test_names_of_columns_may_look_like_numbers():
    orbits = ObservedConfig(orbit=("person",), label="person")
    config = with_settings(orbits, ["classes=2024", "crops=7", "orbit=2024,light", "label=1"])
    assert (config.classes, config.crops, config.label) == ("2024", "7", "1")
    assert config.orbit == ("2024", "light")
    assert with_settings(config, ["classes=null"]).classes is None


def test_settings_are_parsed_into_values_by_name():
    assert parse_settings([" loss.margin = 2", "seed=1", "seed=3"]) == {
        "loss.margin": "2",
        "seed": "3",
    }
    with pytest.raises(ConfigError, match="setting 'seed' has no '='; write it as name=value"):
        parse_settings(["seed"])


def test_values_out_of_their_range_are_refused():
    with pytest.raises(ConfigError, match="train.epochs is 0; give a number above 0"):
        TrainConfig(epochs=0)
    with pytest.raises(ConfigError, match="train.evaluations is 0; give at least 1"):
        TrainConfig(evaluations=0)
    with pytest.raises(ConfigError, match="train.keep is 'all'; choose one of last, best"):
        TrainConfig(keep="all")
    with pytest.raises(ConfigError, match="orbits.size_px is 1; give at least 2"):
        ObservedConfig(orbit=("person",), size_px=1)
    assert ObservedConfig(orbit=("person",), size_px=None).size_px is None


def test_a_group_of_settings_can_be_turned_off():
    config = ObservedConfig(orbit=("thing",)).augmented(100)
    assert with_settings(config, ["affine.shear=0.2"]).affine.shear == 0.2
    off = with_settings(config, ["affine=null"])
    assert off.affine is None and off.photometric == config.photometric
    with pytest.raises(ConfigError, match=r"no setting 'affine\.shear': affine is null"):
        with_settings(off, ["affine.shear=0.2"])
    with pytest.raises(ConfigError, match="affine is a group of settings"):
        with_settings(config, ["affine=3"])
