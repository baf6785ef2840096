"""What of a fused training pass does not change from batch to batch, and which models can have one."""

from typing import Any

import torch
from torch import Tensor, nn

from orbitset.cuda import layers as kernels
from orbitset.cuda.nvrtc import arch_of, are_available, compile_ahead
from orbitset.cuda.packing import MAX_LAYERS, fragment_indices, pack, place
from orbitset.encoders.rectifying import RectifyingEncoder
from orbitset.encoders.tied_decoder import TiedDecoder

_WIDTHS = (16, 32, 64, 128)
_SHARED_BYTES = 227 * 1024
"""What the measured shapes may ask of a multiprocessor."""


def why_not_fused(model: RectifyingEncoder) -> str | None:
    """What keeps a model from being fused, in words; None when nothing does."""
    encoder = model.encoder
    device = next(model.parameters()).device
    if device.type != "cuda" or not are_available(device):
        return "fused kernels need an NVIDIA GPU and its compiler"
    properties = torch.cuda.get_device_properties(device)
    if getattr(properties, "shared_memory_per_block_optin", 0) < _SHARED_BYTES:
        return f"fused kernels need {_SHARED_BYTES // 1024} KiB of shared memory, as Hopper has"
    if not isinstance(model.decoder, TiedDecoder):
        return "fused kernels decode with the encoder's weights"
    return why_other_network(model) or why_other_shape(
        model.in_channels, model.size_px, encoder.widths[1:], encoder.pool, model.decoder.unpooling
    )


def why_other_network(model: RectifyingEncoder) -> str | None:
    """What makes a model compute something else than the kernels do."""
    if type(model) is not RectifyingEncoder:
        return "only the paper's encoder is fused, not what is derived from it"
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            return "fused kernels call no hooks"
        if isinstance(module, nn.BatchNorm2d) and (module.momentum is None or not module.affine):
            return "fused kernels know batch norm with weights and a momentum only"
    if any(p.dtype != torch.float32 or not p.requires_grad for p in model.parameters()):
        return "fused kernels train all weights, in float32"
    return None


def why_other_shape(
    in_channels: int, size_px: int, widths: tuple[int, ...], pool: int, unpooling: str
) -> str | None:
    """What keeps a network of this shape from being fused."""
    if in_channels != 1:
        return "fused kernels take images of one channel"
    if unpooling == "corner" or pool != 2:
        return "fused kernels know pooling of 2 and un-pooling by copies or switches only"
    if any(width not in _WIDTHS for width in widths):
        return f"fused kernels know layers of {', '.join(map(str, _WIDTHS))} channels only"
    is_power = size_px >= 8 and size_px & (size_px - 1) == 0
    if not is_power or size_px >> (len(widths) // 2) < 2 or len(widths) > MAX_LAYERS:
        return "fused kernels take canvases of 8, 16, 32 … pixels that end in at least 2 x 2"
    return None


_Convolution = tuple[int, int, kernels.Kind, kernels.Output]


def encoder_kinds(layer: int) -> kernels.Kinds:
    """How an encoder's layer reads its input, and the gradient of its output."""
    if layer % 2:
        return "ACT", "GRAD_POOL"
    return ("ACT_POOL" if layer else "IM2COL"), "GRAD"


class Plan:
    """What does not change from batch to batch: layer shapes, and where weights go."""

    def __init__(self, model: RectifyingEncoder) -> None:
        encoder, decoder = model.encoder, model.decoder
        self.model = model
        self.uses_switches = decoder.unpooling == "switches"
        self.widths = encoder.widths
        self.depth = len(encoder.convs)
        self.sizes = [model.size_px >> (layer // 2) for layer in range(self.depth)]
        self.top = encoder.top_shape[1]
        self.convs: list[Any] = list(encoder.convs)
        self.norms: list[Any] = list(encoder.norms)
        self.decoder_norms: list[Any] = [None, *decoder.norms, decoder.top_norm]
        device = encoder.code.weight.device
        places: list[Tensor] = []
        self.slices: list[slice] = []
        first = 0
        for layer in range(self.depth):
            inputs, outputs = self.widths[layer : layer + 2]
            for transposed in (False, True):
                index = fragment_indices(inputs, outputs, transposed=transposed)
                self.slices.append(slice(first, first + len(index)))
                first += len(index)
                places.append(place(index, layer))
        self.places = torch.cat(places).to(device)
        self.zero = torch.zeros(1, device=device)
        self._prepared: set[tuple[bool, bool, bool]] = set()

    def decoder_kinds(self, layer: int) -> kernels.Kinds:
        """How a decoder's layer reads the gradient of its output, and its input."""
        unpooled: kernels.Kind = "ACT_SWITCH" if self.uses_switches else "ACT_UP"
        return ("GRAD" if layer else "IM2COL"), (unpooled if layer % 2 else "ACT")

    def decoder_output(self, layer: int) -> kernels.Output:
        """What becomes of the gradient of a decoder layer's input."""
        if layer % 2:
            return "SWITCH_MASK" if self.uses_switches else "SUM_MASK"
        return "MASK"

    def encoder_output(self, layer: int) -> kernels.Output:
        """What becomes of the gradient of an encoder layer's input."""
        return "MASK" if layer % 2 else "MASK_POOL"

    def takes_both(self, layer: int) -> bool:
        """Whether one kernel gives the gradients of a layer's input and weights, in encoder and decoder.

        The encoder's first layer has no gradient of its input: its weights' is one of its own, or comes from
        the second layer's kernel.
        """
        size = self.sizes[layer]
        inputs, outputs = (max(16, width) for width in self.widths[layer : layer + 2])
        back = (size, inputs, outputs, self.decoder_kinds(layer)[0], self.decoder_output(layer))
        if layer == 0:
            return kernels.can_give_weights(*back)
        own = (size, outputs, inputs, encoder_kinds(layer)[1], self.encoder_output(layer))
        return kernels.can_give_weights(*own) and kernels.can_give_weights(*back)

    def gives_first(self, image_gradient: bool) -> bool:
        """Whether the kernel of the second layer's gradients gives that of the first layer's weights too."""
        takes_both = self.takes_both(0) and self.takes_both(1)
        return takes_both and self.widths[1] == 16 and not image_gradient

    def prepare(self, num: int, uses_decoder: bool, image_gradient: bool) -> None:
        """Compile the kernels of all layers at once, before the first of them is needed."""
        key = (num >= kernels.MANY_IMAGES, uses_decoder, image_gradient)
        if key not in self._prepared:
            self._prepared.add(key)
            sources = self.sources(num, uses_decoder, image_gradient)
            compile_ahead(sources, arch_of(self.places.device))

    def sources(self, num: int, uses_decoder: bool, image_gradient: bool = False) -> list[str]:
        """Of all layers' kernels, in both directions."""
        sources = []
        for layer in range(self.depth):
            size = self.sizes[layer]
            inputs, outputs = (max(16, width) for width in self.widths[layer : layer + 2])
            into, out_of = encoder_kinds(layer)
            decoder = self.decoder_kinds(layer) if uses_decoder else None
            takes_both, gives_first = self.takes_both(layer), self.gives_first(image_gradient)
            ahead: list[_Convolution] = [(inputs, outputs, into, "STATS")]
            back: list[_Convolution] = []
            if layer:
                back.append((outputs, inputs, out_of, self.encoder_output(layer)))
            elif image_gradient:
                ahead.append((outputs, inputs, out_of, "IMAGE"))
            if decoder is not None:
                ahead.append((outputs, inputs, decoder[1], "STATS" if layer else "IMAGE"))
                back.append((inputs, outputs, decoder[0], self.decoder_output(layer)))
            for convolution in (*ahead, *back):
                gives_weights = takes_both and convolution in back
                shape = kernels.convolution_shape(
                    size, *convolution, gives_weights=gives_weights, images=num
                )
                with_first = gives_first and layer == 1 and convolution == back[0]
                plan = kernels.convolution_plan(
                    size, *convolution, shape, gives_weights, with_first
                )
                sources.append(plan[1])
            if not (gives_first if layer == 0 else takes_both):
                tied = None if takes_both else decoder
                cut = kernels.gradient_shape(
                    size, inputs, outputs, into, is_tied=tied is not None, images=num
                )
                gradient = kernels.weight_gradient_plan(
                    size, inputs, outputs, (into, out_of), tied, cut
                )
                sources.append(gradient[1])
            if uses_decoder and self.uses_switches and layer % 2:
                sources.append(kernels.switches_plan(size // 2, outputs)[1])
        return sources

    def parameters(self, uses_decoder: bool) -> list[Tensor]:
        """In the order in which gradients are given back."""
        model = self.model
        given = [conv.weight for conv in self.convs]
        given += [p for norm in self.norms for p in (norm.weight, norm.bias)]
        given += [model.encoder.code.weight, model.encoder.code.bias]
        given += model.code_norm.parameters()
        if uses_decoder:
            given += [p for norm in self.decoder_norms[1:] for p in (norm.weight, norm.bias)]
            given.append(model.decoder.bias)
        return given

    def pack(self) -> list[Tensor]:
        """The convolutions' weights as the tensor cores want them: forward and transposed, by layer."""
        weights = [conv.weight.detach().permute(0, 2, 3, 1).contiguous() for conv in self.convs]
        packed = pack(weights, self.places)
        return [packed[part] for part in self.slices]
