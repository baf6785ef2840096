"""Image embeddings learned from orbit sets: discriminate-and-rectify encoders."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitset.estimator import OrbitEncoder
    from orbitset.models import Model

__version__ = "0.1.0"
__all__ = ["OrbitEncoder", "__version__", "load"]


def load(path: Path | str, *, device: str = "cpu", trust: str | Iterable[str] = ()) -> "Model":
    """The model in a folder: of a finished run, or what `orbitset export` wrote.

    Code that the folder names, such as a network of its author's own, runs only if you `trust` its module:
    `orbitset.load("model", trust="their_package.networks")`.
    """
    from orbitset import outside
    from orbitset.models import load_model_folder

    outside.trust(trust)

    return load_model_folder(path, device=device)


def __getattr__(name: str) -> Any:
    """Loaded when first used: it brings torch and scikit-learn."""
    if name == "OrbitEncoder":
        from orbitset.estimator import OrbitEncoder

        return OrbitEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
