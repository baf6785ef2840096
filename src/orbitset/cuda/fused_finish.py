"""What is left to a fused training pass when its layers are through: sums that become gradients, and batch
norm's running statistics. The kernels are those of finish_step.cu."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orbitset.cuda import layers as kernels
from orbitset.cuda.fused_launch import address
from orbitset.cuda.packing import MAX_LAYERS

Norms = Sequence[tuple[Any, kernels.Norm]]
"""Batch norms, each with what the kernels know of it."""

Row = tuple[Sequence[Tensor], Tensor]
"""Slabs of one or two kernels, and the gradient of a layer's weights they add up to."""

_MANY = 150
"""Slabs, from more than which on a block's threads share them 32 ways instead of 8"""


def sum_slabs(rows: Sequence[Row]) -> None:
    if not rows:
        return
    table, first = [], 0
    for slabs, grad in rows:
        outputs, inputs = grad.shape[:2]
        table.append(
            kernels.Slabs(
                tuple(part.data_ptr() for part in slabs),
                tuple(len(part) for part in slabs),
                grad.data_ptr(),
                *(inputs, outputs, slabs[0].stride(0), first),
            )
        )
        first += -(-9 * inputs * outputs // kernels.SLAB_WIDTH)
    most = max(sum(map(len, slabs)) for slabs, _ in rows)
    kernel = kernels.sum_slabs(has_many=most > _MANY)
    kernel((first, 1), (kernels.Slabs * MAX_LAYERS)(*table), ctypes.c_int(len(table)))


def first_gradient(
    weight: Tensor,
    norm: kernels.Norm,
    slabs: Tensor,
    decoder: Sequence[Tensor],
    grad: Tensor,
    *,
    others: Sequence[Row],
) -> None:
    """Of the first layer's weights, from what the kernel of the second gave (N, 2, 256) and from the slabs of
    the decoder's layer that is tied to it, if there is one. Slabs of others are summed in the same launch."""
    weight = weight.detach().contiguous()
    of_decoder, *products = (torch.empty_like(weight) for _ in range(3))
    rows: list[Row] = [([slabs[:, at]], products[at]) for at in range(2)]
    if decoder:
        rows.append((decoder, of_decoder))
    sum_slabs([*rows, *others])
    known = (weight, of_decoder if decoder else None, *products, grad)
    kernels.first_gradient()((1, 1), norm, *map(address, known))


def update_norms(norms: Norms) -> None:
    """The running statistics."""
    rows = [
        kernels.NormUpdate(
            described,
            norm.running_mean.data_ptr(),
            norm.running_var.data_ptr(),
            None,
            None,
            norm.num_batches_tracked.data_ptr(),
            norm.num_features,
            norm.momentum,
        )
        for norm, described in norms
    ]
    _launch(rows, has_gradient=False)


def norm_gradients(norms: Norms, grads: Sequence[Tensor]) -> None:
    """Into tensors for the weight and the bias of each."""
    rows = [
        kernels.NormUpdate(
            described, None, None, gamma.data_ptr(), beta.data_ptr(), None, norm.num_features, 0
        )
        for (norm, described), gamma, beta in zip(norms, grads[::2], grads[1::2], strict=True)
    ]
    _launch(rows, has_gradient=True)


def _launch(rows: Sequence[kernels.NormUpdate], *, has_gradient: bool) -> None:
    table = (kernels.NormUpdate * kernels.MAX_NORMS)(*rows)
    kernels.update_norms()((len(rows), 1), table, ctypes.c_int(has_gradient))
