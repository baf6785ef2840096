"""Write what the documents say of the program and of recorded runs: docs/cli.md from the --help of every
command, tables and speeds from results/ and benchmarks/results/. With --check, only say whether they are
current."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import recorded as own

from orbitset.cli.main import command_names
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.faces import PAPER, Split
from orbitset.recipes.real_faces import PIE32, POINTING04
from orbitset.recipes.reproduce import study_of
from orbitset.recipes.study import Study
from orbitset.report.tables import Bold, format_p, format_paper, format_value, ordered
from orbitset.results.recorded import RecordedStudy, read_recorded
from orbitset.results.summary import summarise
from orbitset.run_folder import Run

ROOT = Path(__file__).parent.parent
NAMES = {"pixels": "raw pixels", "untrained": "untrained encoder"}
MEASURES = {"auc": "AUC", "top1": "top-1"}
IN_SHORT = ("affine-mnist", "heads", "pie32")
"""The studies in the README's table"""
PHOTOGRAPHS = {"pie32": PIE32.experiment, "pointing04": POINTING04.experiment}


def reference(_: str) -> str:
    """The page of all commands."""
    parts = ["# Command line\n\nMade from `--help` by `make docs`.\n"]
    for command in command_names():
        done = subprocess.run(
            [sys.executable, "-m", "orbitset", *command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"},
        )
        text = done.stdout.replace("python -m orbitset", "orbitset").strip()
        parts.append(f"## orbitset {' '.join(command)}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def with_tables(page: str) -> str:
    """The page, with what was recorded between each pair of marks that name it."""
    marked = re.compile(r"(<!-- recorded: (\S+) -->\n).*?(<!-- end -->)", re.S)
    return marked.sub(lambda found: found[1] + recorded(found[2]) + found[3], page)


def record_of(name: str) -> RecordedStudy:
    return read_recorded(Run(ROOT / "results" / name))


def recorded(name: str) -> str:
    match name:
        case "own-images":
            return own.scores("te", 1.0)
        case "own-images-tenth":
            return own.scores("te", 0.1)
        case "own-images-validation":
            return own.scores("va", 1.0)
        case "own-images-ignoring":
            return own.ignored()
        case "own-images-adaptation":
            return own.adaptation()
        case "in-short":
            return in_short()
        case "training-speed":
            return training_speed()
        case "training-speed-in-short":
            return training_speed_in_short()
        case "real-faces":
            return real_faces()
        case "heads" | "pie32" | "pointing04":
            return faces_table(name)
        case _:
            return study_table(name)


def faces_table(name: str) -> str:
    """Verification and retrieval of each method on observed orbits."""
    record = record_of(name)
    study, found = record.study, summarise(record)
    measured = {(row["method"], row["metric"]): row for row in found["rows"]}
    ahead = {
        (one["against"], one["metric"]): _ahead(one)
        for one in found["tests"]
        if one["test"] == "corrected-t"
    }
    has_paper, is_stopped = name == "heads", bool(study.lines[0].config.evaluation.validation)
    head = ["method", "AUC", "OJ is ahead by", "top-1", "OJ is ahead by"]
    head += ["stopped at epoch (AUC, top-1)"] if is_stopped else []
    head += ["trainings", "time"]
    head += ["Multi-PIE in the paper (AUC, top-1)"] if has_paper else []
    rows = []
    for label in dict.fromkeys(row["method"] for row in ordered(found["rows"])):
        both = [measured[label, metric] for metric in MEASURES]
        cells = [NAMES.get(label, label)]
        for metric, row in zip(MEASURES, both, strict=True):
            cells += [_with_interval(row), ahead.get((label, metric), "")]
        is_trained = label in found["seconds"]
        if is_stopped:
            cells.append(", ".join(f"{row['epoch']:.2g}" for row in both) if is_trained else "")
        num = sum(line.label == label for line, _ in study.runs())
        cells += [str(num), f"{found['seconds'][label] / 60:.0f} min"] if is_trained else ["", ""]
        if has_paper:
            paper = PAPER.get(label, {})
            cells.append(", ".join(f"{paper[metric]['mean']:.2f}" for metric in MEASURES if paper))
        rows.append(cells)
    return _with_origin(name, study, found, head, rows)


def _ahead(test: dict[str, Any]) -> str:
    difference = round(test["difference"], 3) + 0.0  # never -0.000
    return f"{difference:+.3f}, p {_bold(format_p(test['p_corrected']))}"


def _with_interval(row: dict[str, Any]) -> str:
    """With the 95 % over seeds, where there are several."""
    low, high = row.get("seeds_low"), row.get("seeds_high")
    return format_value(row) + ("" if low is None else f" ({low:.3f} to {high:.3f})")


def real_faces() -> str:
    """Both sets of photographs side by side."""
    records = {name: record_of(name) for name in PHOTOGRAPHS}
    sets = {name: summarise(record) for name, record in records.items()}
    measured = {
        (name, row["method"], row["metric"]): format_value(row)
        for name, found in sets.items()
        for row in found["rows"]
    }
    columns = [(name, metric) for name in sets for metric in MEASURES]
    head = ["method", *(f"{name}: {MEASURES[metric]}" for name, metric in columns)]
    rows = []
    for label in dict.fromkeys(row["method"] for row in ordered(sets["pie32"]["rows"])):
        cells = [measured[name, label, metric] for name, metric in columns]
        rows.append([NAMES.get(label, label), *cells])
    origins = [
        f"{name}: {_origin(name, records[name].study, found)}" for name, found in sets.items()
    ]
    return f"{_table(head, rows)}\n\n{' '.join(origins)}\n"


def in_short() -> str:
    """The trained methods on digits, rendered heads and photographs."""
    columns = [
        ("affine-mnist", "accuracy"),
        *((name, m) for name in IN_SHORT[1:] for m in MEASURES),
    ]
    rows = {}
    for name in IN_SHORT:
        for row in summarise(record_of(name))["rows"]:
            rows[name, row["method"], row["metric"]] = row
    head = ["method", "affine MNIST: one-shot, (paper) where it has one"]
    head += [f"{name}: {MEASURES[metric]}" for name, metric in columns[1:]]
    lines = []
    for label in ("pixels", "OJ", "OT", "OE", "ST"):
        cells = [f"{rows[name, label, metric]['mean']:.2f}" for name, metric in columns]
        paper = rows["affine-mnist", label, "accuracy"]["paper"]
        cells[0] += "" if paper is None else f" ({paper:.2f})"
        lines.append([NAMES.get(label, label), *cells])
    return f"{_table(head, lines)}\n"


def study_table(name: str) -> str:
    record = record_of(name)
    study, found = record.study, summarise(record)
    rows = [row for row in ordered(found["rows"]) if row["metric"] == "accuracy"]
    roles = {line.label: line.role for line in study.lines}
    head = ["method", "paper", "ours", "p", "seeds", "time", "command"]
    lines = []
    for row in rows:
        label = row["method"]
        cells = [NAMES.get(label, label), format_paper(row), format_value(row)]
        if label in roles:
            only = f" --methods {label} --no-extras" if roles[label] == "method" else ""
            cells += [_bold(format_p(row["p_corrected"])), str(row["seeds"])]
            cells += [f"{found['seconds'][label] / 60:.0f} min"]
            cells += [f"`orbitset reproduce {name}{only}`"]
        else:
            cells += [""] * 4
        lines.append(cells)
    return _with_origin(name, study, found, head, lines)


def _bold(text: str) -> str:
    """As Markdown shows a p below 0.05."""
    return f"**{text}**" if isinstance(text, Bold) else text


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _with_origin(
    name: str, study: Study, found: dict[str, Any], head: list[str], rows: list[list[str]]
) -> str:
    return f"{_table(head, rows)}\n\n{_origin(name, study, found)}\n"


def _origin(name: str, study: Study, found: dict[str, Any]) -> str:
    """What a record was made with, and whether the command has changed since."""
    mark = found["rows"][0]["cut_down"]
    said = _hardware(found["environments"]) + (f" **{mark[0].upper()}{mark[1:]}.**" if mark else "")
    if changed := _changed_since(name, study):
        said += f" **Recorded with other settings than the command has now: {_listed(changed)}.**"
    return said


def _changed_since(name: str, study: Study) -> list[str]:
    """Lines of the table that would be trained with other settings today."""
    now = _as_now(name, study)
    lines = [line for line in study.lines if line.is_in_table]
    changed = [
        line.label for line in lines if line.name not in now or now[line.name] != line.config
    ]
    return list(dict.fromkeys(changed))


def _as_now(name: str, study: Study) -> dict[str, Experiment]:
    """What the command would train; of photographs, whose manifests may be missing, on recorded splits."""
    if name not in PHOTOGRAPHS:
        return {line.name: line.config for line in study_of(name).lines}
    found: dict[str, Experiment] = {}
    for line in study.lines:
        config = line.config
        parts = config.evaluation
        split = Split(str(line.split), parts.train, parts.validation, parts.test)
        found[line.name] = PHOTOGRAPHS[name](
            config.method, split, config.train.epochs, data=config.data
        )
    return found


OURS, PEER = "orbitset", "PML + DataLoader"
SPOKEN = {
    "orbitset, reference": "the readable loop, no kernel of ours",
    PEER: "pytorch-metric-learning + DataLoader",
    "PML + torch.compile, augmented on the device": "pytorch-metric-learning + `torch.compile`",
}


def training_speed() -> str:
    """Images per second of each method and peer, at each size of batch."""
    found = _training()
    rates: dict[str, dict[int, str]] = {}
    for row in found["rows"]:
        name = row["method"]
        if row["name"] != OURS:
            how = "" if row["how"] == "reference" else f", {row['how']}"
            name += f", {SPOKEN.get(row['name'], row['name'])}{how}"
        said = f"{row['images_per_s']:,} ± {row['iqr']:,}"
        rates.setdefault(name, {})[row["batch"]] = said
    batches = sorted({row["batch"] for row in found["rows"]})
    head = ["", *(f"images/s, batch {batch:,}" for batch in batches)]
    table = _table(head, [[name, *(of[batch] for batch in batches)] for name, of in rates.items()])
    hardware = f"{found['hardware']['gpu']}, torch {found['versions']['torch']}"
    times = _listed([f"{ratio:.2g} times at {batch:,}" for batch, ratio in _ratios(found).items()])
    return f"{table}\n\n{hardware}, commit {found['commit']}. OJ beside the DataLoader: {times}.\n"


def training_speed_in_short() -> str:
    found = _training()
    rates = {r["batch"]: r["images_per_s"] for r in found["rows"] if _is_oj(r, OURS)}
    said = _listed([f"{round(rate, -3):,} at {batch:,}" for batch, rate in rates.items()])
    times = _listed([f"{ratio:.2g}" for ratio in _ratios(found).values()])
    gpu = found["hardware"]["gpu"]
    return (
        f"One {gpu}, affine MNIST, OJ, the whole step from choosing orbits to Adam, in images/s by batch:\n"
        f"{said}, {times} times pytorch-metric-learning with a DataLoader on the same network.\n"
    )


def _training() -> dict[str, Any]:
    path = ROOT / "benchmarks" / "results" / "training-cuda.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _ratios(found: dict[str, Any]) -> dict[int, float]:
    """Of OJ's images per second, ours to those of what one would write instead, by batch."""
    ours, theirs = (
        {row["batch"]: row["images_per_s"] for row in found["rows"] if _is_oj(row, name)}
        for name in (OURS, PEER)
    )
    return {batch: ours[batch] / theirs[batch] for batch in ours}


def _is_oj(row: dict[str, Any], name: str) -> bool:
    return bool(row["name"] == name and row["method"] == "OJ")


def _hardware(environments: list[dict[str, Any]]) -> str:
    devices, torches, commits = (
        _listed(list(dict.fromkeys(str(one[name]) for one in environments)))
        for name in ("device", "torch", "commit")
    )
    return f"{devices}, torch {torches}, commit {commits}."


def _listed(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


WRITTEN = {
    ROOT / "docs" / "cli.md": reference,
    ROOT / "README.md": with_tables,
    ROOT / "docs" / "faces.md": with_tables,
    ROOT / "docs" / "performance.md": with_tables,
    ROOT / "docs" / "results.md": with_tables,
}

if __name__ == "__main__":
    for path, made in WRITTEN.items():
        old = path.read_text() if path.exists() else ""
        new = made(old)
        if "--check" not in sys.argv:
            path.write_text(new)
        elif old != new:
            sys.exit(f"{path.name} is not current; run make docs")
