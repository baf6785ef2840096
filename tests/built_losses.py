"""What many tests share: the objective of a method by its name."""

from orbitset.recipes.losses import LossContext, build_loss
from orbitset.recipes.methods import METHODS


def built_loss(method, *, code_size, num_orbits, num_classes=0, classify_weight=0.0, **settings):
    context = LossContext(code_size=code_size, num_orbits=num_orbits, num_classes=num_classes)
    return build_loss(METHODS[method].settings(**settings), context, classify_weight)
