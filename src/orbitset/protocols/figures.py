"""Arrays for the figures of a run: curves, t-SNE points and uint8 images."""

import torch
from torch import Tensor

from orbitset.encoders import Encoder, TransformedEncoder
from orbitset.evaluation.invariance import InvarianceCurve, invariance_curve
from orbitset.memory import in_halves
from orbitset.orbits.computed import AffineOrbits
from orbitset.protocols.contract import Encode
from orbitset.protocols.encoding import encode_members

_GRID_COLUMNS, _STRIP_ROWS, _STRIP_COLUMNS = 12, 4, 12
_CURVE_ORBITS, _CURVE_MEMBERS = 150, 8
_NO_SPREAD = 1e-10
_TSNE_DIMENSIONS = 50
"""PCA reduces codes to so many dimensions before t-SNE searches for nearest neighbours."""


def orbit_curve(
    encode: Encode, orbits: AffineOrbits, epsilons: Tensor | None = None
) -> InvarianceCurve:
    """Invariance and selectivity on a few members of the first orbits.

    The default epsilons reach from far below the usual distance of two codes to above it.
    """
    num_orbits = min(_CURVE_ORBITS, len(orbits))
    num_members = min(_CURVE_MEMBERS, orbits.num_members)
    orbit = torch.arange(num_orbits, device=orbits.device).repeat_interleave(num_members)
    member = torch.arange(num_members, device=orbits.device).repeat(num_orbits)
    codes = encode_members(encode, orbits, orbit, member)
    if epsilons is None:
        usual = 2 * codes.double().var(0).sum()  # the mean squared distance of two random codes
        exponents = torch.linspace(-3, 1, 161, dtype=torch.float64, device=codes.device)
        epsilons = usual.clamp(min=1e-12) * 10**exponents
    return invariance_curve(codes, orbit, epsilons)


def at_margin(encode: Encode, orbits: AffineOrbits, margin: float | None) -> dict[str, float]:
    """Invariance and selectivity at epsilon = margin; empty if the objective has no margin."""
    if margin is None:
        return {}
    curve = orbit_curve(encode, orbits, torch.tensor([margin], dtype=torch.float64))
    return {"invariance": float(curve.invariance), "selectivity": float(curve.selectivity)}


def computed_figures(
    model: Encoder, encode: Encode, test: AffineOrbits, margin: float | None
) -> dict[str, Tensor]:
    """Curves of invariance and selectivity, and test images beside their decoded images."""
    curve = orbit_curve(encode, test)
    orbits = _first_orbits(test)
    member = torch.arange(1, len(orbits) + 1, device=test.device) % test.num_members
    transformed = test.members(orbits, member)
    # a spatial transformer is trained to show the encoder a rectified image, the decoder behind it is not
    rectify = model.transform if isinstance(model, TransformedEncoder) else model.rectify
    rectified = in_halves(rectify, transformed)
    rows = min(_STRIP_ROWS, len(orbits))
    strips = orbits[:rows].repeat_interleave(_STRIP_COLUMNS)
    strip_member = torch.arange(_STRIP_COLUMNS, device=test.device) % test.num_members
    arrays = {
        "epsilons": curve.epsilons,
        "invariance": curve.invariance,
        "selectivity": curve.selectivity,
        "canonical": to_uint8(test.canonical(orbits)),
        "transformed": to_uint8(transformed),
        "rectified": to_uint8(rectified),
        "members": to_uint8(test.members(strips, strip_member.repeat(rows))).unflatten(
            0, (rows, _STRIP_COLUMNS)
        ),
    }
    return arrays if margin is None else arrays | {"margin": torch.tensor(margin)}


def _first_orbits(test: AffineOrbits) -> Tensor:
    """The first test image of every class, then the next images, up to the width of a figure."""
    if test.labels_N is None:
        return torch.arange(min(_GRID_COLUMNS, len(test)), device=test.device)
    labels = test.labels_N.cpu()
    firsts = [int((labels == label).nonzero()[0]) for label in labels.unique()]
    rest = [row for row in range(len(labels)) if row not in firsts]
    return torch.tensor((firsts + rest)[:_GRID_COLUMNS], device=test.device)


def to_uint8(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def tsne_points(codes: Tensor, seed: int) -> Tensor:
    """Codes in the plane by t-SNE."""
    from sklearn.manifold import TSNE

    spread = codes.double().var(0).sum()
    if not spread > _NO_SPREAD * codes.double().square().sum(1).mean():
        # all codes are one point, and t-SNE would divide by their variance
        return codes.new_zeros(len(codes), 2)
    perplexity = min(30.0, (len(codes) - 1) / 3)
    threads = torch.get_num_threads()
    projection = TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=threads)
    codes = principal_components(codes, _TSNE_DIMENSIONS)
    return torch.as_tensor(projection.fit_transform(codes.float().cpu().numpy()))


def principal_components(codes_ND: Tensor, most: int) -> Tensor:
    """The first `most` principal components of the codes, where neighbour search is faster.

    >>> principal_components(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), 1).abs().tolist()
    [[2.5], [2.5]]
    """
    centred = (codes_ND - codes_ND.mean(0)).double()
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :most]
    projected: Tensor = centred @ directions
    return projected.to(codes_ND.dtype)
