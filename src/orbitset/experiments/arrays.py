"""What the figures of a run are drawn from: curves, t-SNE points and uint8 images."""

import io

import numpy as np
import torch
from torch import Tensor

from orbitset.encoders import Encoder, TransformedEncoder
from orbitset.experiments.config import ExperimentConfig
from orbitset.experiments.task import OneShotTask, encoding_with, orbit_curve
from orbitset.orbits.computed import AffineOrbits

_GRID_COLUMNS, _STRIP_ROWS, _STRIP_COLUMNS = 12, 4, 12
_NO_SPREAD = 1e-10
_TSNE_DIMENSIONS = 50
"""Codes are projected to so many before t-SNE looks for neighbours among them."""


@torch.inference_mode()
def figure_arrays(
    config: ExperimentConfig, model: Encoder, task: OneShotTask | None, test: AffineOrbits
) -> bytes:
    """The content of arrays.npz."""
    encode = encoding_with(model, precision=config.train.precision)
    curve = orbit_curve(encode, test)
    shown = _shown_orbits(test)
    member = torch.arange(1, len(shown) + 1, device=test.device) % test.num_members
    transformed = test.members(shown, member)
    # a spatial transformer is trained to show the encoder a rectified image, the decoder behind it is not
    rectify = model.transform if isinstance(model, TransformedEncoder) else model.rectify
    rectified = rectify(transformed)
    rows = min(_STRIP_ROWS, len(shown))
    strips = shown[:rows].repeat_interleave(_STRIP_COLUMNS)
    strip_member = torch.arange(_STRIP_COLUMNS, device=test.device) % test.num_members
    arrays = {
        "epsilons": curve.epsilons,
        "invariance": curve.invariance,
        "selectivity": curve.selectivity,
        "canonical": to_uint8(test.canonical(shown)),
        "transformed": to_uint8(transformed),
        "rectified": to_uint8(rectified),
        "members": to_uint8(test.members(strips, strip_member.repeat(rows))).unflatten(
            0, (rows, _STRIP_COLUMNS)
        ),
    }
    if config.uses_margin:
        arrays["margin"] = torch.tensor(config.margin)
    if task is not None and config.evaluation.tsne_points:
        queries = task.encode_queries(encode, limit=config.evaluation.tsne_points)
        arrays["tsne"] = tsne_points(queries.codes, config.evaluation.seed)
        arrays["tsne_labels"] = queries.labels
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{k: v.cpu().numpy() for k, v in arrays.items()})
    return buffer.getvalue()


def _shown_orbits(test: AffineOrbits) -> Tensor:
    """The first test image of every class, then the next ones, up to the width of a figure."""
    if test.labels_N is None:
        return torch.arange(min(_GRID_COLUMNS, len(test)), device=test.device)
    labels = test.labels_N.cpu()
    firsts = [int((labels == label).nonzero()[0]) for label in labels.unique()]
    rest = [row for row in range(len(labels)) if row not in firsts]
    return torch.tensor((firsts + rest)[:_GRID_COLUMNS], device=test.device)


def to_uint8(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def tsne_points(codes: Tensor, seed: int) -> Tensor:
    from sklearn.manifold import TSNE

    spread = codes.double().var(0).sum()
    if not spread > _NO_SPREAD * codes.double().square().sum(1).mean():
        return codes.new_zeros(
            len(codes), 2
        )  # collapsed: one point, and t-SNE would divide by its size
    perplexity = min(30.0, (len(codes) - 1) / 3)
    threads = torch.get_num_threads()
    projection = TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=threads)
    codes = principal_components(codes, _TSNE_DIMENSIONS)
    return torch.as_tensor(projection.fit_transform(codes.float().cpu().numpy()))


def principal_components(codes_ND: Tensor, most: int) -> Tensor:
    """The codes in their directions of largest variance, `most` of them; neighbours are found faster there.

    >>> principal_components(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), 1).abs().tolist()
    [[2.5], [2.5]]
    """
    centred = (codes_ND - codes_ND.mean(0)).double()
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :most]
    projected: Tensor = centred @ directions
    return projected.to(codes_ND.dtype)
