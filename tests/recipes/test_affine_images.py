import pytest

from orbitset.protocols import FindingSettings, OneShotSettings
from orbitset.recipes.affine_images import (
    affine_digits,
    affine_images,
    described_plain,
    plain_images,
)
from orbitset.recipes.methods import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_the_embedded_digits_are_complete_for_every_method(method):
    config = affine_digits(method)
    assert (config.name, config.method, config.protocol) == ("affine-digits", method, "one-shot")
    weight = getattr(config.loss, "discriminate_weight", 10)
    assert weight == 10, "where a method has the discriminate term, it weighs that much"


def test_images_of_any_size_get_the_papers_proportions():
    config = affine_images("x.npy", 56, 30)
    assert config.orbits.canvas_px == 128
    assert config.orbits.affine.translation_px == 30
    assert config.orbits.orbits_per_batch == 30
    assert isinstance(config.evaluation, OneShotSettings) and not config.keeps_best


def test_without_labels_single_images_are_to_be_found():
    config = affine_images("x.npy", 56, 300, has_labels=False)
    assert config.protocol == "finding" and config.evaluation == FindingSettings()
    assert config.keeps_best and config.encoder.code_norm == "sphere"
    assert (config.loss.discriminate_weight, config.loss.margin_fraction) == (30, 0.4)
    assert (config.orbits.orbits_per_batch, config.orbits.members_per_batch) == (64, 4)


def test_plain_images_are_found_by_changed_ones():
    config = plain_images("/some/where/shoes", 64, 10, is_colour=False)
    assert (config.name, config.protocol, config.evaluation.test_images) == (
        "shoes",
        "finding",
        2000,
    )
    assert config.keeps_best and config.orbits.mode == "fresh" and config.orbits.photometric
    assert config.train.epochs == 20, "few images are shown no more often"
    assert plain_images("x", 64, 100_000).train.epochs == pytest.approx(1 / 8)
    assert "64 px; batches of 10 orbits x 4 members; 20 epochs" in described_plain(config)


@pytest.mark.parametrize("method", METHODS)
def test_own_images_can_be_learned_from_by_every_method(method):
    assert affine_images("x.npy", 28, 300, method).method == method
    assert affine_images("x.npy", 28, 300, method, has_labels=False).method == method
    assert plain_images("x", 64, 100, method).method == method
