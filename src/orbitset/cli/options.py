"""What the commands share: options of the same meaning, and how they print and fail."""

import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitset.errors import ConfigError
from orbitset.outside import trust

if TYPE_CHECKING:
    from orbitset.run_folder import Run

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run folder to write.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")]
Jobs = Annotated[int, typer.Option(help="Trainings side by side, each in a process of its own.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
OrbitOption = Annotated[
    str | None, typer.Option(help="Of a manifest: the factors an orbit shares, as person,light.")
]
CanonicalOption = Annotated[
    str | None,
    typer.Option(help="The target of each orbit: view=front, or first, middle or medoid."),
]
CropsOption = Annotated[
    Path | None,
    typer.Option(
        "--crops", help="The part of each image to use: a CSV of boxes, or a folder of landmarks."
    ),
]
OnProblemOption = Annotated[
    str | None,
    typer.Option(
        "--on-problem",
        help="Images that cannot be used: stop, or skip; both name them. train skips, reproduce stops.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Random seed of weights, orbits and batches; 0 by default.", min=0),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        help="OJ, OT, OE, ST, EX or AE; with -STN a spatial transformer in front. OJ by default."
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="MODULE:NAME",
        help="A loss of your own in place of a method, such as my_losses:info_nce.",
    ),
]
MethodsOption = Annotated[
    str | None,
    typer.Option(help="Methods or losses, such as OJ,ST-STN,my_losses:info_nce; all by default."),
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How codes are judged: one-shot, finding, pairs, or a class of your own, module:Class.",
    ),
]
MeasureOption = Annotated[
    list[str] | None,
    typer.Option(
        "--measure",
        metavar="MODULE:NAME",
        help="A further measure at every evaluation: a function of held-out codes and their labels.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change any setting, for example loss.margin=0.3."
    ),
]


def _trust(modules: list[str] | None) -> list[str] | None:
    trust(modules or [])
    return modules


Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        callback=_trust,
        help="Run code of this module although only a file names it, such as my_package.losses.",
    ),
]
"""Takes effect when it is parsed, so that commands need not look at it."""


@contextmanager
def interruptible(run: "Run") -> Iterator[None]:
    """Ctrl-C inside says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        is_begun = run.exists
        say(f"\ninterrupted; go on with: {run.resume_command}" if is_begun else "\ninterrupted")
        raise


def find_device(name: str | None) -> str:
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if torch.device(name).type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from None
    return name


def listed(text: str | None) -> list[str] | None:
    """What stands between commas, if anything was given."""
    return None if text is None else [part.strip() for part in text.split(",")]


def method_or_loss(method: str | None, loss: str | None) -> str | None:
    """What --method or --loss names."""
    if method is not None and loss is not None:
        raise ConfigError("--loss takes the place of --method; give one of them")
    if loss is not None and ":" not in loss:
        raise ConfigError(f"--loss is {loss!r}; write module:name, such as my_losses:info_nce")
    return method if loss is None else loss


def check_flags(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; give one of them")


def print_results(results: dict[str, Any], as_json: bool) -> None:
    from orbitset.report.tables import tests_heading, text_table, text_tests
    from orbitset.run_folder import without_nan

    rows, tests = results["rows"], results.get("tests", [])
    if as_json:
        print(json.dumps({"rows": without_nan(rows)}, allow_nan=False))
        return
    print(text_table(rows))
    if tests:
        about = textwrap.fill(results.get("about_tests", ""), 80)
        print(f"\n{tests_heading(tests)}\n\n{text_tests(tests, rows)}\n\n{about}")


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def fail(message: str, hint: str | None, code: int) -> int:
    say(f"error: {message}" + (f"\n\nhint: {hint}" if hint else ""))
    return code
