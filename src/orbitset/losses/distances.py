"""Squared Euclidean distances, D(x, y) = |Phi(x) - Phi(y)|^2: a matrix to choose from, and exact values.

|a|^2 + |b|^2 - 2ab is one matrix product but loses small distances to rounding, so the matrix serves to
select and `paired_distances` recomputes |a - b|^2 for what was selected.

Shapes: N and M codes of D entries, T pairs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_CHUNK_BYTES = 32 * 2**20


def distance_matrix(codes_ND: Tensor, others_MD: Tensor | None = None) -> Tensor:
    """All squared distances (N, M), never negative; among one set of codes the diagonal is exactly 0.

    >>> distance_matrix(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    reference = codes_ND if others_MD is None else others_MD
    centre = reference.mean(0)  # distances do not change, rounding errors shrink
    a = codes_ND - centre
    b = a if others_MD is None else others_MD - centre
    with _full_precision(a.device):
        products = a @ b.T
    squares = a.square().sum(1)[:, None] + (b if others_MD is not None else a).square().sum(1)
    distances = squares.sub_(products, alpha=2).clamp_(min=0)
    if others_MD is None:
        distances.fill_diagonal_(0)
    return distances


def paired_distances(codes_ND: Tensor, left_T: Tensor, right_T: Tensor) -> Tensor:
    """|c_left - c_right|^2 for each pair of rows, exact for near codes and in little memory.

    Gradients are finite for identical codes. Memory is N^2 plus a constant, whatever T.

    >>> codes = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> paired_distances(codes, torch.tensor([0, 1]), torch.tensor([1, 1])).tolist()
    [25.0, 0.0]
    """
    distances: Tensor = _PairedDistances.apply(codes_ND, left_T, right_T)
    return distances


class _PairedDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, codes_ND: Tensor, left_T: Tensor, right_T: Tensor) -> Tensor:
        ctx.save_for_backward(codes_ND, left_T, right_T)
        rows = max(1, _CHUNK_BYTES // max(1, codes_ND.shape[1] * codes_ND.element_size()))
        chunks = [
            (codes_ND[left] - codes_ND[right]).square_().sum(1)
            for left, right in zip(left_T.split(rows), right_T.split(rows), strict=True)
        ]
        return torch.cat(chunks)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None]:
        """The gradient is that of a weighted graph: 2 (degree - weights) codes, one matrix product."""
        codes_ND, left_T, right_T = ctx.saved_tensors
        num = len(codes_ND)
        weights = grad_T.new_zeros(num * num)
        weights.index_put_((left_T * num + right_T,), grad_T, accumulate=True)
        weights_NN = weights.view(num, num)
        weights_NN = weights_NN + weights_NN.T
        centred = codes_ND - codes_ND.mean(0)
        with _full_precision(centred.device):
            pulled = weights_NN @ centred
        return 2 * (weights_NN.sum(1)[:, None] * centred - pulled), None, None


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Products in the dtype of their operands: neither TF32 nor autocast, whatever is set around."""
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        products.fp32_precision = before
