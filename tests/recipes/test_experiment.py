from dataclasses import replace

import pytest

from orbitset.config import to_dict, with_settings
from orbitset.errors import ConfigError
from orbitset.orbits import OrbitConfig
from orbitset.protocols import FindingSettings, OneShotSettings, PairsSettings
from orbitset.recipes.affine_images import affine_digits, affine_images
from orbitset.recipes.affine_mnist import affine_mnist
from orbitset.recipes.experiment import (
    Experiment,
    protocol_named,
    read_experiment,
    resolved,
    with_protocol,
)
from orbitset.recipes.losses import build_loss
from orbitset.recipes.methods import METHODS


def experiment(**options):
    return Experiment(**{"name": "x", "data": "digits", **options})


@pytest.mark.parametrize("method", ["OJ", "OT"])
def test_comparing_members_needs_two_of_them(method):
    with pytest.raises(ConfigError, match="compares members of one orbit"):
        experiment(method=method, orbits=OrbitConfig(members_per_batch=1))


@pytest.mark.parametrize("method", ["OJ", "OT", "ST"])
def test_comparing_orbits_needs_two_of_them(method):
    with pytest.raises(ConfigError, match="a batch with one orbit has no negatives"):
        experiment(method=method, orbits=OrbitConfig(orbits_per_batch=1))


def test_an_autoencoder_needs_neither():
    orbits = OrbitConfig(orbits_per_batch=1, members_per_batch=1)
    assert experiment(method="AE", orbits=orbits).margin is None


def test_a_method_of_any_case_brings_the_settings_of_its_loss():
    config = experiment(method="ot-stn")
    assert (config.method, type(config.loss)) == ("OT-STN", METHODS["OT"].settings)
    assert config.has_transformer and config.evaluation == OneShotSettings()
    with pytest.raises(ConfigError, match="method is 'OX'; choose one of .*did you mean OT"):
        experiment(method="OX")
    with pytest.raises(ConfigError, match="protocol is 'on-shot'; .*did you mean one-shot"):
        experiment(protocol="on-shot")
    with pytest.raises(ConfigError, match="settings of another method than OT: OESettings"):
        experiment(method="OT", loss=METHODS["OE"].settings())


def test_numbers_are_checked():
    with pytest.raises(ConfigError, match="seed is -1; give at least 0"):
        experiment(seed=-1)
    with pytest.raises(ConfigError, match="classify_weight is -0.5; give at least 0"):
        experiment(classify_weight=-0.5)
    with pytest.raises(
        ConfigError, match="measure 'purity' is not understood; write package.module"
    ):
        experiment(measures=("purity",))
    with pytest.raises(ConfigError, match="ST learns from classes as it is; leave out the classes"):
        experiment(method="ST", classify_weight=1.0)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"draws": 0}, OneShotSettings),
        ({"test_images": 0}, OneShotSettings),
        ({"tsne_points": 7}, OneShotSettings),
        ({"splits": -1}, OneShotSettings),
        ({"on": "train"}, OneShotSettings),
        ({"test_images": 0}, FindingSettings),
        ({"on": "train"}, FindingSettings),
    ],
)
def test_evaluation_settings_are_checked(wrong, kind):
    with pytest.raises(ConfigError, match=f"evaluation.{next(iter(wrong))}"):
        kind(**wrong)


def test_a_margin_follows_the_code_unless_it_is_set():
    assert affine_digits().margin == 16
    assert with_settings(affine_digits(), ["encoder.code_size=256"]).margin == 64
    assert with_settings(affine_digits(), ["encoder.code_norm=unit"]).margin == 0.25
    assert with_settings(affine_digits(), ["encoder.code_norm=none"]).margin == 0.2
    assert with_settings(affine_digits(), ["loss.margin=3"]).margin == 3
    assert affine_digits("OE").margin is affine_digits("AE").margin is None


def test_a_fraction_of_no_distance_is_refused():
    settings = ["encoder.code_norm=none", "loss.margin_fraction=0.5"]
    with pytest.raises(ConfigError, match="loss.margin_fraction is 0.5, and codes without a norm"):
        with_settings(affine_digits(), settings)
    assert with_settings(affine_mnist("OT"), ["loss.margin=3"]).margin == 3
    with pytest.raises(ConfigError, match="codes without a norm have no usual distance"):
        with_settings(affine_mnist("OT"), ["loss.margin_fraction=0.5"])


def test_a_fraction_takes_the_place_of_the_margin_that_a_recipe_sets():
    base = replace(affine_mnist("OT"), encoder=affine_mnist("OJ").encoder)
    assert base.margin == 165
    assert with_settings(base, ["loss.margin_fraction=0.5"]).margin == 1024
    both = ["loss.margin=3", "loss.margin_fraction=0.5"]
    with pytest.raises(ConfigError, match="loss.margin and loss.margin_fraction contradict"):
        with_settings(base, both)


@pytest.mark.parametrize(
    ("method", "settings", "shares"),
    [
        ("EX", [], {"loss.classifier.": 0.1}),
        ("OJ", ["classify_weight=1"], {"loss.classifier.": 0.1}),
        (
            "EX",
            ["classify_weight=1"],
            {"loss.classifier.": 0.1, "loss.objective.classifier.": 0.1},
        ),
    ],
)
def test_every_classifier_takes_its_share_of_the_learning_rate(method, settings, shares):
    config = with_settings(affine_mnist(method), [*settings, "train.classifier_rate=0.1"])
    assert config.rate_shares == shares
    context = config.loss_context(num_orbits=3, num_classes=2)
    loss = build_loss(config.loss, context, config.classify_weight)
    names = [f"loss.{name}" for name, _ in loss.named_parameters()]
    assert names and all(name.startswith(tuple(shares)) for name in names)


@pytest.mark.parametrize("name", ["transformer_rate", "backbone_rate", "classifier_rate"])
def test_settings_of_what_is_not_there_are_refused(name):
    with pytest.raises(ConfigError, match=f"train.{name} is for"):
        with_settings(affine_mnist("OJ"), [f"train.{name}=0.5"])
    with pytest.raises(ConfigError, match=f"train.{name} is -1"):
        with_settings(affine_mnist("OJ"), [f"train.{name}=-1"])


@pytest.mark.parametrize(
    "setting", ["head_first=0.1", "unfreeze=0.1", "layer_decay=0.8", "lora=4", "recompute=true"]
)
def test_the_papers_network_is_not_fine_tuned_block_by_block(setting):
    name = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"train.{name} is for another network than the paper's"):
        with_settings(affine_mnist("OJ"), [f"train.{setting}"])


@pytest.mark.parametrize("setting", ["layer_decay=0", "layer_decay=1.1", "lora=0", "unfreeze=-0.1"])
def test_how_a_network_is_fine_tuned_is_checked(setting):
    with pytest.raises(ConfigError, match=r"train\.\w+ is .*; give"):
        with_settings(affine_mnist("OJ"), ["encoder.backbone=timm:resnet18", f"train.{setting}"])


def test_a_number_of_evaluations_takes_the_place_of_their_moments(small_faces):
    config = small_faces("OJ")
    assert config.train.evaluate_at, "the recipe sets moments"
    assert with_settings(config, ["train.evaluations=3"]).train.evaluate_at == ()
    both = ["train.evaluations=3", "train.evaluate_at=1"]
    with pytest.raises(ConfigError, match="evaluations and train.evaluate_at contradict"):
        with_settings(config, both)


def test_best_weights_need_images_to_choose_them_by(small_faces):
    with pytest.raises(ConfigError, match="train.keep is best, and one-shot has no validation"):
        with_settings(affine_digits(), ["train.keep=best"])
    assert small_faces("OJ", "train.keep=best").keeps_best
    few = small_faces(split="session=1,2/4")
    with pytest.raises(ConfigError, match="pairs has no validation images here .* train.keep=last"):
        with_settings(few, ["train.keep=best"])
    assert affine_images("x.npy", 28, 50, has_labels=False).keeps_best


def test_an_early_end_needs_images_to_judge_by(small_faces):
    assert small_faces("OJ", "train.keep=last").train.patience == 3
    assert small_faces(split="session=1,2/4").train.patience is None
    with pytest.raises(ConfigError, match="train.patience is 2, and one-shot has no validation"):
        with_settings(affine_digits(), ["train.patience=2"])
    with pytest.raises(ConfigError, match="train.patience is 0; give at least 1"):
        small_faces("OJ", "train.patience=0")


def test_another_protocol_keeps_what_both_have():
    finding = affine_images("x.npy", 28, 50, has_labels=False)
    finding = with_settings(finding, ["evaluation.seed=4"])
    config = with_protocol(finding, "one-shot")
    assert config.evaluation == OneShotSettings(seed=4) and not config.keeps_best
    back = with_protocol(config, "finding")
    assert back.evaluation == FindingSettings(seed=4) and back.protocol == "finding"
    with pytest.raises(ConfigError, match="the setting evaluation.split_by is missing"):
        with_protocol(config, "pairs")


@pytest.mark.parametrize("method", [*METHODS, "OT-STN"])
def test_every_configuration_is_read_as_it_was_written(method, small_faces):
    for config in (affine_digits(method), small_faces(method)):
        assert read_experiment(to_dict(config)) == config
        assert resolved(config, "config.json") == config


def test_the_kinds_of_settings_follow_from_what_is_read(small_faces):
    config = read_experiment(to_dict(small_faces()))
    assert isinstance(config.evaluation, PairsSettings) and config.orbits.orbit
    values = {**to_dict(affine_digits()), "method": "OX"}
    with pytest.raises(ConfigError, match="method is 'OX'; choose one of"):
        read_experiment(values)
    with pytest.raises(ConfigError, match="there is no setting 'colour'"):
        read_experiment({**to_dict(affine_digits()), "colour": "red"})


def test_what_a_file_names_from_outside_is_not_imported_to_read_it():
    values = to_dict(affine_digits()) | {
        "method": "not_there:loss",
        "loss": {"temperature": 0.1},
        "protocol": "not_there:Protocol",
        "evaluation": {"size": 3},
        "measures": ["not_there:measure"],
    }
    config = read_experiment(values)
    assert (config.loss.temperature, config.evaluation.size, config.margin) == (0.1, 3, None)
    assert to_dict(config) == values


def test_classes_and_their_weight_are_set_together(small_faces):
    with pytest.raises(ConfigError, match="orbits.classes names the factor .* set both or none"):
        small_faces("OJ", "orbits.classes=person")
    with pytest.raises(ConfigError, match="orbits.classes names the factor .* set both or none"):
        small_faces("OJ", "classify_weight=0.1")
    both = small_faces("OJ", "orbits.classes=person", "classify_weight=0.1")
    with pytest.raises(ConfigError, match="person is what tells the orbits apart"):
        with_settings(both, ["orbits.orbit=person"])
    with pytest.raises(ConfigError, match="orbits.label is not set; name the factor"):
        small_faces("OJ", "orbits.label=null")
    with pytest.raises(ConfigError, match="ST learns from view, .* put it into orbits.orbit"):
        small_faces("ST", "orbits.label=view")


LACKING = """
from dataclasses import dataclass
from orbitset.protocols import About, Protocol

@dataclass(frozen=True)
class Few:
    train: tuple[str, ...] = ()

class Mine(Protocol):
    orbits = "observed"
    Settings = Few
    about = About(how="")
"""


def test_a_protocol_of_observed_orbits_needs_the_settings_of_a_split(tmp_path, monkeypatch):
    (tmp_path / "lacking_protocols.py").write_text(LACKING)
    monkeypatch.syspath_prepend(tmp_path)
    missing = "lack exclude, split_by, test, validation, which .* from orbitset.protocols.PairsSet"
    with pytest.raises(ConfigError, match=missing):
        protocol_named("lacking_protocols:Mine")
