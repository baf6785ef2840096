"""Where images come from: each data set gives images, and labels where known."""

from orbitset.datasets.arrays import load_array
from orbitset.datasets.digits import load_digits
from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.mnist import load_mnist

__all__ = ["ImageSet", "Splits", "load_array", "load_digits", "load_mnist"]
