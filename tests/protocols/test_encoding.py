import pytest
import torch
from orbitset.experiments import OneShotTask
from orbitset.experiments.task import FindingTask, encode_members, orbit_curve, raw_pixels

from orbitset.errors import DataError
from orbitset.evaluation import Labelled, one_shot_accuracy
from orbitset.orbits import AffineOrbits, AffineRanges


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
    expected = one_shot_accuracy(
        Labelled(gallery, task.validation.labels_N[task.gallery_orbit]),
        Labelled(queries, task.test.labels_N[task.query_orbit]),
        labelled_sets=task.labelled_sets,
    )
    assert task.scores(raw_pixels)["euclidean"].summary() == expected.summary()


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


def test_members_are_encoded_in_order_whatever_their_number():
    orbits = _orbits(20, 2)
    orbit, member = torch.arange(1200) % 20, torch.arange(1200) % 4
    codes = encode_members(raw_pixels, orbits, orbit, member)
    assert torch.equal(codes[1100], orbits.members(orbit[1100:1101], member[1100:1101]).flatten())


def test_curve_of_a_perfectly_invariant_encoding():
    orbits = _orbits(20, 2)
    seen = iter(torch.arange(20).repeat_interleave(4).split(500))
    curve = orbit_curve(
        lambda images: next(seen)[: len(images), None].float(), orbits, torch.tensor([0.0, 0.5])
    )
    assert curve.invariance.tolist() == curve.selectivity.tolist() == [1.0, 1.0]


def test_an_image_is_found_if_the_nearest_canonical_one_is_its_own():
    orbits = _orbits(12, 3, labels=False)
    task = FindingTask(orbits, queries=20, seed=0)
    assert len(task.query_orbit) == 20
    assert (task.query_member > 0).all()
    gallery = orbits.canonical(torch.arange(12)).flatten(1)
    queries = orbits.members(task.query_orbit, task.query_member).flatten(1)
    right = [
        min(range(12), key=lambda at, q=query: float((gallery[at] - q).square().sum())) == orbit
        for query, orbit in zip(queries, task.query_orbit.tolist(), strict=True)
    ]
    assert task.score(raw_pixels) == pytest.approx(sum(right) / 20)
    assert 0 < sum(right) < 20


def test_codes_that_tell_orbits_find_every_image():
    images = _orbits(9, 4).images_NCHW
    near = AffineRanges(rotation_deg=20, translation_px=1)
    orbits = AffineOrbits(images, canvas_px=8, members=4, ranges=near)
    canonical = orbits.canonical(torch.arange(9))
    task = FindingTask(orbits, queries=15, seed=0)
    shown = orbits.members(task.query_orbit, task.query_member)
    known = torch.cat([canonical, shown]).flatten(1)
    codes = torch.cat([torch.arange(9), task.query_orbit]).float()[:, None]

    def encode(images):
        return codes[torch.cdist(images.flatten(1), known).argmin(1)]

    assert task.score(encode) == 1
