"""Heads that are rendered once and then kept in the user's cache folder."""

import contextlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orbitset.datasets.heads import LIGHTS, PEOPLE, VERSION, render_heads
from orbitset.datasets.observed import ObservedImages
from orbitset.files import cache_folder


def load_heads(
    people: int | None = None,
    lights: int | None = None,
    *,
    size_px: int = 64,
    seed: int = 0,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> ObservedImages:
    """All views and sessions of so many people and lights, by default of all."""
    people, lights = people or PEOPLE, lights or len(LIGHTS)
    name = f"v{VERSION}-{people}x{lights}-{size_px}px-seed{seed}-{torch.device(device).type}.npz"
    place = cache_folder() / "heads" / name
    found = _stored(place)
    if found is not None:
        return found
    rendered = render_heads(
        people=people,
        lights=lights,
        size_px=size_px,
        seed=seed,
        device=device,
        on_progress=on_progress,
    )
    with contextlib.suppress(OSError):  # a cache that cannot be written is only slower
        _store(place, rendered)
    return rendered


def _store(place: Path, seen: ObservedImages) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.{os.getpid()}.part.npz")
    factors: dict[str, Any] = {f"factor_{name}": ids.numpy() for name, ids in seen.factors.items()}
    try:
        np.savez(part, images=seen.images.numpy(), values=json.dumps(seen.values), **factors)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


def _stored(place: Path) -> ObservedImages | None:
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            values = {name: tuple(of) for name, of in json.loads(str(kept["values"])).items()}
            factors = {name: torch.from_numpy(kept[f"factor_{name}"]) for name in values}
            return ObservedImages(torch.from_numpy(kept["images"]), factors, values)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
