"""What the commands that use a model share: its options, progress, and how they print."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from orbitset.cli.options import find_device, say
from orbitset.errors import ConfigError

if TYPE_CHECKING:
    from orbitset.datasets.table import Problem
    from orbitset.models import Model

ModelFolder = Annotated[
    Path, Argument(metavar="MODEL", help="Folder of a finished run, or of an exported model.")
]
Images = Annotated[
    list[Path],
    Argument(
        metavar="IMAGES",
        help="Images, or anything train takes: folders, manifests (.csv, .parquet), shards, videos, .npy and "
        ".npz files, module:function.",
    ),
]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace existing output.")]
Sheet = Annotated[Path | None, Option(help="Write an HTML page that shows the images.")]
Far = Annotated[
    float | None,
    Option(help="False accept rate for which the threshold was measured: 0.001, 0.01 or 0.05."),
]
Threshold = Annotated[
    float | None,
    Option(help="Squared distance up to which two images are taken to show the same thing."),
]


def load(folder: Path, device: str | None) -> "Model":
    from orbitset.models import load_model_folder
    from orbitset.run_folder import Run

    Run(folder).require_model()
    return load_model_folder(folder, device=find_device(device))


def write_sheet(path: Path | None, make: Callable[[], str]) -> None:
    from orbitset.files import write_atomically

    if path is not None:
        write_atomically(path, make().encode())
        say(f"sheet: {path}")


def check_one(far: float | None, threshold: float | None) -> None:
    if far is not None and threshold is not None:
        raise ConfigError("--far and --threshold contradict each other; give one")


def printable(text: str) -> str:
    """The text as one line of printable characters, whatever files are called.

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
    content: dict[str, Any],
    lines: Sequence[str],
    problems: "Sequence[Problem]" = (),
    ignored: Sequence[str] = (),
) -> None:
    """Print results as JSON or as lines; problems and ignored files go to stderr."""
    if as_json:
        reasons = [problem.reason for problem in problems]
        print(json.dumps({**content, "skipped": reasons, "ignored": list(ignored)}))
    for line in () if as_json else lines:
        print(printable(line))
    for problem in problems:
        say(printable(f"skipped: {problem.reason}"))
    if ignored:
        more = f" and {len(ignored) - 1:,} more" if len(ignored) > 1 else ""
        say(printable(f"ignored, not an image: {ignored[0]}{more}"))


@contextmanager
def counting(label: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Give a function that shows on stderr how many images are done, and of how many."""
    from orbitset.training.progress import default_progress

    progress, is_started = default_progress(quiet=quiet), False

    def count(done: int, total: int) -> None:
        nonlocal is_started
        if not is_started:
            progress.start(label, total, 0)
            is_started = True
        progress.update(done, done, {})

    try:
        yield count
    finally:
        if is_started:
            progress.stop()
