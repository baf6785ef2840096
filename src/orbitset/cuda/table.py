"""What this folder offers to `orbitset.dispatch`: implementations by name, and a faster way to take steps."""

from orbitset.cuda import adam, exemplar, squared_error, triplets, warp
from orbitset.cuda.engine import fast_steps

IMPLEMENTATIONS = {
    "adam": (adam.serves_adam, adam.adam),
    "distances_from_products": (triplets.serves_distances, triplets.distances_from_products),
    "every_triplet_terms": (triplets.serves_every_triplet, triplets.every_triplet_terms),
    "linear_cross_entropy": (
        exemplar.serves_linear_cross_entropy,
        exemplar.linear_cross_entropy,
    ),
    "mine": (triplets.serves_mining, triplets.mine),
    "squared_error": (squared_error.serves_squared_error, squared_error.squared_error),
    "triplet_terms": (triplets.serves_triplets, triplets.triplet_terms),
    "warp": (warp.serves_warp, warp.warp),
}
"""Pairs of a question, whether it serves these arguments, and an implementation"""

__all__ = ["IMPLEMENTATIONS", "fast_steps"]
