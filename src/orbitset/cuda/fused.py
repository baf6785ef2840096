"""The rectifying encoder's training pass with kernels of its own, for NVIDIA GPUs.

It computes what `RectifyingEncoder.forward` computes under bfloat16 autocast in training mode, and its
gradient. Only the outputs of convolutions are ever stored: batch norm, ReLU, pooling and un-pooling happen
where these are next read, and batch norm's sums where they are written. `docs/performance.md` has the why.

Shapes: N images, D code entries; layer l maps `widths[l]` to `widths[l + 1]` channels at `sizes[l]` pixels.
Encoder outputs before batch norm are y[l], decoder outputs z[l]; the decoder's top is z[L].
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from orbitset.cuda import layers as kernels
from orbitset.cuda.fused_code import CodeLayer
from orbitset.cuda.fused_finish import (
    Row,
    first_gradient,
    norm_gradients,
    sum_slabs,
    update_norms,
)
from orbitset.cuda.fused_launch import Launches, Pair, Source, aligned
from orbitset.cuda.fused_plan import Plan, encoder_kinds, why_not_fused
from orbitset.cuda.streams import Second, joined
from orbitset.encoders.rectifying import RectifyingEncoder
from orbitset.encoders.tied_decoder import TiedDecoder


class FusedEncoder(nn.Module):
    """A model's training pass, fused; shares the model's parameters and running statistics.

    Call it as the model: `fused(images)` for codes and rectified images, `fused.encode(images)` for codes.
    """

    def __init__(self, model: RectifyingEncoder) -> None:
        super().__init__()
        reason = why_not_fused(model)
        if reason:
            raise ValueError(reason)
        self.plan = Plan(model)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor], self._run(images, True))

    def encode(self, images: Tensor) -> Tensor:
        return self._run(images, False)[0]

    def _run(self, images: Tensor, uses_decoder: bool) -> tuple[Tensor, Tensor | None]:
        model = self.plan.model
        model.check(images)
        if not model.training:
            raise RuntimeError("the fused pass is for training only")
        images = model.contrast(images)
        with _around(images.device):
            self.plan.prepare(len(images), uses_decoder, images.requires_grad)
            held = [_Pass(self.plan, images, uses_decoder, images.requires_grad)]
            codes, *rectified = _Fused.apply(held, images, *self.plan.parameters(uses_decoder))
        return codes, rectified[0] if rectified else None


@contextlib.contextmanager
def _around(device: torch.device) -> Iterator[None]:
    with torch.cuda.device(device), torch.autocast("cuda", enabled=False), joined(device):
        yield


class _Fused(torch.autograd.Function):
    """Codes, and rectified images where they are asked for. The pass is in a list of one, which is empty when
    it has been used up, so that its memory is let go."""

    @staticmethod
    def forward(
        ctx: Any, held: "list[_Pass]", images: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.held = held
        ctx.set_materialize_grads(False)
        codes = held[0].encode()
        return (codes, held[0].decode()) if held[0].uses_decoder else (codes,)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, grad_codes: Tensor | None, grad_rectified: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        if not ctx.held:
            raise RuntimeError("the fused pass can go back once only; add up the losses first")
        run: _Pass = ctx.held.pop()
        with _around(run.images.device):
            if grad_rectified is not None:
                run.decoder_backward(aligned(grad_rectified))
            grads = run.encoder_backward(grad_codes)
        return None, run.grad_images, *grads


class _Pass:
    """One batch on its way through the network and back."""

    def __init__(
        self, plan: Plan, images: Tensor, uses_decoder: bool, image_gradient: bool = False
    ) -> None:
        self.plan, self.uses_decoder = plan, uses_decoder
        self.images = aligned(images.float())
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
        self.slabs: list[list[Tensor]] = [[] for _ in range(plan.depth)]
        self.grad_bias: Tensor | None = None
        self.versions = [p._version for p in plan.parameters(uses_decoder)]
        self.second = Second(images.device)
        self.decoder_pairs: dict[int, Pair] = {}
        self.kept: list[Tensor] = []  # gradients that are read again, or by the second stream

    def encode(self) -> Tensor:
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
        if not self.uses_decoder:
            update_norms(self._norms(with_decoder=False))
        return codes

    def decode(self) -> Tensor:
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
        assert isinstance(model.decoder, TiedDecoder), "a fused model has one"
        self.launch.convolve(0, *source, "IMAGE", target, transposed=True, bias=model.decoder.bias)
        update_norms(self._norms(with_decoder=True))
        return rectified

    def decoder_backward(self, grad_rectified: Tensor) -> None:
        """To the top before its batch norm."""
        plan = self.plan
        self._check_weights()
        self.grad_bias = grad_rectified.new_empty(1)
        self.kept.append(grad_rectified)
        self.second.catch_up()
        with self.second.work():
            torch.sum(grad_rectified.view(-1), 0, keepdim=True, out=self.grad_bias)
        grad = grad_rectified
        for layer in range(plan.depth):
            out_kind = plan.decoder_kinds(layer)[0]
            pre = self.z.get(layer)
            norm = self._decoder_norm(layer) if layer else None
            arriving = kernels.operand(grad, pre, norm)
            if not plan.takes_both(layer):
                self.decoder_pairs[layer] = ((out_kind, arriving), self._decoder_input(layer))
                self.kept.append(grad)
            below = self.z[layer + 1]
            leaving = torch.empty_like(below)
            norm = self._decoder_norm(layer + 1)
            target = kernels.operand(leaving, below, norm, self.switches.get(layer))
            output = plan.decoder_output(layer)
            self._convolve_back(layer, out_kind, arriving, output, target, transposed=False)
            grad = leaving  # not before: what arrives is known to the kernel by its address alone
        top = self.z[plan.depth]
        arriving = kernels.operand(grad, top, self._decoder_norm(plan.depth))
        self.launch.pointwise(
            plan.top, plan.widths[-1], "GRAD", arriving, "STORE", self.code.grad_top
        )

    def _check_weights(self) -> None:
        if self.versions != [p._version for p in self.plan.parameters(self.uses_decoder)]:
            raise RuntimeError("weights were changed in place after the pass that goes back now")

    def encoder_backward(self, grad_codes: Tensor | None) -> list[Tensor | None]:
        """Gradients of all parameters; those of the decoder are None where it has not gone back."""
        self._check_weights()
        if grad_codes is None:
            size = self.plan.model.code_size
            grad_codes = torch.zeros(self.num, size, device=self.images.device)
        has_decoded = self.grad_bias is not None
        grad, grad_code = self.code.backward(grad_codes, has_decoded=has_decoded)
        plan, last = self.plan, self.plan.depth - 1
        together = [layer for layer in range(1, plan.depth) if plan.takes_both(layer)]
        apart = [layer for layer in range(1, plan.depth) if layer not in together]
        # made before the second stream catches up, since it writes them
        grad_weights = [
            torch.empty_like(conv.weight, memory_format=torch.channels_last) for conv in plan.convs
        ]
        norms = self._norms(with_decoder=has_decoded)
        grad_norms = [torch.empty_like(p) for norm, _ in norms for p in (norm.weight, norm.bias)]
        target = kernels.operand(grad, self.y[last], self._norm(last))
        self.launch.pointwise(plan.top, plan.widths[-1], "RAW", target, "MASK_POOL", target)
        for layer in range(last, 0, -1):
            kind = encoder_kinds(layer)[1]
            arriving = kernels.operand(grad, self.y[layer], self._norm(layer))
            if layer in apart:
                self.kept.append(grad)
                self.second.catch_up()
                with self.second.work():
                    self._weight_gradient(layer, kind, arriving)
                    if layer == apart[0]:
                        sum_slabs(self._rows(grad_weights, apart))
            if layer == 1:
                self.second.catch_up()
                with self.second.work():
                    sum_slabs(self._rows(grad_weights, [other for other in together if other > 1]))
            gives_first = layer == 1 and plan.gives_first(self.grad_images is not None)
            leaving = None if gives_first else self._empty(plan.sizes[layer], plan.widths[layer])
            target = kernels.operand(leaving, self.y[layer - 1], self._norm(layer - 1))
            first_slabs = self._convolve_back(
                *(layer, kind, arriving, plan.encoder_output(layer), target),
                transposed=True,
                first_input=self.images if leaving is None else None,
            )
            if leaving is not None:
                grad = leaving
        self.second.catch_up()
        with self.second.work():
            norm_gradients(norms, grad_norms)
        with_first = self._rows(grad_weights, [layer for layer in together if layer == 1])
        if first_slabs is not None:
            slabs = (first_slabs, self.slabs[0])
            weight, grad_weight = plan.convs[0].weight, grad_weights[0]
            first_gradient(weight, self._norm(0), *slabs, grad_weight, others=with_first)
        else:
            kind = encoder_kinds(0)[1]
            arriving = kernels.operand(grad, self.y[0], self._norm(0))
            self._weight_gradient(0, kind, arriving)
            sum_slabs([*self._rows(grad_weights, [0]), *with_first])
            self._image_gradient(kind, arriving)
        own = 2 * plan.depth
        grads: list[Tensor | None] = [*grad_weights, *grad_norms[:own], *grad_code]
        if has_decoded:
            grads += [*grad_norms[own:], self.grad_bias]
        return grads + [None] * (len(plan.parameters(self.uses_decoder)) - len(grads))

    def _convolve_back(
        self,
        layer: int,
        kind: kernels.Kind,
        arriving: kernels.Operand,
        output: kernels.Output,
        target: kernels.Operand,
        *,
        transposed: bool,
        first_input: Tensor | None = None,
    ) -> Tensor | None:
        slabs, first_slabs = self.launch.convolve(
            *(layer, kind, arriving, output, target),
            transposed=transposed,
            gives_weights=self.plan.takes_both(layer),
            first_input=first_input,
        )
        if slabs is not None:
            self.slabs[layer].append(slabs)
        return first_slabs

    def _weight_gradient(self, layer: int, kind: kernels.Kind, arriving: kernels.Operand) -> None:
        pair = (self._encoder_input(layer), (kind, arriving))
        slabs = self.launch.weight_gradient(layer, pair, self.decoder_pairs.get(layer))
        self.slabs[layer].append(slabs)

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

    def _rows(self, grads: Sequence[Tensor], layers: Sequence[int]) -> list[Row]:
        return [(self.slabs[layer], grads[layer]) for layer in layers]

    def _norms(self, *, with_decoder: bool) -> list[tuple[Any, kernels.Norm]]:
        depth = self.plan.depth
        used = [(self.plan.norms[layer], self._norm(layer)) for layer in range(depth)]
        if with_decoder:
            used += [
                (self.plan.decoder_norms[layer], self._decoder_norm(layer))
                for layer in range(1, depth + 1)
            ]
        return used
