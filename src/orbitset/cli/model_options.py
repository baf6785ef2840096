"""What the commands that use a model share: its options, progress, and how they print."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitset.cli.options import find_device, say
from orbitset.errors import ConfigError

if TYPE_CHECKING:
    from orbitset.datasets.table import Problem
    from orbitset.models import Model

ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The folder of a finished run, or of a model.")
]
Images = Annotated[
    list[Path], typer.Argument(metavar="IMAGES", help="Image files, folders of them, and shards.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Sheet = Annotated[
    Path | None, typer.Option("--sheet", help="An HTML page of the pictures to write.")
]
Far = Annotated[
    float | None,
    typer.Option(
        help="Share of different things that may be taken for the same: 0.001, 0.01, 0.05."
    ),
]
Threshold = Annotated[
    float | None, typer.Option(help="Squared distance up to which two images show the same.")
]


def load(folder: Path, device: str | None) -> "Model":
    from orbitset.models import load_model_folder

    return load_model_folder(folder, device=find_device(device))


def write_sheet(path: Path | None, make: Callable[[], str]) -> None:
    from orbitset.files import write_atomically

    if path is not None:
        write_atomically(path, make().encode())
        say(f"sheet: {path}")


def check_one(far: float | None, threshold: float | None) -> None:
    if far is not None and threshold is not None:
        raise ConfigError("--far and --threshold both say what is the same; give one of them")


def printable(text: str) -> str:
    """One line that no terminal trips over, whatever files are called.

    >>> print(printable("a\\nb.png"))
    a\\nb.png
    """
    escaped = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
    known = sys.stdout.encoding or "utf-8"
    return escaped.encode(known, "backslashreplace").decode(known)


def finish(
    as_json: bool,
    found: dict[str, Any],
    lines: Sequence[str],
    problems: "Sequence[Problem]" = (),
    ignored: Sequence[str] = (),
) -> None:
    """Print what was found, and say what was left out and why."""
    if as_json:
        reasons = [problem.reason for problem in problems]
        print(json.dumps({**found, "skipped": reasons, "ignored": list(ignored)}))
    for line in () if as_json else lines:
        print(printable(line))
    for problem in problems:
        say(printable(f"skipped: {problem.reason}"))
    if ignored:
        more = f" and {len(ignored) - 1:,} more" if len(ignored) > 1 else ""
        say(printable(f"no images: {ignored[0]}{more}"))


class Counted:
    """Progress of images on stderr."""

    def __init__(self, label: str, quiet: bool) -> None:
        self._label, self._quiet = label, quiet
        self._is_started = False

    def __enter__(self) -> "Counted":
        from orbitset.training.progress import default_progress

        self._progress = default_progress(quiet=self._quiet)
        return self

    def __call__(self, done: int, total: int) -> None:
        if not self._is_started:
            self._progress.start(self._label, total, 0)
            self._is_started = True
        self._progress.update(done, done, {})

    def __exit__(self, *_: object) -> None:
        if self._is_started:
            self._progress.stop()
