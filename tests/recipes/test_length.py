import math

import pytest

from orbitset.config import with_settings
from orbitset.errors import ConfigError
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.length import evaluated_often


@pytest.mark.parametrize(
    ("epochs", "moments"),
    [
        (0.2, (0.1,)),
        (0.4, (0.25,)),
        (1.0, (0.25, 0.5)),
        (3.0, (0.25, 0.5, 1.0, 2.0)),
        (20.0, (0.25, 0.5, *(2.0 * part for part in range(1, 10)))),
    ],
)
def test_evaluations_are_dense_early_and_even_later(epochs, moments):
    train = evaluated_often(affine_digits(), epochs).train
    assert train.epochs == epochs
    assert train.evaluate_at == pytest.approx(moments)


def test_nothing_else_changes():
    config = with_settings(affine_digits(), ["train.learning_rate=0.5"])
    train = evaluated_often(config, 3.0).train
    assert train.learning_rate == 0.5 and train.keep == config.train.keep


@pytest.mark.parametrize("epochs", [0, -1, math.inf, math.nan])
def test_a_training_without_an_image_is_refused(epochs):
    with pytest.raises(ConfigError, match="give it at least one image"):
        evaluated_often(affine_digits(), epochs)
