"""What is kept of recorded studies, and what must not be."""

from pathlib import Path

import numpy as np
import pytest

from orbitset.results.recorded import read_recorded
from orbitset.run_folder import Run

RESULTS = Path(__file__).parent.parent / "results"


@pytest.mark.parametrize(
    ("name", "allowed"), [("pie32", set()), ("pointing04", {"tsne", "tsne_labels"})]
)
def test_no_picture_of_a_person_is_kept(name, allowed):
    trainings = read_recorded(Run(RESULTS / name)).trainings
    assert len(trainings) >= 30
    for training in trainings.values():
        assert set(training.arrays) <= allowed, training.path
    with np.load(RESULTS / name / "arrays.npz") as arrays:
        assert {array.rsplit("/")[-1] for array in arrays.files} <= allowed


def test_no_weights_are_kept():
    assert not [*RESULTS.rglob("*.safetensors"), *RESULTS.rglob("checkpoint*")]


def test_the_records_are_few_files_and_complete():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) < 60
    for folder in RESULTS.iterdir():
        recorded = read_recorded(Run(folder))
        paths = [line.path(seed) for line, seed in recorded.study.runs()]
        assert list(recorded.trainings) == paths, folder.name
