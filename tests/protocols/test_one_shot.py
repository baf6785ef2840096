import pytest
import torch

from orbitset.errors import DataError
from orbitset.evaluation import Labelled, knn_accuracy
from orbitset.orbits import AffineOrbits
from orbitset.protocols import OneShotTask, raw_pixels


def _orbits(num, seed, labels=True):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (num, 1, 6, 6), dtype=torch.uint8, generator=generator)
    return AffineOrbits(
        images, torch.arange(num) % 3 if labels else None, canvas_px=8, members=4, seed=seed
    )


def _task(**more):
    settings = {"test_images": 50, "draws": 7, "seed": 0, **more}
    return OneShotTask(_orbits(15, 1), _orbits(20, 2), **settings)


def test_score_equals_the_protocol_spelt_out():
    task = _task()
    gallery = task.validation.members(task.gallery_orbit, task.gallery_member).flatten(1)
    queries = task.test.members(task.query_orbit, task.query_member).flatten(1)
    expected = knn_accuracy(
        Labelled(gallery, task.validation.labels_N[task.gallery_orbit]),
        Labelled(queries, task.test.labels_N[task.query_orbit]),
        labelled_sets=task.labelled_sets,
    )
    accuracy = task.scores(raw_pixels)["euclidean"]
    assert torch.equal(accuracy.per_draw, expected.per_draw)


def test_labelled_sets_have_one_image_of_every_class():
    task = _task(shots=2)
    labels = task.validation.labels_N[task.gallery_orbit][task.labelled_sets]
    assert (labels.sort(1).values == torch.tensor([0, 0, 1, 1, 2, 2])).all()
    assert task.labelled_sets.shape == (7, 6)


def test_queries_are_different_and_as_many_as_there_are():
    task = _task(test_images=10_000)
    pairs = set(zip(task.query_orbit.tolist(), task.query_member.tolist(), strict=True))
    assert len(pairs) == len(task.query_orbit) == 80


def test_classes_that_cannot_be_labelled_and_missing_labels_are_errors():
    with pytest.raises(DataError, match="need.* class labels"):
        OneShotTask(_orbits(15, 1, labels=False), _orbits(20, 2), test_images=5, draws=2, seed=0)
    with pytest.raises(DataError, match=r"classes \[2\] of the test images"):
        OneShotTask(_orbits(2, 1), _orbits(20, 2), test_images=5, draws=2, seed=0)
