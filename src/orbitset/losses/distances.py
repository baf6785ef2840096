"""Squared Euclidean distances, D(x, y) = |Phi(x) - Phi(y)|^2: a matrix to choose from, and exact values.

|a|^2 + |b|^2 - 2ab is one matrix product but loses small distances to rounding, so the matrix serves to
select and `paired_distances` recomputes |a - b|^2 for what was selected.

Shapes: N and M codes of D entries, T pairs.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from orbitset.dispatch import accelerated
from orbitset.precision import products_in

_CHUNK_BYTES = {"cpu": 2**20, "cuda": 2**25}
"""Of codes looked at together: on a CPU what stays in a core's cache, on a GPU enough to fill it."""
_FEW_SHARE = 1 / 64
"""Up to this share of all N^2 pairs, each on its own is cheaper than a matrix product."""


def distance_matrix(codes: Tensor, others: Tensor | None = None) -> Tensor:
    """All squared distances (N, M) of codes (N, D) and others (M, D), never negative; among one set of codes
    the diagonal is exactly 0.

    >>> distance_matrix(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    reference = codes if others is None else others
    # Distances do not change, rounding errors shrink. A mean of all costs as much as the product on a GPU;
    # that of sixteen, a power of two, is exact for whole numbers, so that their ties stay ties.
    centre = reference[:16].mean(0)
    a = codes - centre
    b = a if others is None else others - centre
    with products_in("ieee", a.device):
        products = a @ b.T
    if others is None:
        return _among_themselves(products)
    return _from_products(products, a.square().sum(1), b.square().sum(1))


@accelerated("distances_from_products")
def _among_themselves(products_NN: Tensor) -> Tensor:
    squares_N = products_NN.diagonal()
    return _from_products(products_NN, squares_N, squares_N).fill_diagonal_(0)


def _from_products(products_NM: Tensor, squares_N: Tensor, squares_M: Tensor) -> Tensor:
    return (squares_N[:, None] + squares_M).sub_(products_NM, alpha=2).clamp_(min=0)


def are_few(num_pairs: int, num_codes: int) -> bool:
    """Whether their distances are best computed one by one.

    >>> are_few(1, 8), are_few(2, 8)
    (True, False)
    """
    return num_pairs <= _FEW_SHARE * num_codes**2


def paired_distances(
    codes: Tensor, left: Tensor, right: Tensor, distances: Tensor | None = None
) -> Tensor:
    """|c_left - c_right|^2 for each pair of rows of codes (N, D), right for near codes too.

    Few pairs are taken one by one, forward and backward. Many are looked up in a matrix made in float64,
    right to 1e-15 of the codes' squared length; `distances` is that matrix where it is at hand. Gradients
    are finite for identical codes. Beside its inputs and output it takes N^2 numbers at most.

    >>> codes = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> paired_distances(codes, torch.tensor([0, 1]), torch.tensor([1, 1])).tolist()
    [25.0, 0.0]
    """
    distance_T: Tensor = _PairedDistances.apply(codes, left, right, distances)
    return distance_T


class _PairedDistances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, codes_ND: Tensor, left_T: Tensor, right_T: Tensor, distance_NN: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(codes_ND, left_T, right_T)
        ctx.is_few = distance_NN is None and are_few(len(left_T), len(codes_ND))
        if not ctx.is_few:
            if distance_NN is None:
                distance_NN = distance_matrix(codes_ND.double())
            return distance_NN[left_T, right_T].to(codes_ND.dtype)
        chunks = [
            _differences(codes_ND, left, right).square_().sum(1)
            for left, right in _chunks(codes_ND, left_T, right_T)
        ]
        return torch.cat(chunks)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None, None]:
        codes_ND, left_T, right_T = ctx.saved_tensors
        # index_add_ is deterministic on a CPU only
        if ctx.is_few and codes_ND.device.type == "cpu":
            return _gradient_by_pairs(codes_ND, left_T, right_T, grad_T), None, None, None
        return _gradient_by_matrix(codes_ND, left_T, right_T, grad_T), None, None, None


def _gradient_by_pairs(codes_ND: Tensor, left_T: Tensor, right_T: Tensor, grad_T: Tensor) -> Tensor:
    grad_ND = torch.zeros_like(codes_ND)
    for left, right, grad in _chunks(codes_ND, left_T, right_T, 2 * grad_T):
        pulled = _differences(codes_ND, left, right).mul_(grad[:, None])
        grad_ND.index_add_(0, left, pulled).index_add_(0, right, pulled, alpha=-1)
    return grad_ND


def _gradient_by_matrix(
    codes_ND: Tensor, left_T: Tensor, right_T: Tensor, grad_T: Tensor
) -> Tensor:
    num = len(codes_ND)
    weights = grad_T.new_zeros(num * num)
    weights.index_put_((left_T * num + right_T,), grad_T, accumulate=True)
    return weighted_gradient(codes_ND, weights.view(num, num))


def weighted_gradient(codes_ND: Tensor, weights_NN: Tensor) -> Tensor:
    """Of the sum of weights times distances, as of a weighted graph: 2 (degree - weights) codes."""
    laplacian_NN = (weights_NN + weights_NN.T).mul_(-2)
    laplacian_NN.diagonal().sub_(laplacian_NN.sum(1))
    # its rows sum to zero but for rounding, which an offset would blow up
    with products_in("ieee", codes_ND.device):
        return laplacian_NN @ (codes_ND - codes_ND.mean(0))


def _differences(codes_ND: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return codes_ND.index_select(0, left).sub_(codes_ND.index_select(0, right))


def _chunks(codes_ND: Tensor, *parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    num_bytes = _CHUNK_BYTES.get(codes_ND.device.type, 2**20)
    rows = max(1, num_bytes // max(1, codes_ND.shape[1] * codes_ND.element_size()))
    return zip(*(part.split(rows) for part in parts), strict=True)
