"""Data by name or by path."""

from pathlib import Path

from orbitset.datasets.arrays import load_array, split
from orbitset.datasets.digits import load_digits
from orbitset.datasets.images import Splits
from orbitset.datasets.mnist import is_mnist_folder, load_mnist
from orbitset.errors import DataError


def load_splits(data: str) -> Splits:
    """The splits of `mnist`, of `digits`, or of what lies at a path."""
    match data:
        case "mnist":
            return load_mnist()
        case "digits":
            return load_digits()
    path = Path(data)
    if path.is_file() and path.suffix.lower() in (".npy", ".npz"):
        return split(load_array(path))
    if path.is_dir() and is_mnist_folder(path):
        return load_mnist(path, download=False)
    raise DataError(
        f"{path} is not data that can be read; give a folder with MNIST's idx files, "
        "or a .npy or .npz file of images"
    )
