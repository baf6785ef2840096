import pytest

from orbitset.config import differences
from orbitset.errors import ConfigError
from orbitset.recipes.affine_mnist import (
    METHODS,
    RATIOS,
    VARIANTS,
    affine_mnist,
    affine_mnist_study,
)


@pytest.mark.parametrize("method", METHODS)
def test_it_is_complete_for_every_method(method):
    config = affine_mnist(method)
    assert (config.name, config.data, config.method) == ("affine-mnist", "mnist", method)


def test_orbits_network_and_evaluation_are_the_papers():
    config = affine_mnist()
    assert config.orbits.members == 33
    assert config.orbits.orbits_per_batch * config.orbits.members_per_batch == 256
    assert config.encoder.channels == (16, 32, 64, 128)
    assert config.encoder.code_size == 1024
    assert (config.evaluation.test_images, config.evaluation.draws) == (25_000, 100)


def test_all_methods_share_data_network_size_and_batch_and_all_but_ex_their_length():
    configs = [line.config for line in affine_mnist_study().lines if line.role != "point"]
    for name in ("data", "evaluation"):
        assert len({getattr(config, name) for config in configs}) == 1
    assert {config.encoder.channels for config in configs} == {(16, 32, 64, 128)}
    assert {config.encoder.code_size for config in configs} == {1024}
    lengths = {config.train.epochs for config in configs if config.method != "EX"}
    assert lengths == {configs[0].train.epochs}
    sizes = {c.orbits.orbits_per_batch * c.orbits.members_per_batch for c in configs}
    assert sizes == {256}


def test_the_whole_experiment_is_the_papers():
    study = affine_mnist_study()
    assert [line.label for line in study.lines][: len(METHODS)] == list(METHODS)
    assert study.seeds == (0, 1, 2) and study.cut_down is None
    evaluation = study.lines[0].config.evaluation
    assert (evaluation.test_images, evaluation.draws, evaluation.splits) == (25_000, 100, 10)
    train = study.lines[0].config.train
    assert train.epochs * 1_650_000 == pytest.approx(10_000_000)
    assert train.evaluate_at == (0.125, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def test_a_transformer_takes_the_settings_of_its_method():
    assert differences(affine_mnist("OT"), affine_mnist("OT-STN")) == [
        "method: OT → OT-STN",
        "train.transformer_rate: 1.0 → 0.01",
    ]
    assert differences(affine_mnist("OE"), affine_mnist("OE-STN")) == ["method: OE → OE-STN"]
    lines = affine_mnist_study(methods=["EX", "EX-STN"]).lines
    assert lines[0].config.train.evaluate_at == lines[1].config.train.evaluate_at


def test_ex_is_trained_for_one_epoch_at_most():
    train = affine_mnist_study(methods=["EX"]).lines[0].config.train
    assert train.epochs == 1
    assert train.evaluate_at == tuple(eighth / 8 for eighth in range(1, 8))
    assert affine_mnist_study(methods=["EX"], epochs=0.5).lines[0].config.train.epochs == 0.5
    assert affine_mnist_study(methods=["EX"], epochs=3).cut_down == "cut down: 1 of 8 methods"
    assert "3 epochs instead of 6.1" in affine_mnist_study(methods=["EX", "OJ"], epochs=3).cut_down


def test_as_printed_has_switches_equal_weights_and_a_batch_of_256():
    lines = {line.label: line.config for line in affine_mnist_study().lines}
    printed = lines["OJ, as printed"]
    assert printed.encoder.unpooling == "switches" and printed.loss.scale == "as-printed"
    assert printed.loss.discriminate_weight == printed.loss.rectify_weight
    assert printed.orbits.orbits_per_batch * printed.orbits.members_per_batch == 256
    assert lines["OJ, own dimension"].loss.scale == "own-dimension"
    assert set(VARIANTS) <= set(lines)


def test_points_of_the_curve_have_the_ratio_they_are_labelled_with():
    points = [line for line in affine_mnist_study().lines if line.role == "point"]
    for line, ratio in zip(points, RATIOS, strict=True):
        loss = line.config.loss
        assert loss.rectify_weight / loss.discriminate_weight == pytest.approx(ratio)
        assert line.label == f"OJ at {ratio:g}"


def test_what_is_cut_down_says_so():
    study = affine_mnist_study(epochs=0.002, seeds=2, test_images=2000)
    assert "0.002 epochs" in study.cut_down
    assert "2 seeds" in study.cut_down and "2,000 test images" in study.cut_down
    assert affine_mnist_study(methods=["oj"]).cut_down == "cut down: 1 of 8 methods"
    assert len(affine_mnist_study(methods=["oj"], extras=False).lines) == 1
    for line in study.lines:
        assert line.config.train.evaluate_at[-1] < line.config.train.epochs


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"methods": ["OX"]}, "choose one of"),
        ({"methods": ["OJ", "oj"]}, "named twice"),
        ({"methods": []}, "at least one method"),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": 10**20}, "give 1 to 1000"),
        ({"epochs": 0}, "above 0"),
        ({"test_images": 1}, "test_images is 1; give at least 20"),
        ({"epochs": float("inf")}, "above 0"),
    ],
)
def test_wrong_wishes_are_refused(asked, word):
    with pytest.raises(ConfigError, match=word):
        affine_mnist_study(**asked)
