"""Prepares codes for exact distances: centres them, so that rounding errors are small, and finds equal ones.

Shapes: N codes of D entries.
"""

import torch
from torch import Tensor

_CHUNK_BYTES = 2**25
_LARGEST = 1e150


def identities(points_ND: Tensor) -> Tensor:
    """For each row the number of the first row equal to it, found by a hash that is then checked.

    >>> identities(torch.tensor([[1.0], [2.0], [1.0]], dtype=torch.float64)).tolist()
    [0, 1, 0]
    """
    generator = torch.Generator().manual_seed(0)
    limit = torch.iinfo(torch.int64).max
    factors_D = torch.randint(-limit, limit, points_ND.shape[1:], generator=generator) | 1
    factors_D = factors_D.to(points_ND.device)
    rows = torch.arange(len(points_ND), device=points_ND.device)
    chunks = rows.split(max(1, _CHUNK_BYTES // (8 * points_ND.shape[1])))
    hash_N = torch.cat(
        [((points_ND[c] + 0.0).view(torch.int64) * factors_D).sum(1) for c in chunks]
    )
    first_N = _first_of(hash_N.unique(return_inverse=True)[1])
    others = [c[first_N[c] != c] for c in chunks]
    if all(torch.equal(points_ND[rows], points_ND[first_N[rows]]) for rows in others):
        return first_N
    return _first_of(points_ND.unique(dim=0, return_inverse=True)[1])


def _first_of(place_N: Tensor) -> Tensor:
    rows = torch.arange(len(place_N), device=place_N.device)
    first = torch.full((int(place_N.max()) + 1,), len(rows), device=rows.device)
    return first.scatter_reduce(0, place_N, rows, "amin")[place_N]


def centred(points_ND: Tensor) -> Tensor:
    """Subtract the point nearest to the mean, in place: rounding errors shrink, whole numbers stay exact."""
    norm_N = torch.linalg.vector_norm(points_ND, dim=1)
    if norm_N.max() > _LARGEST:
        raise ValueError(f"a code is longer than {_LARGEST:g}; scale the codes down")
    nearest = (norm_N.square() - points_ND @ (2 * points_ND.mean(0))).argmin()
    return points_ND.sub_(points_ND[nearest].clone())
