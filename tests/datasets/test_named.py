import numpy as np
import pytest

from orbitset.datasets.named import load_splits
from orbitset.errors import DataError


def test_data_are_found_by_name_and_by_path(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((20, 4, 4), np.uint8))
    assert len(load_splits("digits").train) == 997
    assert len(load_splits(str(tmp_path / "x.npy")).train) == 12


def test_what_cannot_be_read_is_an_error_that_says_what_can(tmp_path):
    with pytest.raises(DataError, match=r"give a folder with MNIST's idx files, or a \.npy"):
        load_splits(str(tmp_path))
