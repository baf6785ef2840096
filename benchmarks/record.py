"""What every benchmark writes down, and how figures are summed up. Does not import torch by itself."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def environment(*packages: str) -> dict[str, Any]:
    """Hardware, versions of what is installed, commit and command."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor()
    memory_gib = round(os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    hardware = {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": memory_gib}
    hardware["system"] = f"{platform.system()} {platform.machine()}"
    versions = {"python": platform.python_version()}
    for name in ("torch", "numpy", *packages):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = getattr(sys.modules.get(name), "__version__", None)
    return {
        "hardware": hardware,
        "versions": versions,
        "commit": commit(),
        "command": " ".join(["python", *map(_in_project, sys.argv)]),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _in_project(argument: str) -> str:
    """A path as it is called from the project's root, without where that lies on this machine."""
    path = Path(argument)
    if not path.is_absolute():
        return argument
    root = HERE.parent
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def commit() -> str | None:
    """What is checked out; a copy without its history is told by ORBITSET_COMMIT."""
    if told := os.environ.get("ORBITSET_COMMIT"):
        return told
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(describe, cwd=HERE, capture_output=True, text=True)
    except OSError:
        return None
    return found.stdout.strip() or None


def median_and_spread(values: Iterable[float]) -> tuple[float, float]:
    """The median and the interquartile range."""
    low, median, high = statistics.quantiles(list(values), n=4, method="inclusive")
    return median, high - low


def write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def print_requirements(asked: Iterable[dict[str, Any]]) -> None:
    for requirement in asked:
        state = {True: "met", False: "NOT met", None: "not measured"}[requirement["met"]]
        print(f"{requirement['text']}: {state}", *requirement["missed_by"], sep="\n    missed by ")
