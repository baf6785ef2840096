"""What is learned: encoders that turn images into codes and codes back into rectified images."""

from orbitset.encoders.rectifying import EncoderConfig, RectifyingEncoder, build_encoder

__all__ = ["EncoderConfig", "RectifyingEncoder", "build_encoder"]
