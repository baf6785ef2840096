import pytest

from orbitset.config import with_settings
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.affine_mnist import affine_mnist
from orbitset.recipes.methods import METHODS, PAPER_METHODS
from orbitset.recipes.search_space import (
    margin_without_norm,
    options_of,
    own_values,
    settings_of,
    space_of,
    with_all_changes,
)


def _members(space):
    return space["orbits.members_per_batch"].choices


@pytest.mark.parametrize("recipe", [affine_mnist, affine_digits])
@pytest.mark.parametrize("method", [*METHODS, "OT-STN", "IN+R-STN"])
def test_a_recipes_own_point_gives_its_settings(recipe, method):
    base = recipe(method)
    own = own_values(base)
    point = {name: own[name] for name in space_of(base, 900, 33)}
    config = with_settings(base, settings_of(point, base, 900))
    assert config.margin == base.margin
    assert config.train == base.train and config.encoder == base.encoder
    assert config.orbits == base.orbits
    for name in ("discriminate_weight", "mining", "rectify_weight", "temperature"):
        assert getattr(config.loss, name, None) == getattr(base.loss, name, None)


@pytest.mark.parametrize(
    ("norm", "margin"), [("batch", 32), ("sphere", 32), ("unit", 0.5), ("none", 12.5)]
)
def test_a_margin_fits_the_codes_it_is_tried_with(norm, margin):
    base = affine_digits("OT")
    point = {"encoder.code_norm": norm, "loss.margin_fraction": 0.25}
    config = with_settings(base, settings_of(point, base, 900))
    assert config.margin == pytest.approx(margin)
    assert own_values(config)["loss.margin_fraction"] == pytest.approx(0.25)


def test_a_margin_that_was_set_gives_way_to_the_one_that_is_tried():
    base = with_settings(affine_digits("OT"), ["loss.margin=3"])
    assert own_values(base)["loss.margin_fraction"] == pytest.approx(3 / 128)
    assert with_settings(base, settings_of({"loss.margin_fraction": 0.5}, base, 900)).margin == 64


def test_without_a_norm_margins_run_from_a_tenth_to_a_hundred():
    found = [margin_without_norm(fraction) for fraction in (0.01, 0.1, 1)]
    assert found == pytest.approx([0.1, 10**0.5, 100])


def test_numbers_have_three_digits():
    base = affine_digits("OJ")
    point = {"train.learning_rate": 0.00123456, "loss.discriminate_weight": 29.9999}
    expected = ["train.learning_rate=0.00123", "loss.discriminate_weight=30"]
    assert settings_of(point, base, 900) == expected
    fraction = settings_of({"loss.margin_fraction": 0.987654}, affine_mnist("OJ"), 900)
    assert fraction == ["loss.margin_fraction=0.988"]


@pytest.mark.parametrize("method", METHODS)
def test_every_batch_keeps_its_number_of_images(method):
    base = affine_digits(method)
    choices = _members(space_of(base, 900, 33))
    assert (1 in choices) == (not METHODS[method].compares_members)
    for members in choices:
        settings = settings_of({"orbits.members_per_batch": members}, base, 900)
        orbits = with_settings(base, settings).orbits
        assert orbits.orbits_per_batch * orbits.members_per_batch == 64


def test_batches_that_cannot_be_made_are_not_tried():
    base = affine_digits("OE")
    assert _members(space_of(base, 16, 33)) == (4, 8)
    few = with_settings(base, ["orbits.members=3", "orbits.members_per_batch=2"])
    assert _members(space_of(few, 900, 3)) == (1, 2)
    tiny = with_settings(base, ["orbits.orbits_per_batch=2", "orbits.members_per_batch=2"])
    assert _members(space_of(tiny, 900, 33)) == (1, 2)


def test_a_space_holds_what_its_base_has():
    settings = ["train.learning_rate=0.5", "encoder.code_norm=unit", "orbits.members_per_batch=3"]
    space = space_of(with_settings(affine_digits("OJ"), settings), 900, 33)
    assert space["encoder.code_norm"].choices == ("none", "batch", "sphere", "unit")
    rate = space["train.learning_rate"]
    assert (rate.low, rate.high) == (3e-5, 0.5)
    assert _members(space) == (2, 4, 8, 3)


@pytest.mark.parametrize(
    ("setting", "dimension"),
    [
        ("loss.margin", "loss.margin_fraction"),
        ("orbits.orbits_per_batch", "orbits.members_per_batch"),
        ("encoder.code_norm", "encoder.code_norm"),
    ],
)
def test_what_is_fixed_is_not_searched(setting, dimension):
    base = affine_digits("OJ")
    missing = space_of(base, 900, 33).keys() - space_of(base, 900, 33, [setting]).keys()
    assert missing == {dimension}


def test_a_temperature_and_the_weight_beside_it_are_tried_where_there_are_such():
    names = {"loss.temperature", "loss.rectify_weight"}
    searched = {name: names & space_of(affine_mnist(name), 900, 33).keys() for name in METHODS}
    assert all(searched[f"{name}+R"] == names for name in ("IN", "SG", "PR"))
    assert all(searched[name] == {"loss.temperature"} for name in ("IN", "SG", "PR"))
    assert not any(searched[name] for name in PAPER_METHODS)


def test_a_classifiers_learning_rate_is_tried_where_there_is_one():
    assert "train.classifier_rate" in space_of(affine_mnist("EX"), 900, 33)
    assert "train.classifier_rate" not in space_of(affine_mnist("OJ"), 900, 33)


def test_a_transformers_learning_rate_is_tried_where_there_is_one():
    assert "train.transformer_rate" not in space_of(affine_mnist("ST"), 900, 33)
    assert "train.transformer_rate" in space_of(affine_mnist("ST-STN"), 900, 33)
    assert "train.transformer_rate" not in space_of(
        affine_mnist("ST-STN"), 900, 33, ["train.transformer_rate"]
    )


OBSERVED = ("images per batch", "augmentation")


@pytest.mark.parametrize("method", METHODS)
def test_every_point_of_observed_orbits_can_be_trained(small_faces, method):
    """24 orbits of 3 members; a batch has 6 x 3 of them."""
    base = small_faces(method)
    space, own = space_of(base, 24, 3), own_values(base)
    assert set(OBSERVED) < space.keys() and "encoder.code_norm" not in space
    changing = with_all_changes(base, 16)
    point = {name: own[name] for name in space}
    config = with_settings(changing, settings_of(point, changing, 24))
    assert config.orbits == base.orbits and config.train == base.train
    for members in _members(space):
        for images in space["images per batch"].choices:
            point |= {"orbits.members_per_batch": members, "images per batch": images}
            orbits = with_settings(changing, settings_of(point, changing, 24)).orbits
            assert orbits.members_per_batch == members <= 3
            assert orbits.orbits_per_batch == min(24, images // members) >= 2


def test_augmentation_is_on_or_off(small_faces):
    base = with_all_changes(small_faces(), 16)
    on, off = (settings_of({"augmentation": is_on}, base, 24) for is_on in (True, False))
    assert with_settings(base, on) == base
    assert with_settings(base, off) == small_faces()
    assert options_of({"augmentation": True}, on) == ["--augment"]
    settings = [*off, "train.learning_rate=0.1"]
    options = ["--no-augment", "--set", "train.learning_rate=0.1"]
    assert options_of({"augmentation": False}, settings) == options


@pytest.mark.parametrize(
    ("fixed", "missing"),
    [
        ("orbits.photometric.hue_deg", {"augmentation"}),
        ("orbits.affine", {"augmentation"}),
        ("orbits.orbits_per_batch", {"images per batch", "orbits.members_per_batch"}),
        ("orbits.members_per_batch", {"orbits.members_per_batch"}),
    ],
)
def test_what_is_fixed_of_observed_orbits_is_not_searched(small_faces, fixed, missing):
    base = small_faces()
    assert space_of(base, 24, 3).keys() - space_of(base, 24, 3, [fixed]).keys() == missing


def test_the_rates_of_another_network_are_tried_where_there_is_one(small_faces):
    rates = {"train.backbone_rate", "train.head_rate"}
    other = ["encoder.backbone=my_networks:Net", "train.head_rate=0.1"]
    assert rates < space_of(small_faces("OJ", *other), 24, 3).keys()
    frozen = space_of(small_faces("OJ", *other, "train.backbone_rate=0"), 24, 3)
    assert rates & frozen.keys() == {"train.head_rate"}
    assert not rates & space_of(small_faces(), 24, 3).keys()


def test_the_balance_of_observed_orbits_is_searched_around_their_own(small_faces):
    weight = space_of(small_faces("OJ", "loss.discriminate_weight=5"), 24, 3)
    weight = weight["loss.discriminate_weight"]
    assert (weight.low, weight.high) == (0.05, 500)
