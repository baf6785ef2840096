import torch

from orbitset.orbits import AffineOrbits
from orbitset.protocols.encoding import encode_members, raw_pixels


def _orbits(num, seed, labels=True):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (num, 1, 6, 6), dtype=torch.uint8, generator=generator)
    return AffineOrbits(
        images, torch.arange(num) % 3 if labels else None, canvas_px=8, members=4, seed=seed
    )


def test_members_are_encoded_in_order_whatever_their_number():
    orbits = _orbits(20, 2)
    orbit, member = torch.arange(1200) % 20, torch.arange(1200) % 4
    codes = encode_members(raw_pixels, orbits, orbit, member)
    assert torch.equal(codes[1100], orbits.members(orbit[1100:1101], member[1100:1101]).flatten())
