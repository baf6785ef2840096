"""Image embeddings learned from orbit sets: discriminate-and-rectify encoders."""

__version__ = "0.1.0"
