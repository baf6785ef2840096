"""What is learned: encoders that turn images into codes and codes back into rectified images."""

from orbitset.encoders.backbone import BackboneEncoder
from orbitset.encoders.build import Encoder, build_encoder, without_transformer
from orbitset.encoders.config import EncoderConfig
from orbitset.encoders.rectifying import RectifyingEncoder
from orbitset.encoders.spatial_transformer import SpatialTransformer, TransformedEncoder

__all__ = [
    "BackboneEncoder",
    "Encoder",
    "EncoderConfig",
    "RectifyingEncoder",
    "SpatialTransformer",
    "TransformedEncoder",
    "build_encoder",
    "without_transformer",
]
