"""Head only, LoRA and all weights side by side: memory, rate and result, for a transformer like DINOv2-small.

    python benchmarks/adaptation.py --data FOLDER --out results/adaptation-cuda.json

FOLDER has fruits360/ and grocery_store/ with a manifest.csv each. No weights are fetched: the transformer is
first trained from random weights on fruits360, saved as transformers saves one, and then adapted to
grocery_store as `orbitset train --encoder hf:./folder` does it. Scores are of things that were not trained
on. No setting may be chosen by those of the test part.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import record

SHAPE = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6}
SMOKE_SHAPE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
PATCH_PX = 14
PRETRAINING = ("train.head_first=0", "train.backbone_rate=1", "train.head_rate=1")
PRETRAINING += ("train.learning_rate=3e-4", "train.weight_decay=0.05", "train.average=0.995")
WAYS = {
    "head": ("train.head_first=1",),
    "lora": ("train.lora=8", "train.backbone_rate=1", "train.layer_decay=0.8"),
    "all": ("train.layer_decay=0.8",),
    "all, recomputed": ("train.layer_decay=0.8", "train.recompute=true"),
}
"""Settings beside those that a pretrained network has by default"""
ONCE = ("all, recomputed",)
"""Ways that are measured with the first seed alone: they learn as another does"""


class Meter:
    """The progress of a training: its rate and its peak of memory, evaluations left out."""

    def __init__(self, device: str) -> None:
        self.device, self.rates = device, []
        self.peak_mib = self.resident_mib = 0.0
        self._last: tuple[float, int] | None = None

    def start(self, label: str, total: int, done: int) -> None:
        self._last = None

    def update(self, done: int, images: int, terms: Mapping[str, float]) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self.rates.append((images - self._last[1]) / (now - self._last[0]))
        self._last = (now, images)
        if self.device == "cuda":
            import torch

            self.peak_mib = max(self.peak_mib, torch.cuda.max_memory_allocated() / 2**20)

    @contextmanager
    def pause(self, message: str) -> Iterator[None]:
        yield
        self._last = None
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.resident_mib = torch.cuda.memory_allocated() / 2**20

    def shorten(self, total: int) -> None: ...

    def note(self, message: str) -> None: ...

    def stop(self) -> None: ...

    def figures(self) -> dict[str, float | None]:
        """The rate is the median between two looks at the terms, in the second half of the training. What
        is resident between steps, the images among it, is part of the peak."""
        later = self.rates[len(self.rates) // 2 :]
        rate = round(statistics.median(later), 1) if later else None
        memory = {"peak_memory_mib": self.peak_mib, "resident_memory_mib": self.resident_mib}
        is_known = self.device == "cuda"
        return {
            "images_per_s": rate,
            **{name: round(mib, 1) if is_known else None for name, mib in memory.items()},
        }


def random_transformer(folder: Path, shape: Mapping[str, int], size_px: int) -> None:
    """Save a transformer with random weights, with what it expects of its images."""
    import json

    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Dinov2Config(image_size=size_px, patch_size=PATCH_PX, **shape)
    transformers.Dinov2Model(config).save_pretrained(folder)
    mean, sd = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    processing = {"crop_size": size_px, "image_mean": mean, "image_std": sd}
    (folder / "preprocessor_config.json").write_text(json.dumps(processing))


def trained(
    data: Path,
    network: Path,
    out: Path,
    options: argparse.Namespace,
    epochs: float,
    seed: int,
    settings: tuple,
) -> dict[str, Any]:
    """One training as the command line makes it: what it took, and what it began with and kept is worth."""
    from orbitset.recipes.compose import compose
    from orbitset.recipes.own_images import OrbitOptions
    from orbitset.recipes.request import Request
    from orbitset.run_folder import Run
    from orbitset.runs.train import train

    always = ("evaluation.pictures=0", "evaluation.tsne_labels=0", "train.evaluations=4")
    request = Request(
        source=str(data / "manifest.csv"),
        method="IN",
        encoder=f"hf:{network}",
        epochs=epochs,
        seed=seed,
        observed=OrbitOptions(orbit=("thing",)),
        settings=(*always, *options.settings, *settings),
    )
    composed = compose(request)
    meter, run, started_at = Meter(options.device), Run(out), time.perf_counter()
    train(composed.config, run, device=options.device, progress=meter, source=composed.source)
    elapsed_s = round(time.perf_counter() - started_at, 1)
    records = run.records()
    best = max(records, key=lambda one: (one["top1"]["va"][0], -one["step"]))
    sides = {"frozen": records[0], "trained": best}
    scores = {
        f"{name}_{measure}_{part}": one[measure][side][0]
        for name, one in sides.items()
        for measure in ("auc", "top1")
        for side, part in (("va", "validation"), ("te", "test"))
    }
    figures = {**meter.figures(), "elapsed_s": elapsed_s, "kept_step": best["step"]}
    return {"steps": records[-1]["step"], "images": records[-1]["images"], **figures, **scores}


def pretrained_transformer(run: Path, begun_with: Path, folder: Path) -> None:
    """Save the network of a run as transformers saves one."""
    import shutil

    import orbitset

    network = orbitset.load(run).network.backbone.network.network
    network.save_pretrained(folder)
    shutil.copy(begun_with / "preprocessor_config.json", folder)


def measured(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    started_at = time.perf_counter()
    shape = SMOKE_SHAPE if options.smoke else SHAPE
    random_transformer(work / "random", shape, options.size_px)
    fruits, groceries = (options.data / name for name in ("fruits360", "grocery_store"))
    epochs = options.pretraining_epochs
    parts = (fruits, work / "random", work / "pretraining", options, epochs, 0, PRETRAINING)
    results: dict[str, Any] = {"pretraining": trained(*parts)}
    pretrained_transformer(work / "pretraining", work / "random", work / "pretrained")
    rows = []
    for seed in options.seeds:
        for way, settings in WAYS.items():
            is_late = time.perf_counter() - started_at > options.seconds
            if is_late or (way in ONCE and seed != options.seeds[0]):
                continue
            out = work / f"{way}-{seed}"
            parts = (groceries, work / "pretrained", out, options, options.epochs, seed, settings)
            row = {"way": way, "settings": list(settings), "seed": seed, **trained(*parts)}
            print({name: row[name] for name in row if name != "settings"}, flush=True)
            rows.append(row)
    return {
        "shape": {**shape, "size_px": options.size_px, "patch_px": PATCH_PX},
        **results,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with fruits360/ and grocery_store/"
    )
    parser.add_argument("--out", type=Path, default=record.RESULTS / "adaptation.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", help="what is recorded as the commit, where there is no git")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--size-px", type=int, default=112)
    parser.add_argument("--pretraining-epochs", type=float, default=60.0)
    parser.add_argument("--epochs", type=float, default=15.0, help="of each adaptation")
    parser.add_argument(
        "--seconds", type=float, default=140.0, help="after these no training begins"
    )
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--smoke", action="store_true", help="a tiny transformer for a few steps")
    options = parser.parse_args()
    if options.smoke:
        options.size_px, options.seeds = 28, options.seeds[:1]
        options.pretraining_epochs = options.epochs = 0.2
    if options.commit:
        os.environ["ORBITSET_COMMIT"] = options.commit
    about = record.environment("transformers", "orbitset")
    if options.device == "cuda":
        import torch

        about["hardware"]["gpu"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as work:
        results = measured(options, Path(work))
    record.write(options.out, {**about, "is_smoke": options.smoke, **results})


if __name__ == "__main__":
    main()
