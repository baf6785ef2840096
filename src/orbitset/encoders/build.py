"""From a configuration to a network."""

from orbitset.encoders.rectifying import EncoderConfig, RectifyingEncoder
from orbitset.encoders.spatial_transformer import SpatialTransformer, TransformedEncoder

Encoder = RectifyingEncoder | TransformedEncoder


def build_encoder(
    config: EncoderConfig, *, in_channels: int, size_px: int, has_transformer: bool = False
) -> Encoder:
    """The network a configuration describes, for images of the given shape."""
    encoder = RectifyingEncoder(
        in_channels=in_channels,
        size_px=size_px,
        channels=config.channels,
        code_size=config.code_size,
        code_norm=config.code_norm,
        pool=config.pool,
        unpooling=config.unpooling,
    )
    if not has_transformer:
        return encoder
    return TransformedEncoder(SpatialTransformer(in_channels=in_channels, size_px=size_px), encoder)
