"""What is seen: orbits, and batches of P orbits x K members."""

from orbitset.orbits.affine import AffineRanges, sample_affine, warp
from orbitset.orbits.batches import Batch, OrbitBatches
from orbitset.orbits.computed import AffineOrbits, OrbitConfig

__all__ = [
    "AffineOrbits",
    "AffineRanges",
    "Batch",
    "OrbitBatches",
    "OrbitConfig",
    "sample_affine",
    "warp",
]
