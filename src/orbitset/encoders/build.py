"""From a configuration to a network."""

from typing import Any

from orbitset.encoders.backbone import BackboneEncoder
from orbitset.encoders.named import build_backbone
from orbitset.encoders.rectifying import PAPERS, EncoderConfig, RectifyingEncoder
from orbitset.encoders.spatial_transformer import SpatialTransformer, TransformedEncoder

Encoder = RectifyingEncoder | BackboneEncoder | TransformedEncoder


def build_encoder(
    config: EncoderConfig,
    *,
    in_channels: int,
    size_px: int,
    has_transformer: bool = False,
) -> Encoder:
    """The network that a configuration describes, for images of this shape."""
    encoder = _without_transformer(config, in_channels, size_px)
    if not has_transformer:
        return encoder
    return TransformedEncoder(SpatialTransformer(in_channels=in_channels, size_px=size_px), encoder)


def _without_transformer(
    config: EncoderConfig, in_channels: int, size_px: int
) -> RectifyingEncoder | BackboneEncoder:
    settings: dict[str, Any] = {
        "in_channels": in_channels,
        "size_px": size_px,
        "channels": config.channels,
        "code_size": config.code_size,
        "code_norm": config.code_norm,
        "contrast": config.contrast,
    }
    if config.backbone == PAPERS:
        return RectifyingEncoder(**settings, pool=config.pool, unpooling=config.unpooling)
    backbone = build_backbone(
        config.backbone,
        in_channels=in_channels,
        size_px=size_px,
        is_pretrained=config.is_pretrained,
    )
    return BackboneEncoder(backbone, **settings)
