import pytest
import torch

from orbitset.orbits import AffineOrbits, AffineRanges
from orbitset.protocols import raw_pixels
from orbitset.protocols.finding import FindingTask


def _orbits(num, seed, labels=True):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (num, 1, 6, 6), dtype=torch.uint8, generator=generator)
    return AffineOrbits(
        images, torch.arange(num) % 3 if labels else None, canvas_px=8, members=4, seed=seed
    )


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
    assert task.score(task.encode_gallery(raw_pixels), raw_pixels) == pytest.approx(sum(right) / 20)
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

    assert task.score(task.encode_gallery(encode), encode) == 1
