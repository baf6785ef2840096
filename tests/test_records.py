"""What is kept of recorded studies, and what must not be."""

import json
from collections import Counter
from pathlib import Path
from statistics import mean, variance

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
        if folder.name == "own-images":
            continue
        recorded = read_recorded(Run(folder))
        paths = [line.path(seed) for line, seed in recorded.study.runs()]
        assert list(recorded.trainings) == paths, folder.name


def own_images():
    text = (RESULTS / "own-images/scores.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_own_images_are_recorded_for_every_row_and_three_seeds():
    lines = own_images()
    counts = Counter((line["data"], line["row"], line["images"]) for line in lines)
    trained = {count for (_, row, _), count in counts.items() if row != "pixels"}
    assert trained == {3} and len(counts) == 4 + 4 * 16 * 2
    assert all("error" not in line and line["commit"] and line["hardware"] for line in lines)


def test_defaults_are_level_with_the_best_row_of_their_start_on_validation_things():
    """At most 0.01 below it, or two standard errors of the difference; pretrained ones above frozen."""
    lines = own_images()
    scores = {}
    for line in lines:
        start, _, row = line["row"].partition(": ")
        for measure, score in line["scores"]["va"].items() if row else ():
            key = (start, line["data"], line["images"], measure)
            scores.setdefault(key, {}).setdefault(row, []).append(score)
            if start == "pretrained" and row == "default":
                assert score > line["start"]["va"][measure]
    assert len(scores) == 2 * 4 * 2 * 3
    for key, rows in scores.items():
        default = rows.pop("default")
        for row, others in rows.items():
            error = ((variance(others) + variance(default)) / 3) ** 0.5
            ahead = mean(others) - mean(default)
            assert ahead <= max(0.01, 2 * error), (key, row)
