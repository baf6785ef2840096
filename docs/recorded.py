"""Tables of `results/own-images/`: grouped images beside frozen features and the losses of peers."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "own-images"
sys.path.insert(0, str(ROOT / "benchmarks"))

import ignoring  # noqa: E402
import own_images  # noqa: E402

_WAYS = {
    "head": "head alone",
    "lora": "LoRA, rank 8",
    "all": "all weights",
    "all, recomputed": "all weights, activations computed twice",
}


def scores(side: str, share: float) -> str:
    lines = _lines("scores")
    images = {start: round(num * share) for start, num in own_images.IMAGES.items()}
    used = [line for line in lines if line["images"] in (0, *images.values())]
    return f"{own_images.table(used, side, images)}\n\n{_origin(used)}\n"


def ignored() -> str:
    lines = _lines("ignoring")
    tables = ignoring.table(lines, ignoring.IMAGES).split("\n\n")
    tested = [text for text in tables if " test people" in text]
    return "\n\n".join([*tested, _origin(lines)]) + "\n"


def adaptation() -> str:
    """Rates and memory are of trainings that had the machine to themselves, those of the first record."""
    records = [json.loads(path.read_text()) for path in sorted(RECORD.glob("adaptation-*.json"))]
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for row in (row for record in records for row in record["rows"]):
        rows.setdefault(row["way"], {}).setdefault(row["seed"], row)
    head = ["", "seeds", "AUC", "top-1", "images/s", "peak memory", "of it resident"]
    first = next(iter(rows["all"].values()))
    frozen = [f"{first[f'frozen_{name}_test']:.3f}" for name in ("auc", "top1")]
    table = [["frozen", "", *frozen, "", "", ""]]
    for way, words in _WAYS.items():
        by_seed, one = rows[way], rows[way][0]
        scored = [
            own_images.mean_and_sd([row[f"trained_{name}_test"] for row in by_seed.values()])
            for name in ("auc", "top1")
        ]
        memory = [f"{one[f'{name}_memory_mib']:,.0f} MiB" for name in ("peak", "resident")]
        rate = f"{one['images_per_s']:,.0f}"
        table.append([words, str(len(by_seed)), *scored, rate, *memory])
    cells = [head, ["---"] * len(head), *table]
    text = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    return f"{text}\n\n{_origin(records)}\n"


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORD / f"{name}.jsonl").read_text().splitlines()]


def _origin(records: list[dict[str, Any]]) -> str:
    """Where these were recorded, and how long a training took, where that is known."""
    commits = ", ".join(dict.fromkeys(record["commit"][:12] for record in records))
    first = records[0]
    text = f"{first['hardware']['gpu']}, torch {first['versions']['torch']}, commit {commits}."
    if seconds := [record["seconds"] for record in records if "seconds" in record]:
        text += f" A training took {statistics.median(seconds):.0f} s, the median, beside others."
    return text
