"""Where images come from: each data set gives images, and labels or factors where known."""

from orbitset.datasets.arrays import load_array
from orbitset.datasets.decode import load_images
from orbitset.datasets.describing import write_manifest
from orbitset.datasets.digits import load_digits
from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.manifest import read_manifest
from orbitset.datasets.mnist import load_mnist
from orbitset.datasets.multi_pie import scan_multi_pie
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.table import ImageTable, Problem, orbit_problems

__all__ = [
    "ImageSet",
    "ImageTable",
    "ObservedImages",
    "Problem",
    "Splits",
    "load_array",
    "load_digits",
    "load_images",
    "load_mnist",
    "orbit_problems",
    "read_manifest",
    "scan_multi_pie",
    "write_manifest",
]
