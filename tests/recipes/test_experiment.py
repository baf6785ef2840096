import pytest
from orbitset.experiments import EvalConfig, ExperimentConfig, affine_mnist
from orbitset.experiments.config import with_method

from orbitset.config import with_settings
from orbitset.errors import ConfigError
from orbitset.losses import build_loss
from orbitset.orbits import OrbitConfig


@pytest.mark.parametrize("method", ["OJ", "OT"])
def test_comparing_members_needs_two_of_them(method):
    with pytest.raises(ConfigError, match="compares members of one orbit"):
        orbits = OrbitConfig(members_per_batch=1)
        ExperimentConfig(name="x", data="digits", method=method, orbits=orbits)


@pytest.mark.parametrize("method", ["OJ", "OT", "ST"])
def test_comparing_orbits_needs_two_of_them(method):
    with pytest.raises(ConfigError, match="a batch with one orbit has no negatives"):
        orbits = OrbitConfig(orbits_per_batch=1)
        ExperimentConfig(name="x", data="digits", method=method, orbits=orbits)


def test_an_autoencoder_needs_neither():
    orbits = OrbitConfig(orbits_per_batch=1, members_per_batch=1)
    assert not ExperimentConfig(name="x", data="digits", method="AE", orbits=orbits).uses_margin


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"test_images": 0}, {"tsne_points": 7}])
def test_evaluation_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EvalConfig(**wrong)


@pytest.mark.parametrize(
    ("method", "settings", "shares"),
    [
        ("EX", [], {"loss.classifier.": 0.1}),
        ("OJ", ["loss.classify_weight=1"], {"loss.classifier.": 0.1}),
        (
            "EX",
            ["loss.classify_weight=1"],
            {"loss.classifier.": 0.1, "loss.objective.classifier.": 0.1},
        ),
    ],
)
def test_every_classifier_takes_its_share_of_the_learning_rate(method, settings, shares):
    config = with_settings(affine_mnist(method), [*settings, "train.classifier_rate=0.1"])
    assert config.rate_shares == shares
    arguments = {"code_size": 4, "num_orbits": 3, "num_classes": 2}
    loss = build_loss(config.objective, config.loss, **arguments)
    names = [f"loss.{name}" for name, _ in loss.named_parameters()]
    assert names and all(name.startswith(tuple(shares)) for name in names)


@pytest.mark.parametrize("name", ["transformer_rate", "backbone_rate", "classifier_rate"])
def test_settings_of_what_is_not_there_are_refused(name):
    with pytest.raises(ConfigError, match=f"train.{name} is for"):
        with_settings(affine_mnist("OJ"), [f"train.{name}=0.5"])
    with pytest.raises(ConfigError, match=f"train.{name} is -1"):
        with_settings(affine_mnist("OJ"), [f"train.{name}=-1"])


def test_another_method_leaves_what_only_the_old_one_has():
    assert with_method(affine_mnist("EX"), "OE").train.classifier_rate == 1
    assert with_method(affine_mnist("ST-STN"), "ST").train.transformer_rate == 1
    kept = with_method(affine_mnist("ST-STN"), "OT-STN").train.transformer_rate
    assert kept == affine_mnist("ST-STN").train.transformer_rate != 1
