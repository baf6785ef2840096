"""From a configuration to a network."""

from collections.abc import Mapping
from typing import Any

from orbitset.encoders.backbone import BackboneEncoder
from orbitset.encoders.config import PAPERS, EncoderConfig
from orbitset.encoders.named import build_backbone
from orbitset.encoders.rectifying import RectifyingEncoder
from orbitset.encoders.spatial_transformer import SpatialTransformer, TransformedEncoder

Encoder = RectifyingEncoder | BackboneEncoder | TransformedEncoder


def build_encoder(
    config: EncoderConfig,
    *,
    in_channels: int,
    size_px: int,
    has_transformer: bool = False,
    architecture: Mapping[str, Any] | None = None,
) -> Encoder:
    """The network that a configuration describes, for images of this shape.

    `architecture` is what a model keeps of a network of transformers, so that it need not be fetched again.
    """
    encoder = _build(config, in_channels, size_px, architecture)
    if not has_transformer:
        return encoder
    return TransformedEncoder(SpatialTransformer(in_channels=in_channels, size_px=size_px), encoder)


def without_transformer(model: Encoder) -> RectifyingEncoder | BackboneEncoder:
    """The encoder behind a spatial transformer, or the encoder itself."""
    inner = model.encoder if isinstance(model, TransformedEncoder) else model
    assert isinstance(inner, RectifyingEncoder | BackboneEncoder)
    return inner


def _build(
    config: EncoderConfig, in_channels: int, size_px: int, architecture: Mapping[str, Any] | None
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
        return RectifyingEncoder(
            **settings,
            pool=config.pool,
            unpooling=config.unpooling,
            decoder=config.decoder or "tied",
        )
    backbone = build_backbone(
        config.backbone,
        in_channels=in_channels,
        size_px=size_px,
        is_pretrained=config.is_pretrained,
        features=config.features,
        architecture=architecture,
    )
    return BackboneEncoder(
        backbone, **settings, head=config.head, norm_statistics=config.norm_statistics
    )
