from dataclasses import fields

import pytest

from orbitset.config import with_settings
from orbitset.errors import ConfigError
from orbitset.losses import Autoencoder, Exemplar, OrbitJoint, SupervisedTriplet
from orbitset.losses.methods import Classified
from orbitset.recipes.losses import (
    LossContext,
    build_loss,
    margin_of,
)
from orbitset.recipes.methods import METHODS

CONTEXT = LossContext(code_size=4, num_orbits=3, usual_distance=8.0)


def settings_of(method, **values):
    return METHODS[method].settings(**values)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("OJ", OrbitJoint),
        ("OT", OrbitJoint),
        ("OE", OrbitJoint),
        ("ST", SupervisedTriplet),
        ("EX", Exemplar),
        ("AE", Autoencoder),
    ],
)
def test_settings_build_the_methods_objective(method, kind):
    objective = settings_of(method).build(CONTEXT)
    assert type(objective) is kind
    assert objective.uses_rectified == (method in ("OJ", "OE", "AE"))


def test_every_number_reaches_the_objective():
    numbers = {
        "margin": 3.0,
        "discriminate_weight": 5.0,
        "rectify_weight": 7.0,
        "scale": "own-dimension",
        "reduction": "sum",
        "mining": "all",
    }
    for method, settings in METHODS.items():
        own = {setting.name for setting in fields(settings.settings)} & numbers.keys()
        objective = settings_of(method, **{name: numbers[name] for name in own}).build(CONTEXT)
        for name in own:
            assert getattr(objective, name) == numbers[name], (method, name)
    triplet = settings_of("OT", discriminate_weight=5.0).build(CONTEXT)
    assert (triplet.discriminate_weight, triplet.rectify_weight) == (5, 0)
    encode = settings_of("OE", rectify_weight=7.0).build(CONTEXT)
    assert (encode.discriminate_weight, encode.rectify_weight) == (0, 7)


def test_later_losses_have_settings_of_their_own():
    numbers = {"temperature": 0.3, "learns_temperature": False, "rectify_weight": 2.0}
    for name in ("IN+R", "SG+R", "PR+R"):
        loss = settings_of(name, **numbers).build(CONTEXT)
        assert loss.temperature().item() == pytest.approx(0.3) and loss.rectify_weight == 2
        assert loss.uses_rectified and "temperature.log" not in dict(loss.named_parameters())
        assert not settings_of(name.removesuffix("+R")).build(CONTEXT).uses_rectified
    assert settings_of("SG", bias=-2.0).build(CONTEXT).bias.item() == -2
    assert settings_of("PR", momentum=0.9).build(CONTEXT).prototypes.shape == (3, 4)
    memory = settings_of("IN", memory=7, memory_after=9).build(CONTEXT).memory
    assert memory.codes.shape == (7, 4) and memory.after == 9
    assert settings_of("IN").build(CONTEXT).memory is None


@pytest.mark.parametrize(
    ("method", "values", "words"),
    [
        ("IN", {"temperature": 0.0}, "loss.temperature is 0.0; give a number from 0.01 to 1"),
        ("SG+R", {"temperature": 2.0}, "loss.temperature is 2.0; give a number from 0.01 to 1"),
        ("IN", {"memory": -5}, "loss.memory is -5; give a number of at least 0"),
        ("PR", {"momentum": 1.5}, "loss.momentum is 1.5; give a number from 0 to 1"),
        (
            "PR+R",
            {"rectify_weight": 0.0},
            "loss.rectify_weight is 0.0; .* IN, IM, SG and PR have no",
        ),
    ],
)
def test_settings_of_later_losses_out_of_range_are_refused(method, values, words):
    with pytest.raises(ConfigError, match=words):
        METHODS[method].settings(**values)


def test_an_exemplar_tells_as_many_orbits_apart_as_there_are():
    classifier = settings_of("EX").build(CONTEXT).classifier
    assert (classifier.in_features, classifier.out_features) == (4, 3)


def test_the_margin_is_what_is_set_or_a_fraction_of_the_usual_distance():
    assert margin_of(METHODS["OJ"].settings(margin=3.0), 8.0) == 3
    assert margin_of(METHODS["OJ"].settings(margin_fraction=0.5), 8.0) == 4
    assert margin_of(METHODS["ST"].settings(), 8.0) == 1, "an eighth if nothing is set"
    assert margin_of(METHODS["ST"].settings(), None) == 0.2, (
        "codes without a norm have no usual distance"
    )
    for method in ("OJ", "OT", "ST"):
        assert settings_of(method, margin_fraction=0.5).build(CONTEXT).margin == 4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"margin": 0.0}, "loss.margin is 0.0; give a number above 0"),
        (
            {"margin_fraction": 0.0},
            "loss.margin_fraction is 0.0; give a number above 0 and at most 2",
        ),
        ({"margin_fraction": 2.5}, "beyond which no two codes lie"),
        ({"margin": 1.0, "margin_fraction": 0.5}, "contradict each other; set one"),
        ({"discriminate_weight": 0.0}, "loss.discriminate_weight is 0.0; give a number above 0"),
        ({"scale": "printed"}, "did you mean as-printed"),
        ({"reduction": "mena"}, "did you mean mean"),
        ({"mining": "semihardest"}, "mining"),
    ],
)
def test_settings_out_of_range_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        METHODS["OT"].settings(**values)


def test_a_margin_and_a_fraction_replace_each_other():
    base = METHODS["OT"].settings(margin=165.0)
    assert with_settings(base, ["margin_fraction=0.5"]) == METHODS["OT"].settings(
        margin_fraction=0.5
    )
    base = METHODS["ST"].settings(margin_fraction=0.5)
    assert with_settings(base, ["margin=2"]) == METHODS["ST"].settings(margin=2.0)
    assert with_settings(base, ["margin=2", "margin_fraction=null"]) == METHODS["ST"].settings(
        margin=2.0
    )


def test_a_margin_and_a_fraction_that_are_both_set_are_refused():
    with pytest.raises(
        ConfigError, match="margin and margin_fraction contradict each other; set one"
    ):
        with_settings(METHODS["OJ"].settings(), ["margin=2", "margin_fraction=0.1"])


def test_classes_are_learned_beside_any_objective():
    context = LossContext(code_size=4, num_orbits=3, num_classes=2, usual_distance=8.0)
    for method in METHODS:
        objective = build_loss(settings_of(method), context, 0.5)
        assert isinstance(objective, Classified) and objective.weight == 0.5
        assert objective.classifier.out_features == 2
        assert type(build_loss(settings_of(method), context)) is type(objective.objective)
    with pytest.raises(ConfigError, match="that are trained on have 0; give labels of at least 2"):
        build_loss(settings_of("OJ"), CONTEXT, 0.5)
