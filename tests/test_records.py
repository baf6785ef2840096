"""What is kept of recorded runs, and what must not be."""

from pathlib import Path

import numpy as np
import pytest

RESULTS = Path(__file__).parent.parent / "results"


@pytest.mark.parametrize(
    ("name", "allowed"), [("pie32", set()), ("pointing04", {"tsne", "tsne_labels"})]
)
def test_no_picture_of_a_person_is_kept(name, allowed):
    files = sorted((RESULTS / name).rglob("*.npz"))
    assert len(files) >= 30
    for file in files:
        with np.load(file) as arrays:
            assert set(arrays.files) <= allowed, file


def test_no_weights_are_kept():
    assert not [*RESULTS.rglob("*.safetensors"), *RESULTS.rglob("checkpoint*")]
