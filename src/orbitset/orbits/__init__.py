"""Orbits of images, and batches of P orbits x K members."""

from orbitset.orbits.affine import AffineRanges, sample_affine, warp
from orbitset.orbits.batches import Batch, OrbitBatches
from orbitset.orbits.computed import AffineOrbits, OrbitConfig
from orbitset.orbits.observed import ObservedConfig, ObservedOrbits, group_orbits

__all__ = [
    "AffineOrbits",
    "AffineRanges",
    "Batch",
    "ObservedConfig",
    "ObservedOrbits",
    "OrbitBatches",
    "OrbitConfig",
    "group_orbits",
    "sample_affine",
    "warp",
]
