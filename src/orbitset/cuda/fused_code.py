"""The narrowest place of a fused training pass: pooled activations to codes, and codes to the decoder's top.

Both have the same weights, and so the weights' gradient is one product of what lies left and right of them,
the decoder's rows before the encoder's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.cuda.code_norm import Normalised, can_normalise, normalise
from orbitset.cuda.fused_plan import Plan
from orbitset.cuda.streams import Second
from orbitset.precision import products_in


class CodeLayer:
    """For one batch of images and the weights of the moment."""

    def __init__(self, plan: Plan, num: int, uses_decoder: bool) -> None:
        self.plan, self.num, self.uses_decoder = plan, num, uses_decoder
        weight = plan.model.encoder.code.weight.detach()
        self.top_shape = (plan.top, plan.top, plan.widths[-1])
        rows = 2 * num if uses_decoder else num
        left = torch.empty(rows, len(weight), dtype=torch.bfloat16, device=weight.device)
        right = left.new_empty(rows, *self.top_shape)
        self._left, self._right = left, right.flatten(1)
        self.pooled = right[rows - num :]
        """What the encoder ends in, to be filled before `encode`."""
        self.grad_top = right[: rows - num]
        """Gradient of what a decoder begins with, to be filled before `backward`; without one it is empty."""
        # the kernels keep channels last, the weights expect them first
        self._weight = left.new_empty(len(weight), plan.top**2 * plan.widths[-1])
        self._bias = left.new_empty(len(weight))
        self._second = Second(weight.device)
        self._second.catch_up()
        with self._second.work():
            self._by_pixel(self._weight).copy_(self._by_channel(weight))
            self._bias.copy_(plan.model.encoder.code.bias.detach())

    def _by_channel(self, weight: Tensor) -> Tensor:
        """As (D, pixels, channels), of weights that have channels first."""
        return weight.view(len(weight), self.top_shape[-1], -1).transpose(1, 2)

    def _by_pixel(self, weight: Tensor) -> Tensor:
        return weight.view(len(weight), -1, self.top_shape[-1])

    def encode(self) -> Tensor:
        self._second.join()
        model = self.plan.model
        linear = F.linear(self.pooled.flatten(1), self._weight, self._bias)
        rounded = self._left[: self.num] if self.uses_decoder else None
        self._normalised: Normalised | None = None
        codes: Tensor
        if can_normalise(model.code_norm, self.num):
            codes, self._normalised = normalise(linear, model.code_norm, rounded)
            return codes
        with torch.enable_grad():
            self._linear = linear.float().requires_grad_()
            self._codes = model.code_norm(self._linear)
        codes = self._codes.detach()
        if rounded is not None:
            rounded.copy_(codes)
        # the nested graph's own output must not be handed out
        return codes.clone() if codes.data_ptr() == self._linear.data_ptr() else codes

    def decode(self) -> Tensor:
        """The decoder's top before its batch norm."""
        return (self._left[: self.num] @ self._weight).view(self.num, *self.top_shape)

    def backward(self, grad_codes: Tensor, *, has_decoded: bool) -> tuple[Tensor, list[Tensor]]:
        """Gradients of the pooled activations, and of weight, bias and the code norm's parameters.

        `has_decoded` where a decoder's gradient is to be added. The weight's gradient is there once the
        second stream is joined.
        """
        code = self.plan.model.encoder.code
        arrived = self.grad_top.flatten(1) @ self._weight.T if has_decoded else None
        rounded = self._left[len(self._left) - self.num :]
        if self._normalised is not None:
            *grad_norm, grad_bias = self._normalised.backward(grad_codes, arrived, rounded)
        else:
            grad_norm, grad_bias = self._generic_backward(grad_codes, arrived, rounded)
        grad_weight = torch.empty_like(code.weight)
        self._second.catch_up()
        with self._second.work():
            first = 0 if has_decoded else len(self._left) - self.num
            product = self._left[first:].T @ self._right[first:]
            self._by_channel(grad_weight).copy_(self._by_pixel(product))
        grad_pooled = (rounded @ self._weight).view(self.num, *self.top_shape)
        return grad_pooled, [grad_weight, grad_bias, *grad_norm]

    def _generic_backward(
        self, grad_codes: Tensor, arrived: Tensor | None, rounded: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        if arrived is not None:
            grad_codes = grad_codes + arrived.float()
        parameters = list(self.plan.model.code_norm.parameters())
        grad_linear, *grad_norm = torch.autograd.grad(
            self._codes, [self._linear, *parameters], grad_codes
        )
        rounded.copy_(grad_linear)
        # a product is several times as fast as a sum over rows
        with products_in("ieee", grad_linear.device):
            return grad_norm, (grad_linear.new_ones(1, self.num) @ grad_linear)[0]
