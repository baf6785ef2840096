"""From images to codes, as a protocol does it: without gradients, a few hundred images at a time."""

import torch
from torch import Tensor, nn

from orbitset.memory import in_halves
from orbitset.orbits.computed import AffineOrbits
from orbitset.precision import Precision, in_bfloat16
from orbitset.protocols.contract import Encode
from orbitset.seeds import stream

ENCODE_BATCH = 500


def encoding_with(model: nn.Module, *, precision: Precision = "float32") -> Encode:
    """The model's encoder as a function for evaluation, without gradients."""
    device = next(model.parameters()).device
    use_bfloat16 = in_bfloat16(precision, device)

    @torch.inference_mode()
    def encode(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=use_bfloat16):
            codes: Tensor = in_halves(model.encode, images)  # type: ignore[arg-type]
            return codes

    return encode


def raw_pixels(images: Tensor) -> Tensor:
    """The encoding that does nothing."""
    return images.flatten(1)


def encode_members(
    encode: Encode, orbits: AffineOrbits, orbit_N: Tensor, member_N: Tensor
) -> Tensor:
    """Codes of the chosen members, which are made and encoded a few hundred at a time."""
    codes = [
        encode(orbits.members(orbit, member))
        for orbit, member in zip(
            orbit_N.split(ENCODE_BATCH), member_N.split(ENCODE_BATCH), strict=True
        )
    ]
    return torch.cat(codes)


def random_members(
    orbits: AffineOrbits, num: int, seed: int, purpose: str = "queries"
) -> tuple[Tensor, Tensor]:
    """Orbit and member of `num` different members of random orbits; all of them if there are fewer.

    Each purpose has a random stream of its own.
    """
    total = len(orbits) * orbits.num_members
    rows = torch.randperm(total, generator=stream(purpose, seed))[:num].to(orbits.device)
    return rows // orbits.num_members, rows % orbits.num_members
