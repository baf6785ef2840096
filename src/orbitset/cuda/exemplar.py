"""Cross-entropy of a linear classifier with very many classes: products in TF32, and bounded memory.

Shapes: N codes of D entries, C classes.
"""

from typing import Any

import torch
from torch import Tensor

from orbitset.precision import products_in

CHUNK_BYTES = 2**29
"""Of scores held at once; a batch with more is taken a part at a time, and its scores are computed twice."""


def serves_linear_cross_entropy(
    codes_ND: Tensor, orbit_N: Tensor, weight_CD: Tensor, bias_C: Tensor
) -> bool:
    return codes_ND.is_cuda and len(codes_ND) > 0


def linear_cross_entropy(
    codes_ND: Tensor, orbit_N: Tensor, weight_CD: Tensor, bias_C: Tensor
) -> Tensor:
    """The products are taken in TF32, sums and weights in float32."""
    rows = max(1, CHUNK_BYTES // max(1, len(weight_CD) * codes_ND.element_size()))
    loss: Tensor = _LinearCrossEntropy.apply(codes_ND, orbit_N, weight_CD, bias_C, rows)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, codes: Tensor, orbit: Tensor, weight: Tensor, bias: Tensor, rows: int
    ) -> Tensor:
        ctx.rows, total = rows, codes.new_zeros(())
        excess = codes.new_empty(0)
        for start in range(0, len(codes), rows):
            part = slice(start, start + rows)
            excess, losses = _excess(codes[part], orbit[part], weight, bias)
            total = total + losses.sum()
        saved = excess if rows >= len(codes) else None
        ctx.save_for_backward(codes, orbit, weight, bias, saved)
        return total / len(codes)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        codes, orbit, weight, bias, saved = ctx.saved_tensors
        scaled = codes * (grad / len(codes))
        grad_codes = torch.empty_like(codes)
        grad_weight, grad_bias = torch.empty_like(weight), torch.zeros_like(bias)
        for start in range(0, len(codes), ctx.rows):
            part = slice(start, start + ctx.rows)
            excess = saved
            if excess is None:
                excess = _excess(codes[part], orbit[part], weight, bias)[0]
            with products_in("tf32", codes.device):
                grad_codes[part] = excess @ weight
                if start == 0:
                    torch.mm(excess.T, scaled[part], out=grad_weight)
                else:
                    grad_weight.addmm_(excess.T, scaled[part])
            grad_bias += excess.sum(0)
        factor = grad / len(codes)
        return grad_codes.mul_(factor), None, grad_weight, grad_bias.mul_(factor), None


def _excess(codes: Tensor, orbit: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities less the right answer, (N, C), and each code's loss."""
    with products_in("tf32", codes.device):
        scores = torch.addmm(bias, codes, weight.T)
    total = scores.logsumexp(1, keepdim=True)
    losses = total.squeeze(1) - scores.gather(1, orbit[:, None]).squeeze(1)
    excess = scores.sub_(total).exp_()
    excess.scatter_add_(1, orbit[:, None], excess.new_full((len(codes), 1), -1.0))
    return excess, losses
