"""How the kernels of a fused training pass are started: which of them, and cut up how, for which layer."""

import ctypes

import torch
from torch import Tensor

from orbitset.cuda import layers as kernels
from orbitset.cuda.fused_plan import Plan

Source = tuple[kernels.Kind, kernels.Operand]
Pair = tuple[Source, Source]
"""Two operands whose product is a weight gradient: the one that is shifted and the one that is not."""


class Launches:
    """For one batch of images and the weights of the moment."""

    def __init__(self, plan: Plan, num: int) -> None:
        self.plan, self.num = plan, num
        self.weights = plan.pack()

    def convolve(
        self,
        layer: int,
        kind: kernels.Kind,
        source: kernels.Operand,
        output: kernels.Output,
        target: kernels.Operand,
        *,
        transposed: bool,
        bias: Tensor | None = None,
        gives_weights: bool = False,
        first_input: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Sums to add up for the weights' gradient, if it is to give those, and with the first layer's input
        those for that layer's (2 x 16 x 16), if the result is the gradient of its activations."""
        inputs, outputs = self._channels(layer)
        if transposed:
            inputs, outputs = outputs, inputs
        layout = (self.plan.sizes[layer], inputs, outputs, kind, output)
        shape = kernels.convolution_shape(*layout, gives_weights=gives_weights, images=self.num)
        kernel = kernels.convolution(*layout, shape, gives_weights, first_input is not None)
        blocks = min(self._tiles(self.plan.sizes[layer], shape.pixels), kernel.resident_blocks)
        slabs = self._slabs(layer, blocks) if gives_weights else None
        first_slabs = None if first_input is None else first_input.new_empty(blocks, 2, 256)
        kernel(
            (blocks, 1),
            source,
            address(self.weights[2 * layer + transposed]),
            target,
            address(bias),
            ctypes.c_int(self.num),
            *map(address, (slabs, first_input, first_slabs)),
        )
        return slabs, first_slabs

    def weight_gradient(self, layer: int, encoder: Pair, decoder: Pair | None) -> Tensor:
        """Of the encoder's layer and, where there is a decoder, the one tied to it: sums to add up."""
        inputs, outputs = self._channels(layer)
        size = self.plan.sizes[layer]
        shape = kernels.gradient_shape(
            size, inputs, outputs, encoder[0][0], is_tied=decoder is not None, images=self.num
        )
        kernel = kernels.weight_gradient(
            *(size, inputs, outputs),
            (encoder[0][0], encoder[1][0]),
            None if decoder is None else (decoder[0][0], decoder[1][0]),
            shape,
        )
        groups = inputs // (16 * shape.warps_m) * (outputs // (8 * shape.nt * shape.warps_n))
        tiles = self._tiles(size, shape.pixels)
        blocks = max(1, min(tiles, kernel.resident_blocks // groups))
        slabs = self._slabs(layer, blocks)
        kernel(
            (blocks, groups),
            kernels.Pair(encoder[0][1], encoder[1][1]),
            kernels.Pair() if decoder is None else kernels.Pair(decoder[0][1], decoder[1][1]),
            ctypes.c_void_p(slabs.data_ptr()),
            ctypes.c_int(self.num),
        )
        return slabs

    def pointwise(
        self,
        size: int,
        width: int,
        kind: kernels.Kind,
        source: kernels.Operand,
        output: kernels.Output,
        target: kernels.Operand | Tensor,
    ) -> None:
        if isinstance(target, Tensor):
            target = kernels.operand(target)
        kernel = kernels.pointwise(size, width, kind, output)
        blocks = -(-self.num * size * size * width // 8 // kernel.threads)
        few = min(blocks, kernel.resident_blocks // 4)  # more would only wait for each other's sums
        kernel((max(1, few), 1), source, target, ctypes.c_int(self.num))

    def find_switches(self, source: kernels.Operand, switches: Tensor) -> None:
        """Into (N, S, S, C) bytes, of an output with twice as many rows and columns."""
        kernel = kernels.find_switches(*switches.shape[-2:])
        blocks = -(-switches.numel() // 8 // kernel.threads)
        kernel(
            (min(blocks, kernel.resident_blocks), 1),
            source,
            ctypes.c_void_p(switches.data_ptr()),
            ctypes.c_int(self.num),
        )

    def _slabs(self, layer: int, count: int) -> Tensor:
        inputs, outputs = self._channels(layer)
        taps = 1 if layer == 0 else 9
        return torch.empty(count, taps * inputs * outputs, device=self.plan.zero.device)

    def _channels(self, layer: int) -> tuple[int, int]:
        inputs, outputs = (max(16, width) for width in self.plan.widths[layer : layer + 2])
        return inputs, outputs

    def _tiles(self, size: int, pixels: int) -> int:
        images, rows, columns = kernels.tile(size, pixels)
        return -(-self.num // images) * (size // rows) * (size // columns)


def aligned(tensor: Tensor) -> Tensor:
    """As kernels read images: without gaps, and in whole groups of 16 bytes."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def address(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
