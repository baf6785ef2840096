"""Things named `package.module:name` that come from outside the package."""

import importlib
from pathlib import Path
from typing import Any


def import_named(spec: str, *, what: str, named_by: Path | None = None) -> Any:
    """What a name stands for."""
    module, _, attribute = spec.partition(":")
    return getattr(importlib.import_module(module), attribute)
