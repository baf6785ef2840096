import pytest
from orbitset.experiments import RECIPES, affine_digits, affine_images, affine_mnist, recipe

from orbitset.config import with_settings
from orbitset.errors import ConfigError


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("method", ["OJ", "OT", "OE", "ST", "EX", "AE"])
def test_every_recipe_is_complete_for_every_method(name, method):
    config = recipe(name, method)
    assert (config.name, config.method) == (name, method)


def test_affine_mnist_is_the_papers():
    config = affine_mnist()
    assert config.orbits.members == 33
    assert config.orbits.orbits_per_batch * config.orbits.members_per_batch == 256
    assert config.encoder.channels == (16, 32, 64, 128)
    assert config.encoder.code_size == 1024
    assert (config.evaluation.test_images, config.evaluation.draws) == (25_000, 100)


def test_margin_follows_the_code_unless_it_was_set():
    assert with_settings(affine_digits(), ["encoder.code_size=256"]).margin == 64
    assert with_settings(affine_digits(), ["encoder.code_norm=unit"]).margin == 0.25
    assert with_settings(affine_digits(), ["encoder.code_norm=none"]).margin == 0.2
    assert with_settings(affine_digits(), ["loss.margin=3"]).margin == 3


def test_images_of_any_size_get_the_papers_proportions():
    config = affine_images("x.npy", 56, 30)
    assert config.orbits.canvas_px == 128
    assert config.orbits.affine.translation_px == 30
    assert config.orbits.orbits_per_batch == 30


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean affine-digits"):
        recipe("afine-digits", "OJ")
