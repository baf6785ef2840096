"""Image embeddings learned from orbit sets: discriminate-and-rectify encoders."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitset.estimator import OrbitEncoder
    from orbitset.models import Model

__version__ = "0.1.0"
__all__ = ["OrbitEncoder", "__version__", "load"]


def load(path: Path | str, *, device: str = "cpu") -> "Model":
    """The model in a folder: of a finished run, or what `orbitset export` wrote."""
    from orbitset.models import load_model_folder

    return load_model_folder(path, device=device)


def __getattr__(name: str) -> Any:
    """Loaded when first used: it brings torch and scikit-learn."""
    if name == "OrbitEncoder":
        from orbitset.estimator import OrbitEncoder

        return OrbitEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
