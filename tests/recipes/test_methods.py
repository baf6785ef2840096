import re
from dataclasses import fields

import pytest

from orbitset.errors import ConfigError
from orbitset.recipes.affine_mnist import affine_mnist
from orbitset.recipes.methods import (
    METHODS,
    PAPER_METHODS,
    STN,
    base_name,
    built_in,
    colour_of,
    has_transformer,
    is_outside,
    parse_method,
)


@pytest.mark.parametrize("name", [*METHODS, *(f"{name}{STN}" for name in METHODS)])
def test_parse_method_ignores_case(name):
    assert parse_method(name) == parse_method(name.lower()) == parse_method(name.title()) == name
    assert built_in(name).name == name


@pytest.mark.parametrize(
    ("name", "hint"), [("ojj", "did you mean OJ?"), ("AEE", "did you mean AE?"), ("zzz", None)]
)
def test_parse_method_refuses_other_names_with_the_nearest(name, hint):
    with pytest.raises(ConfigError, match="choose one of OJ, OT, OE, ST, EX, AE") as error:
        parse_method(name)
    assert repr(name.upper()) in str(error.value)
    assert error.value.hint == hint


def test_the_name_of_a_loss_from_outside_stays_as_it_is():
    assert parse_method("my_losses:info_NCE") == "my_losses:info_NCE"
    assert is_outside("my_losses:info_nce") and not is_outside("OT-STN")
    assert built_in("my_losses:info_nce") is colour_of("my_losses:info_nce") is None


def test_a_transformer_changes_the_network_and_not_the_objective():
    assert base_name("OT-STN") == base_name("OT") == "OT"
    assert has_transformer("ST-STN") and not has_transformer("ST")
    with_it, without = built_in("OT-STN"), built_in("OT")
    assert with_it.settings is without.settings and with_it.colour == without.colour
    assert with_it.has_transformer and not without.has_transformer
    assert with_it.title == "orbit triplet, spatial transformer"
    more = set(with_it.default_settings("affine-mnist")) - set(
        without.default_settings("affine-mnist")
    )
    assert more == {"train.transformer_rate=0.01"}


def test_what_a_method_has_follows_from_its_settings():
    assert [name for name, method in METHODS.items() if method.has_margin] == ["OJ", "OT", "ST"]
    assert [name for name, method in METHODS.items() if method.learns_classifier] == ["EX"]
    assert [name for name, method in METHODS.items() if method.needs_labels] == ["ST"]


def test_defaults_name_settings_that_the_method_has():
    for method in METHODS.values():
        own = {f"loss.{setting.name}" for setting in fields(method.settings)}
        for settings in method.defaults.values():
            named = {setting.partition("=")[0] for setting in settings}
            assert {name for name in named if name.startswith("loss.")} <= own


def test_methods_are_told_apart_by_their_colours():
    colours = [colour_of(name) for name in METHODS]
    assert len(set(colours)) == len(METHODS)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    assert colour_of("ST-STN") == colour_of("ST")


def test_later_methods_have_a_twin_with_the_decoder():
    later = [name for name in METHODS if name not in PAPER_METHODS]
    assert later == ["IN", "IN+R", "IM", "IM+R", "SG", "SG+R", "PR", "PR+R"]
    for name in later[::2]:
        plain, rectifying = METHODS[name], METHODS[f"{name}+R"]
        own, more = ({f.name for f in fields(method.settings)} for method in (plain, rectifying))
        assert more - own == {"rectify_weight", "shapes_codes"} and own <= more
        assert rectifying.title == f"{plain.title}, with a rectifying decoder"
        for family in ("affine-mnist", "faces"):
            assert rectifying.defaults[family] == plain.defaults[family]
        assert set(rectifying.defaults["own-images"]) - set(plain.defaults["own-images"]) == {
            "loss.shapes_codes=false",
            "encoder.decoder=free",
        }
        assert built_in(f"{name}+R-STN").has_transformer


def test_a_loss_from_outside_has_settings_of_its_own_family():
    method = METHODS["OJ"]
    unknown = type(method)(name="my:loss", title="loss", settings=method.settings)
    assert "encoder.code_norm=sphere" in unknown.default_settings("affine-mnist")
    assert "train.learning_rate=0.003" in unknown.default_settings("faces")
    assert affine_mnist("OJ").train.learning_rate == 0.018
