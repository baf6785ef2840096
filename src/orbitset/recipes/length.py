"""How long a training on observed orbits is, and when it is evaluated."""

import math
from dataclasses import replace

from orbitset.errors import ConfigError, count_of
from orbitset.recipes.experiment import Experiment

PATIENCE = 3
"""Evaluations without a better score on validation images that end a training on a user's own images"""
_EARLY = (0.25, 0.5)
_MOST_PARTS = 10


def evaluated_often(config: Experiment, epochs: float) -> Experiment:
    """Evaluated twice within the first epoch, then after each of up to ten equal parts."""
    if not 0 < epochs < math.inf:
        raise ConfigError(f"a training has {epochs} epochs; give it at least one image")
    parts = min(_MOST_PARTS, max(1, int(epochs)))
    moments = [*_EARLY, *(epochs * part / parts for part in range(1, parts))]
    inside = tuple(moment for moment in sorted(moments) if moment < epochs) or (epochs / 2,)
    return replace(config, train=replace(config.train, epochs=epochs, evaluate_at=inside))


def described_length(config: Experiment) -> str:
    """The length in words."""
    train = config.train
    epochs = f"{train.epochs:.3g} epoch{'s' * (train.epochs != 1)}"
    if train.patience is None:
        return epochs
    evaluations = count_of(train.patience, "evaluation")
    return f"at most {epochs}, fewer if {evaluations} in a row bring no better score on validation images"
