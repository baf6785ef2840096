"""How well a model's confidence tells its own kind of images from others: `python benchmarks/confidence.py`.

On each of three sets of grouped images a model is trained from random weights. Its confidence is asked for
images of validation things, which were neither trained on nor used to calibrate the confidence, and for
images of the two other sets, noise, blotches, and the validation images with light and dark exchanged.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

import orbitset
from orbitset.datasets.source import open_source
from orbitset.models import Assessment, Model
from orbitset.models.known import UNLIKE
from orbitset.recipes.compose import compose
from orbitset.recipes.own_images import OrbitOptions
from orbitset.recipes.request import Request
from orbitset.run_folder import Run
from orbitset.runs.train import train

SETS = ("font_glyphs", "fruits360", "grocery_store")
SIZE_PX, IMAGES, NUM = 32, 15_000, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with these sets, each with a manifest.csv")
    parser.add_argument("--out", type=Path, default=Path("runs/confidence"))
    options = parser.parse_args()
    for trained in SETS:
        model, values = trained_on(options.data / trained, options.out / trained)
        own = pictures(model, options.data / trained, values)
        kinds = {name: pictures(model, options.data / name) for name in SETS if name != trained}
        kinds |= made(own)
        known = assess(model, own)
        rows = {name: compared(known, assess(model, images)) for name, images in kinds.items()}
        own_kind = {
            "marked": float((known.confidence < UNLIKE).mean()),
            "median": float(np.median(known.confidence)),
        }
        print(json.dumps({"trained on": trained, "own kind": own_kind, **rows}, indent=1))


def trained_on(source: Path, out: Path) -> tuple[Model, tuple[str, ...]]:
    """A model, and the things of which its validation images are."""
    manifest = str(source / "manifest.csv")
    num = len(open_source(manifest).table().paths)  # type: ignore[attr-defined]
    settings = (f"orbits.size_px={SIZE_PX}", "train.evaluations=2")
    request = Request(
        source=manifest,
        epochs=IMAGES / num,
        observed=OrbitOptions(orbit=["thing"]),
        settings=settings,
    )
    composed = compose(request)
    run = Run(out)
    if not run.is_finished:
        train(composed.config, run, overwrite=True, source=composed.source)
    return orbitset.load(out), composed.config.evaluation.validation


def pictures(model: Model, source: Path, things: tuple[str, ...] | None = None) -> Tensor:
    """A few hundred images of a set, of these things if any are named."""
    table = open_source(str(source / "manifest.csv")).table()  # type: ignore[attr-defined]
    places = [at for at, thing in enumerate(table.columns["thing"]) if thing in (things or [thing])]
    chosen = np.random.default_rng(0).permutation(places)[:NUM]
    return model.prepare([source / table.paths[at] for at in chosen])


def made(own: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand((len(own), own.shape[1], 4, 4), generator=generator)
    return {
        "noise": torch.rand(own.shape, generator=generator),
        "blotches": F.interpolate(coarse, own.shape[-1], mode="bilinear"),
        "inverted": 1 - own,
    }


def assess(model: Model, images: Tensor) -> Assessment:
    assessment = model.rectify_and_assess(images)[1]
    assert assessment is not None
    return assessment


def compared(known: Assessment, other: Assessment) -> dict[str, float]:
    """AUC of the confidence and of each measure alone, and the share of the others that is marked."""
    is_other = [0] * len(known.confidence) + [1] * len(other.confidence)
    values = {
        name: np.concatenate([own, getattr(other, name)]) for name, own in vars(known).items()
    }
    values["confidence"] = -values["confidence"]
    aucs = {name: round(float(roc_auc_score(is_other, value)), 3) for name, value in values.items()}
    return {**aucs, "marked": float((other.confidence < UNLIKE).mean())}


if __name__ == "__main__":
    main()
