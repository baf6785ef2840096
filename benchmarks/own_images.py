"""Grouped images of users: raw pixels, frozen features, the methods and losses of peers, side by side.

`python benchmarks/own_images.py --data FOLDER --out results/own-images/scores.jsonl`. README.md here says
what is compared. A line of the output is one training; those that are there already are not trained again.
"""

import argparse
import csv
import json
import multiprocessing
import queue
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import record

PRETRAINED = "networks:EfficientNetLite0"
PRETRAINED_PX = 128
IMAGES = {"pretrained": 16_000, "scratch": 60_000}
"""Images shown in a training, repeats included"""
_THIRDS = ("train", "validation", "test")
MEASURES = ("auc", "top1", "accuracy")


@dataclass(frozen=True)
class Grouped:
    """A set of images, and the factor that says what they show."""

    folder: str
    thing: str


SETS = {
    "fruits360": Grouped("fruits360", "thing"),
    "grocery_store": Grouped("grocery_store", "thing"),
    "glyphs-by-character": Grouped("font_glyphs", "thing"),
    "glyphs-by-font": Grouped("font_glyphs", "view"),
}


@dataclass(frozen=True)
class Job:
    """One training, or the scores of raw pixels."""

    data: str
    row: str
    method: str | None
    """None for the default"""
    seed: int = 0
    images: int = 0
    """Images shown, repeats included"""
    encoder: str | None = None
    settings: tuple[str, ...] = ()
    augment: bool | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.data, self.row, self.seed, self.images)


SAME = ("train.patience=null", "train.evaluations=6")
_UNIT = ("encoder.code_norm=unit", "train.learning_rate=0.002")
ROWS: dict[str, tuple[str | None, tuple[str, ...], bool | None]] = {
    "default": (None, (), None),
    "OJ": ("OJ", SAME, False),
    "OT": ("OT", SAME, False),
    "IN": ("IN", SAME, False),
    "SupCon": ("peers:sup_con", (*SAME, *_UNIT), False),
    "SupCon, augmented": ("peers:sup_con", (*SAME, *_UNIT), True),
    "MultiSimilarity": ("peers:multi_similarity", (*SAME, *_UNIT), False),
    "MultiSimilarity, augmented": ("peers:multi_similarity", (*SAME, *_UNIT), True),
}
"""Method, settings, and whether training images are augmented; None leaves the choice to orbitset"""


def planned(seeds: int, share: float) -> Iterator[Job]:
    """Raw pixels, then every row from both starts, one seed after the other."""
    for data in SETS:
        yield Job(data, "pixels", "IN")
    for seed in range(seeds):
        for row, (method, settings, augment) in ROWS.items():
            for start, encoder in (("pretrained", PRETRAINED), ("scratch", None)):
                images = round(IMAGES[start] * share)
                for data in SETS:
                    name = f"{start}: {row}"
                    yield Job(data, name, method, seed, images, encoder, settings, augment)


def write_manifest(root: Path, grouped: Grouped) -> Path:
    """A manifest beside the set's own, whose things are divided into thirds by a seed."""
    folder = root / grouped.folder
    path = folder / f"thirds-by-{grouped.thing}.csv"
    with (folder / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    write_split(path, rows, grouped.thing, thirds({row[grouped.thing] for row in rows}))
    return path


def thirds(values: Iterable[str]) -> dict[str, str]:
    """The part of each value, a third of them in each."""
    things = sorted(values)
    random.Random(0).shuffle(things)
    return {thing: _THIRDS[at * 3 // len(things)] for at, thing in enumerate(things)}


def write_split(
    path: Path, rows: Sequence[dict[str, str]], thing: str, part: Mapping[str, str]
) -> None:
    """Write rows of a manifest with a further column: the part that their thing is in."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "split"])
        writer.writeheader()
        writer.writerows({**row, "split": part[row[thing]]} for row in rows)


def num_trained(manifest: Path) -> int:
    """The number of images in a manifest that are trained on."""
    with manifest.open(newline="") as file:
        return sum(row["split"] == "train" for row in csv.DictReader(file))


def composed(job: Job, manifest: Path) -> Any:
    """The configuration of a job, as `orbitset train` makes it."""
    from orbitset.recipes.compose import compose
    from orbitset.recipes.own_images import OrbitOptions
    from orbitset.recipes.request import Request

    settings = [*job.settings, "evaluation.pictures=0", "evaluation.tsne_labels=0"]
    if job.encoder is not None:
        settings.append(f"orbits.size_px={PRETRAINED_PX}")
    return compose(
        Request(
            source=str(manifest),
            method=job.method,
            epochs=job.images / num_trained(manifest) if job.images else None,
            seed=job.seed,
            encoder=job.encoder or "vgg",
            settings=tuple(settings),
            observed=OrbitOptions(orbit=[SETS[job.data].thing], augment=job.augment),
        )
    )


def scores(job: Job, manifest: Path, device: str) -> dict[str, Any]:
    """Train one job and give its scores on validation and test things."""
    from orbitset.protocols import raw_pixels
    from orbitset.protocols.contract import About
    from orbitset.run_folder import Run
    from orbitset.runs.judge import Choice, Judge
    from orbitset.runs.prepare import build_protocol, open_images
    from orbitset.runs.train import train

    started_at, made = time.perf_counter(), composed(job, manifest)
    config = made.config
    if job.row == "pixels":
        judge = Judge(config, build_protocol(config, open_images(config, device)))
        return {"scores": sides_of(judge.scores(raw_pixels))}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        progress = noting()
        train(config, run, device=device, source=made.source, progress=progress)
        records = run.records()
        about = About.from_json(run.read_json("results.json")["protocol"])
        kept_by = about.chosen_by
        choice = Choice(measure=kept_by, has_useful_start=config.begins_useful)
        last = choice.best(records) if config.keeps_best else records[-1]
        result = {
            "scores": _sides(last),
            "start": _sides(records[0].get("frozen", records[0])),
            "end": _sides(records[-1]),
            "kept_at": last["step"],
            "steps": records[-1]["step"],
            "shown": records[-1]["images"],
            "curve": [(r["images"], r[kept_by]["va"][0]) for r in records],
        }
    seconds = round(time.perf_counter() - started_at, 1)
    return {**result, "seconds": seconds, "notes": progress.notes}


def noting() -> Any:
    """A progress that keeps what is noted, such as which engine takes the steps."""
    from orbitset.training.progress import Silent

    class Noting(Silent):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, message: str) -> None:
            self.notes.append(message)

    return Noting()


def sides_of(scores: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The same of an evaluation that was not recorded."""
    return _sides({name: vars(score) for name, score in scores.items() if hasattr(score, "sides")})


def _sides(scored: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The scores of a record by side, `va` and `te`, and measure."""
    named = {
        name: value.get("sides", value) for name, value in scored.items() if isinstance(value, dict)
    }
    return {
        side: {name: round(sides[side][0], 5) for name, sides in named.items() if side in sides}
        for side in ("va", "te")
    }


def missing(jobs: Iterable[Job], out: Path) -> list[Job]:
    """The jobs that are not in the output yet."""
    before = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    keys = {tuple(line["key"]) for line in before if "error" not in line}
    return [job for job in jobs if job.key not in keys]


def scores_by_manifest(manifests: Mapping[str, Path], device: str, job: Job) -> dict[str, Any]:
    """The scores of a job, whose manifest has the name of its data."""
    return scores(job, manifests[job.data], device)


def about_line(about: Mapping[str, Any], device: str) -> dict[str, Any]:
    """What each line says of where it was recorded."""
    import torch

    gpu = {"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}
    known = {name: about[name] for name in ("commit", "versions")}
    return {**known, "device": device, "hardware": {**about["hardware"], **gpu}}


Scored = Callable[[Job], dict[str, Any]]


def work(jobs: Any, done: Any, score: Scored, device: str, until: float) -> None:
    """A process that takes one job after another."""
    import torch

    torch.set_num_threads(1)
    while time.time() < until:
        try:
            job = jobs.get(timeout=5)  # it may not be filled yet
        except queue.Empty:
            return
        try:
            done.put((job, score(job)))
        except Exception:
            done.put((job, {"error": traceback.format_exc()[-1500:]}))
        if device == "cuda":
            torch.cuda.empty_cache()


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    score: Scored,
    device: str,
    workers: int,
    minutes: float = 1e6,
    also: dict[str, Any] | None = None,
) -> None:
    """Train several at once, and append a line for each to the output."""
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for job in jobs:
        todo.put(job)
    until = time.time() + 60 * minutes
    processes = [
        context.Process(target=work, args=(todo, done, score, device, until))
        for _ in range(min(workers, len(jobs)))
    ]
    for process in processes:
        process.start()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        while any(process.is_alive() for process in processes) or not done.empty():
            try:
                job, result = done.get(timeout=1)
            except queue.Empty:
                continue
            line = {"key": job.key, **asdict(job), **result, **(also or {})}
            file.write(json.dumps(line) + "\n")
            file.flush()
            shown = result.get("scores", {}).get("va", result.get("error"))
            print(*job.key, result.get("seconds"), shown, flush=True)


def table(lines: Sequence[dict[str, Any]], side: str, images: dict[str, int]) -> str:
    """Markdown: AUC, top-1 and one-shot accuracy of each row on each set, means over seeds, and their s.d.

    The best of each start are bold.
    """
    scored: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in _ORDER}
    for line in lines:
        start = line["row"].partition(":")[0]
        if "error" in line or line["images"] not in (0, images.get(start, 0)):
            continue
        scored[line["row"]].setdefault(line["data"], []).append(line["scores"][side])
        if start == "pretrained":
            scored["frozen"].setdefault(line["data"], []).append(line["start"][side])
    means = {
        (row, data, name): statistics.mean(value[name] for value in values)
        for row, by_set in scored.items()
        for data, values in by_set.items()
        for name in MEASURES
    }
    best: dict[tuple[str, str, str], float] = {}
    for (row, data, name), mean in means.items():
        key = row.partition(":")[0], data, name
        best[key] = max(mean, best.get(key, 0.0))

    def number(row: str, data: str, name: str) -> str:
        start, _, kind = row.partition(":")
        text = f"{means[row, data, name]:.3f}"
        return f"**{text}**" if kind and text == f"{best[start, data, name]:.3f}" else text

    def cell(row: str, data: str) -> str:
        has_scores = (row, data, MEASURES[0]) in means
        return _NO_BREAK.join(number(row, data, name) for name in MEASURES if has_scores)

    head = ["AUC / top-1 / one-shot", *SETS]
    rows = [[row, *(cell(row, data) for data in SETS)] for row in _ORDER if scored[row]]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
    spreads = [
        statistics.stdev(value[name] for value in values)
        for row, by_set in scored.items()
        for values in by_set.values()
        for name in MEASURES
        if row != "frozen" and len(values) > 1
    ]
    if not spreads:
        return text
    median, most = statistics.median(spreads), max(spreads)
    return f"{text}\n\nS.d. over seeds: {median:.3f} in the median, {most:.3f} at most."


_ORDER = (
    "pixels",
    *(f"scratch: {row}" for row in ROWS),
    "frozen",
    *(f"pretrained: {row}" for row in ROWS),
)
_NO_BREAK = "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}"


def mean_and_sd(numbers: Sequence[float]) -> str:
    """In words; equal numbers, or one alone, have no spread."""
    spread = f" ± {statistics.stdev(numbers):.3f}" if len(set(numbers)) > 1 else ""
    return f"{statistics.mean(numbers):.3f}{spread}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="folder with the sets, each with its manifest.csv"
    )
    parser.add_argument(
        "--out", type=Path, default=record.HERE.parent / "results/own-images/scores.jsonl"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the images shown, such as 0.1")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="begin no training later than this"
    )
    parser.add_argument(
        "--show", choices=("va", "te"), help="print the table of what is recorded instead"
    )
    options = parser.parse_args()
    if options.show:
        lines = [json.loads(line) for line in options.out.read_text().splitlines()]
        images = {start: round(num * options.share) for start, num in IMAGES.items()}
        print(table(lines, options.show, images))
        return 0
    if options.data is None:
        parser.error("--data is needed to train")
    about = record.environment("pytorch-metric-learning")
    also = about_line(about, options.device)
    jobs = missing(planned(options.seeds, options.share), options.out)
    manifests = {name: write_manifest(options.data, SETS[name]) for name in {j.data for j in jobs}}
    run_jobs(
        jobs,
        options.out,
        score=partial(scores_by_manifest, manifests, options.device),
        device=options.device,
        workers=options.jobs,
        minutes=options.minutes,
        also=also,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
