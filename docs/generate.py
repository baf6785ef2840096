"""Write what the documents say of the program and of recorded runs: docs/cli.md from the --help of every
command, README's tables from results/. With --check, only say whether they are current."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from orbitset.cli.main import command_names
from orbitset.experiments.study import stored_study
from orbitset.experiments.summary import summarise
from orbitset.report.tables import format_p, format_paper, format_value, ordered
from orbitset.runs import Run

ROOT = Path(__file__).parent.parent
NAMES = {"pixels": "raw pixels", "untrained": "untrained encoder"}


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
    """The page, with a table of the recorded run between each pair of marks that name one."""
    marked = re.compile(r"(<!-- recorded: (\S+) -->\n).*?(<!-- end -->)", re.S)
    return marked.sub(lambda found: found[1] + recorded(found[2]) + found[3], page)


def recorded(name: str) -> str:
    run = Run(ROOT / "results" / name)
    study = stored_study(run)
    found = summarise(run, study)
    rows = [row for row in ordered(found["rows"]) if row["metric"] == "accuracy"]
    roles = {line.label: line.role for line in study.lines}
    lines = ["method | paper | ours | p | seeds | time | command", "|".join(["---"] * 7)]
    for row in rows:
        label = row["method"]
        cells = [NAMES.get(label, label), format_paper(row), format_value(row)]
        if label in roles:
            only = f" --methods {label} --no-extras" if roles[label] == "method" else ""
            cells += [format_p(row["p_corrected"]), str(row["seeds"])]
            cells += [f"{found['seconds'][label] / 60:.0f} min"]
            cells += [f"`orbitset reproduce {name}{only}`"]
        else:
            cells += [""] * 4
        lines.append(" | ".join(cells))
    table = "\n".join(f"| {line} |" for line in lines)
    mark = rows[0]["cut_down"]
    said = _hardware(found["environments"]) + (f" **{mark[0].upper()}{mark[1:]}.**" if mark else "")
    return f"{table}\n\n{said}\n"


def _hardware(environments: list[dict[str, Any]]) -> str:
    devices, torches, commits = (
        _listed(list(dict.fromkeys(str(one[name]) for one in environments)))
        for name in ("device", "torch", "commit")
    )
    return f"{devices}, torch {torches}, commit {commits}."


def _listed(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


WRITTEN = {ROOT / "docs" / "cli.md": reference, ROOT / "README.md": with_tables}

if __name__ == "__main__":
    for path, made in WRITTEN.items():
        old = path.read_text() if path.exists() else ""
        new = made(old)
        if "--check" not in sys.argv:
            path.write_text(new)
        elif old != new:
            sys.exit(f"{path.name} is not current; run make docs")
