"""The rectifying encoder's training pass with kernels of its own, for NVIDIA GPUs.

It computes what `RectifyingEncoder.forward` computes under bfloat16 autocast in training mode, and its
gradient. Only the outputs of convolutions are ever stored: batch norm, ReLU, pooling and un-pooling happen
where these are next read, and batch norm's sums where they are written. `docs/performance.md` has the why.

Shapes: N images, D code entries; layer l maps `widths[l]` to `widths[l + 1]` channels at `sizes[l]` pixels.
Encoder outputs before batch norm are y[l], decoder outputs z[l]; the decoder's top is z[L].
"""

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from orbitset.encoders.fused_code import CodeLayer
from orbitset.encoders.fused_launch import Launches, Pair, Source
from orbitset.encoders.fused_plan import Plan, encoder_kinds, why_not_fused
from orbitset.encoders.rectifying import RectifyingEncoder
from orbitset.kernels import layers as kernels


class FusedEncoder(nn.Module):
    """A model's training pass, fused; shares the model's parameters and running statistics.

    Call it as the model: `fused(images)` for codes and rectified images, `fused.encode(images)` for codes.
    """

    is_replayable = True

    def __init__(self, model: RectifyingEncoder) -> None:
        super().__init__()
        reason = why_not_fused(model)
        if reason:
            raise ValueError(reason)
        self.plan = Plan(model)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self._run(images, True)

    def encode(self, images: Tensor) -> Tensor:
        return self._run(images, False)[0]

    def _run(self, images: Tensor, uses_decoder: bool) -> tuple[Tensor, Tensor]:
        model = self.plan.model
        model.check(images)
        if not model.training:
            raise RuntimeError("the fused pass is for training only")
        images = model.contrast(images)
        with torch.cuda.device(images.device), torch.autocast("cuda", enabled=False):
            self.plan.prepare(len(images), uses_decoder, images.requires_grad)
            parameters = self.plan.parameters(uses_decoder)
            outputs = _Network.apply(self.plan, images, uses_decoder, *parameters)
        return cast(tuple[Tensor, Tensor], outputs)


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, images: Tensor, uses_decoder: bool, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        run = ctx.run = _Pass(plan, images, uses_decoder, ctx.needs_input_grad[1])
        return run.forward()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_codes: Tensor, grad_rectified: Tensor) -> tuple[Tensor | None, ...]:
        run, ctx.run = ctx.run, None  # its sums are used up, and its memory is let go
        if run is None:
            raise RuntimeError("the fused pass can go back once only; add up the losses first")
        with torch.cuda.device(grad_codes.device), torch.autocast("cuda", enabled=False):
            grads = run.backward(grad_codes, grad_rectified)
            return None, run.grad_images, None, *grads


class _Pass:
    """One batch on its way through the network and back."""

    def __init__(
        self, plan: Plan, images: Tensor, uses_decoder: bool, image_gradient: bool = False
    ) -> None:
        self.plan, self.uses_decoder = plan, uses_decoder
        self.images = images.float().contiguous()
        self.grad_images = torch.empty_like(self.images) if image_gradient else None
        self.num = len(images)
        self.launch = Launches(plan, self.num)
        self.code = CodeLayer(plan, self.num, uses_decoder)
        num_norms = len(plan.norms) + (plan.depth if uses_decoder else 0)
        shape = (num_norms, 2, kernels.REPLICAS * 2 * max(plan.widths))
        self.sums = torch.zeros(shape, dtype=torch.float64, device=images.device)
        self.y: list[Tensor] = []
        self.z: dict[int, Tensor] = {}
        self.switches: dict[int, Tensor] = {}  # by layer, of the pooling behind it
        self.slabs: dict[int, Tensor] = {}
        self.decoder_pairs: dict[int, Pair] = {}
        self.kept: list[Tensor] = []  # gradients that are read again for those of the weights

    def forward(self) -> tuple[Tensor, Tensor]:
        plan = self.plan
        for layer in range(plan.depth):
            y = self._empty(plan.sizes[layer], plan.widths[layer + 1])
            self.y.append(y)
            source = self._encoder_input(layer)
            target = kernels.operand(y, norm=self._norm(layer))
            self.launch.convolve(layer, *source, "STATS", target, transposed=False)
            if self.uses_decoder and plan.uses_switches and layer % 2:
                size = plan.sizes[layer] // 2
                self.switches[layer] = self._empty(size, plan.widths[layer + 1], torch.uint8)
                self.launch.find_switches(target, self.switches[layer])
        last = kernels.operand(self.y[-1], norm=self._norm(plan.depth - 1))
        self.launch.pointwise(
            plan.top, plan.widths[-1], "ACT_POOL", last, "STORE", self.code.pooled
        )
        codes = self.code.encode()
        rectified = codes.new_empty(0)
        if self.uses_decoder:
            rectified = self._decode()
        self._update_norms()
        return codes, rectified

    def _decode(self) -> Tensor:
        plan, model = self.plan, self.plan.model
        self.z[plan.depth] = self.code.decode()
        target = kernels.operand(self.z[plan.depth], norm=self._decoder_norm(plan.depth))
        self.launch.pointwise(plan.top, plan.widths[-1], "RAW", target, "STATS", target)
        for layer in range(plan.depth - 1, 0, -1):
            z = self.z[layer] = self._empty(plan.sizes[layer], plan.widths[layer])
            target = kernels.operand(z, norm=self._decoder_norm(layer))
            source = self._decoder_input(layer)
            self.launch.convolve(layer, *source, "STATS", target, transposed=True)
        size = plan.sizes[0]
        rectified = torch.empty(self.num, 1, size, size, device=self.images.device)
        target = kernels.operand(rectified)
        source = self._decoder_input(0)
        self.launch.convolve(0, *source, "IMAGE", target, transposed=True, bias=model.decoder.bias)
        return rectified

    def backward(self, grad_codes: Tensor, grad_rectified: Tensor) -> list[Tensor | None]:
        if self.uses_decoder:
            grad_rectified = grad_rectified.contiguous()
            self._decoder_backward(grad_rectified)
        grad_pooled, grad_code = self.code.backward(grad_codes)
        self._encoder_backward(grad_pooled)
        grad_weights = self._sum_slabs()
        grad_norms, grad_decoder_norms = self._norm_gradients()
        grads: list[Tensor | None] = [*grad_weights, *grad_norms, *grad_code]
        if self.uses_decoder:
            grads += [*grad_decoder_norms, grad_rectified.sum().view(1)]
        return grads

    def _decoder_backward(self, grad_rectified: Tensor) -> None:
        """To the top before its batch norm."""
        plan = self.plan
        grad = grad_rectified
        for layer in range(plan.depth):
            out_kind = plan.decoder_kinds(layer)[0]
            pre = self.z.get(layer)
            norm = self._decoder_norm(layer) if layer else None
            arriving = kernels.operand(grad, pre, norm)
            self.decoder_pairs[layer] = ((out_kind, arriving), self._decoder_input(layer))
            self.kept.append(grad)
            below = self.z[layer + 1]
            grad = torch.empty_like(below)
            norm = self._decoder_norm(layer + 1)
            target = kernels.operand(grad, below, norm, self.switches.get(layer))
            output = plan.decoder_output(layer)
            self.launch.convolve(layer, out_kind, arriving, output, target, transposed=False)
        top = self.z[plan.depth]
        arriving = kernels.operand(grad, top, self._decoder_norm(plan.depth))
        self.launch.pointwise(
            plan.top, plan.widths[-1], "GRAD", arriving, "STORE", self.code.grad_top
        )

    def _encoder_backward(self, grad: Tensor) -> None:
        plan = self.plan
        last = plan.depth - 1
        target = kernels.operand(grad, self.y[last], self._norm(last))
        self.launch.pointwise(plan.top, plan.widths[-1], "RAW", target, "MASK_POOL", target)
        for layer in range(last, -1, -1):
            kind = encoder_kinds(layer)[1]
            arriving = kernels.operand(grad, self.y[layer], self._norm(layer))
            source = self._encoder_input(layer)
            pair = (source, (kind, arriving))
            self.slabs[layer] = self.launch.weight_gradient(
                layer, pair, self.decoder_pairs.get(layer)
            )
            if layer == 0:
                self._image_gradient(kind, arriving)
                break
            below = self.y[layer - 1]
            size, width = plan.sizes[layer], plan.widths[layer]
            leaving = self._empty(size, width)
            target = kernels.operand(leaving, below, self._norm(layer - 1))
            output: kernels.Output = "MASK" if layer % 2 else "MASK_POOL"
            self.launch.convolve(layer, kind, arriving, output, target, transposed=True)
            grad = leaving

    def _image_gradient(self, kind: kernels.Kind, arriving: kernels.Operand) -> None:
        if self.grad_images is not None:
            target = kernels.operand(self.grad_images)
            zero = self.plan.zero
            self.launch.convolve(0, kind, arriving, "IMAGE", target, transposed=True, bias=zero)

    def _encoder_input(self, layer: int) -> Source:
        kind = encoder_kinds(layer)[0]
        if layer == 0:
            return kind, kernels.operand(self.images)
        return kind, kernels.operand(self.y[layer - 1], norm=self._norm(layer - 1))

    def _decoder_input(self, layer: int) -> Source:
        norm, switches = self._decoder_norm(layer + 1), self.switches.get(layer)
        source = kernels.operand(self.z[layer + 1], norm=norm, switches=switches)
        return self.plan.decoder_kinds(layer)[1], source

    def _empty(self, size: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        shape = (self.num, size, size, width)
        return torch.empty(shape, dtype=dtype, device=self.images.device)

    def _norm(self, layer: int) -> kernels.Norm:
        return self._describe(self.plan.norms[layer], layer, self.plan.sizes[layer])

    def _decoder_norm(self, layer: int) -> kernels.Norm:
        plan = self.plan
        size = plan.top if layer == plan.depth else plan.sizes[layer]
        return self._describe(plan.decoder_norms[layer], plan.depth + layer - 1, size)

    def _describe(self, norm: Any, place: int, size: int) -> kernels.Norm:
        sums, grad_sums = self.sums[place]
        return kernels.Norm(
            norm.weight.data_ptr(),
            norm.bias.data_ptr(),
            sums.data_ptr(),
            grad_sums.data_ptr(),
            self.num * size * size,
            norm.eps,
        )

    def _sum_slabs(self) -> list[Tensor]:
        grads, rows, first = [], [], 0
        for layer, conv in enumerate(self.plan.convs):
            grad = torch.empty_like(conv.weight, memory_format=torch.channels_last)
            outputs, inputs = conv.weight.shape[:2]
            slabs = self.slabs[layer]
            rows.append(
                kernels.Slabs(
                    slabs.data_ptr(),
                    grad.data_ptr(),
                    *(len(slabs), inputs, outputs, slabs.shape[1], first),
                )
            )
            first += -(-9 * inputs * outputs // 32)
            grads.append(grad)
        table = (kernels.Slabs * kernels.MAX_LAYERS)(*rows)
        kernels.finish_step("sum_slabs")((first, 1), table, ctypes.c_int(len(rows)))
        return grads

    def _update_norms(self) -> None:
        norms = self._norms_used()
        rows = [
            kernels.NormUpdate(
                described,
                norm.running_mean.data_ptr(),
                norm.running_var.data_ptr(),
                None,
                None,
                norm.num_features,
                norm.momentum,
            )
            for norm, described in norms
        ]
        self._finish_norms(rows, has_gradient=False)
        torch._foreach_add_([norm.num_batches_tracked for norm, _ in norms], 1)

    def _norm_gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        norms = self._norms_used()
        grads = [torch.empty_like(p) for norm, _ in norms for p in (norm.weight, norm.bias)]
        rows = [
            kernels.NormUpdate(
                described, None, None, gamma.data_ptr(), beta.data_ptr(), norm.num_features, 0
            )
            for (norm, described), gamma, beta in zip(norms, grads[::2], grads[1::2], strict=True)
        ]
        self._finish_norms(rows, has_gradient=True)
        own = 2 * self.plan.depth
        return grads[:own], grads[own:]

    def _norms_used(self) -> list[tuple[Any, kernels.Norm]]:
        depth = self.plan.depth
        used = [(self.plan.norms[layer], self._norm(layer)) for layer in range(depth)]
        if self.uses_decoder:
            used += [
                (self.plan.decoder_norms[layer], self._decoder_norm(layer))
                for layer in range(1, depth + 1)
            ]
        return used

    def _finish_norms(self, rows: Sequence[kernels.NormUpdate], *, has_gradient: bool) -> None:
        table = (kernels.NormUpdate * kernels.MAX_NORMS)(*rows)
        kernels.finish_step("update_norms")((len(rows), 1), table, ctypes.c_int(has_gradient))
