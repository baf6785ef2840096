"""The discriminate-and-rectify encoder: encode an image, decode a code, rectify an image.

Shapes: N images of C x S x S, D code entries.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from orbitset.encoders.code_norm import CodeNorm, build_code_norm
from orbitset.encoders.contrast import Contrast, build_contrast
from orbitset.encoders.free_decoder import FreeDecoder
from orbitset.encoders.pooling import Unpooling
from orbitset.encoders.tied_decoder import TiedDecoder
from orbitset.encoders.vgg import VGGEncoder
from orbitset.errors import ConfigError, check_choice
from orbitset.precision import at_least_float32

Decoder = Literal["tied", "free"]
"""The encoder reversed, with its weights, or a decoder with weights of its own"""


class RectifyingEncoder(nn.Module):
    """The paper's encoder with its tied decoder, or with a free one.

    >>> model = RectifyingEncoder(size_px=32, channels=(4, 8), code_size=16)
    >>> images = torch.rand(3, 1, 32, 32)
    >>> model.encode(images).shape, model.rectify(images).shape
    (torch.Size([3, 16]), torch.Size([3, 1, 32, 32]))
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        size_px: int = 64,
        channels: tuple[int, ...] = (16, 32, 64, 128),
        code_size: int = 1024,
        code_norm: CodeNorm = "none",
        pool: int = 2,
        unpooling: Unpooling = "copy",
        contrast: Contrast = "given",
        decoder: Decoder = "tied",
    ) -> None:
        super().__init__()
        check_choice("code_norm", code_norm, get_args(CodeNorm))
        check_choice("decoder", decoder, get_args(Decoder))
        check_choice("unpooling", unpooling, get_args(Unpooling))
        if pool not in (2, 4):
            raise ConfigError(f"pool is {pool}; choose 2 or 4")
        step_px = 1 << len(channels)
        if size_px % step_px:
            near_px = max(1, round(size_px / step_px)) * step_px
            raise ConfigError(
                f"images of {size_px} px cannot be halved {len(channels)} times; "
                f"choose a size that is a multiple of {step_px} px, or fewer encoder.channels",
                hint=f"--set orbits.size_px={near_px}, or orbits.canvas_px={near_px} for computed orbits",
            )
        self.in_channels, self.size_px, self.code_size = in_channels, size_px, code_size
        self.contrast = build_contrast(contrast, size_px)
        self.encoder = VGGEncoder(
            in_channels=in_channels,
            size_px=size_px,
            channels=channels,
            code_size=code_size,
            pool=pool,
        )
        self.code_norm = build_code_norm(code_norm, code_size)
        self.decoder: TiedDecoder | FreeDecoder = TiedDecoder(self.encoder, unpooling)
        if decoder == "free":
            self.decoder = FreeDecoder(
                in_channels=in_channels, size_px=size_px, channels=channels, code_size=code_size
            )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def architecture(self) -> dict[str, Any]:
        """Nothing: its settings say all that it is built from."""
        return {}

    def encode(self, images: Tensor) -> Tensor:
        """Codes (N, D) in float32."""
        return self._encode(images, keep_switches=False)[0]

    def decode(self, codes: Tensor) -> Tensor:
        """The image (N, C, S, S) that each code stands for. With switches, codes alone are not enough."""
        if self._uses_switches:
            raise ValueError(
                "decode needs the pooling switches of the input, which codes do not hold; "
                "call rectify(images), or choose unpooling 'copy' or 'corner'"
            )
        return self._decode(codes, [])

    def rectify(self, images: Tensor) -> Tensor:
        """Each image in its canonical pose: decode(encode(images))."""
        return self.forward(images)[1]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and rectified images in one go."""
        codes, switches = self._encode(images, keep_switches=self._uses_switches)
        return codes, self._decode(codes, switches)

    @property
    def _uses_switches(self) -> bool:
        return isinstance(self.decoder, TiedDecoder) and self.decoder.unpooling == "switches"

    def _encode(self, images: Tensor, *, keep_switches: bool) -> tuple[Tensor, list[Tensor]]:
        self.check(images)
        images = self.contrast(images).contiguous(memory_format=torch.channels_last)
        codes, switches = self.encoder(images, keep_switches=keep_switches)
        return self.code_norm(at_least_float32(codes)), switches

    def _decode(self, codes: Tensor, switches: list[Tensor]) -> Tensor:
        if isinstance(self.decoder, FreeDecoder):
            return at_least_float32(self.decoder(codes))
        return at_least_float32(self.decoder(codes, self.encoder, switches))

    def check(self, images: Tensor) -> None:
        """Refuse images of another shape, or that are not floats."""
        check_images(images, self.in_channels, self.size_px)


def check_images(images: Tensor, in_channels: int, size_px: int) -> None:
    """Refuse images of another shape, or that are not floats."""
    expected = (in_channels, size_px, size_px)
    if images.ndim != 4 or images.shape[1:] != expected:
        raise ValueError(
            f"images have shape {tuple(images.shape)}; this encoder takes "
            f"(count, {', '.join(map(str, expected))})"
        )
    if not images.is_floating_point():
        raise TypeError(
            f"images have dtype {str(images.dtype).removeprefix('torch.')}; "
            "give floats in [0, 1], for uint8 images.float() / 255"
        )
