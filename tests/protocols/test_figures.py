import torch

from orbitset.orbits import AffineOrbits
from orbitset.protocols.figures import orbit_curve, tsne_points


def _orbits(num, seed, labels=True):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (num, 1, 6, 6), dtype=torch.uint8, generator=generator)
    return AffineOrbits(
        images, torch.arange(num) % 3 if labels else None, canvas_px=8, members=4, seed=seed
    )


def test_curve_of_a_perfectly_invariant_encoding():
    orbits = _orbits(20, 2)
    seen = iter(torch.arange(20).repeat_interleave(4).split(500))
    curve = orbit_curve(
        lambda images: next(seen)[: len(images), None].float(), orbits, torch.tensor([0.0, 0.5])
    )
    assert curve.invariance.tolist() == curve.selectivity.tolist() == [1.0, 1.0]


def test_codes_without_any_spread_are_drawn_as_one_point():
    points = tsne_points(torch.full((400, 8), 3.0), 0)
    assert not points.any()
    assert tsne_points(torch.randn(60, 8), 0).std() > 0
