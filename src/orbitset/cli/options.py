"""What the commands share: options of the same meaning, and how they print and fail."""

import functools
import inspect
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from orbitset.errors import ConfigError
from orbitset.outside import is_name, trust

if TYPE_CHECKING:
    from orbitset.recipes.own_images import OrbitOptions
    from orbitset.run_folder import Run

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal obeys: names of files and texts in them may hold it"""
Out = Annotated[Path | None, Option("--out", "-o", help="Folder to write the run to.")]
Resume = Annotated[bool, Option("--resume", help="Continue the run in that folder.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace the run in that folder.")]
Jobs = Annotated[int, Option(help="Number of trainings side by side, each in its own process.")]
Device = Annotated[
    str | None, Option(help="cpu, cuda or cuda:N. By default, a GPU if there is one.")
]
Json = Annotated[bool, Option("--json", help="Print one JSON object to stdout.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show no progress.")]
SourceOption = Annotated[
    str | None,
    Option(
        "--source",
        metavar="MODULE:FUNCTION",
        help="Images of your own, such as my_data:images; the same as X.",
    ),
]
OrbitOption = Annotated[
    str | None,
    Option(help="Columns whose values the members of an orbit share, such as person,light."),
]
CanonicalOption = Annotated[
    str | None,
    Option(help="Which member of an orbit is its target: view=front, first, middle or medoid."),
]
ExcludeOption = Annotated[
    str | None,
    Option(
        help="What retrieval leaves out among images of the query's label: those with its value of "
        "a column (light), those near to it in one (view:2steps, angle:30, angle:30:360), or none. "
        "The default is printed."
    ),
]
LabelOption = Annotated[
    str | None, Option(help="Column that says what an image shows, to be recognised.")
]
ClassesOption = Annotated[
    str | None,
    Option(help="Column with class labels, blank where unknown; adds a classification loss."),
]
IgnoreOption = Annotated[
    str | None,
    Option(
        help="Columns that are not to matter, such as light,session: what tells their values apart is "
        "removed from the codes."
    ),
]
SplitOption = Annotated[
    str | None,
    Option(
        help="Values of a column to train, validate and test on, such as session=1,2/3/4, or "
        "to train and test on, such as session=1,2/3."
    ),
]
EncoderOption = Annotated[
    str | None,
    Option(
        help="Network: hf:facebook/dinov2-small, timm:resnet50 or a class of your own, such as "
        "my_networks:Net, from their pretrained weights; vgg is the paper's, from random ones. "
        "Default: for photographs in groups, a pretrained one if it is at hand; else the paper's."
    ),
]
CropsOption = Annotated[
    Path | None,
    Option(help="The part of each image to use: a CSV file of boxes, or a folder of landmarks."),
]
OnProblemOption = Annotated[
    str | None,
    Option(
        help="What to do with images that cannot be used: skip them, or stop; both list them. "
        "By default, train skips and reproduce stops."
    ),
]
AugmentOption = Annotated[
    bool | None,
    Option(
        "--augment/--no-augment",
        help="Change grouped images in training, each by its own draw: turn, zoom, shift, crop, "
        "light, colour and focus. Default: on where changed images stay nearest to their own thing.",
    ),
]
Seed = Annotated[
    int | None, Option(help="Random seed of weights, orbits and batches. Default: 0.", min=0)
]
MethodOption = Annotated[
    str | None,
    Option(
        help="Training method: OJ, OT, OE, ST, EX or AE of the paper; IN, IM, SG or PR of later "
        "years, also with the decoder, as IM+R. OT-STN puts a spatial transformer in front; any method "
        "can have one. Default: IM+R for grouped images, else OJ."
    ),
]
LossOption = Annotated[
    str | None,
    Option(
        metavar="MODULE:NAME",
        help="Train with a loss of your own, such as my_losses:info_nce. See docs/own-loss.md.",
    ),
]
MethodsOption = Annotated[
    str | None,
    Option(
        help="Methods and losses, such as OJ,IM+R,ST-STN,my_losses:info_nce. Default: the paper's "
        "methods."
    ),
]
ProtocolOption = Annotated[
    str | None,
    Option(
        help="How codes are evaluated: one-shot, finding, pairs, or a class of your own, such as "
        "my_protocols:Mine. The default follows from the data."
    ),
]
MeasureOption = Annotated[
    list[str] | None,
    Option(
        "--measure",
        metavar="MODULE:NAME",
        help="Add a measure of your own to every evaluation: a function of codes and labels, such "
        "as my_measures:purity.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change any setting, such as loss.margin=0.3. Can be repeated.",
    ),
]


def _orbit_options(
    orbit: OrbitOption = None,
    canonical: CanonicalOption = None,
    label: LabelOption = None,
    classes: ClassesOption = None,
    ignore: IgnoreOption = None,
    split: SplitOption = None,
    exclude: ExcludeOption = None,
    crops: CropsOption = None,
    on_problem: OnProblemOption = None,
) -> "OrbitOptions":
    """What the command line says about grouped images."""
    from orbitset.recipes.own_images import OrbitOptions

    return OrbitOptions(
        orbit=listed(orbit),
        canonical=canonical,
        label=label,
        classes=classes,
        ignore=listed(ignore),
        split=split,
        exclude=listed(exclude),
        crops=None if crops is None else str(crops.resolve()),
        on_problem=cast(Any, on_problem),
    )


def with_orbit_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `_orbit_options` in the place of its parameter `observed`."""
    shared = inspect.signature(_orbit_options).parameters
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        parameters += shared.values() if parameter.name == "observed" else [parameter]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        options = {name: values.pop(name) for name in shared}
        command(observed=_orbit_options(**options), **values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _trust(modules: list[str] | None) -> list[str] | None:
    trust(modules or [])
    return modules


Trust = Annotated[
    list[str] | None,
    Option(
        "--trust",
        metavar="MODULE",
        callback=_trust,
        help="Allow code of this module to run although only a file names it, such as my_losses.",
    ),
]
"""Takes effect when it is parsed, so that commands need not look at it."""


@contextmanager
def interruptible(run: "Run") -> Iterator[None]:
    """Ctrl-C inside says what can be done with the run."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\ninterrupted\n{run.ways_on}" if run.exists else "\ninterrupted")
        raise


def find_device(name: str | None) -> str:
    import torch

    from orbitset.precision import check_device

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"--device is {name!r}; choose cpu, cuda or cuda:N")
    check_device(name)
    return name


def listed(text: str | None) -> list[str] | None:
    """What stands between commas, if anything was given."""
    return None if text is None else [part.strip() for part in text.split(",")]


def method_or_loss(method: str | None, loss: str | None) -> str | None:
    """What --method or --loss names; both may name the same."""
    from orbitset.recipes.methods import METHODS

    base = (loss or "").removesuffix("-STN")
    if loss is not None and base.upper() not in METHODS and not is_name(base):
        raise ConfigError(
            f"--loss is {loss!r}; write it as MODULE:NAME, such as my_losses:info_nce"
        )
    if method is not None and loss is not None and method != loss:
        raise ConfigError(f"--method {method} and --loss {loss} contradict each other; give one")
    return method or loss


def named_source(argument: str | None, option: str | None) -> str | None:
    """What X or --source names; both may name the same."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError(f"X {argument} and --source {option} contradict each other; give one")
    return argument or option


def check_flags(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; give one of them")


def check_length(epochs: float | None, minutes: float | None) -> None:
    for name, value in (("--epochs", epochs), ("--minutes", minutes)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value:g}; give a finite number above 0")


def print_results(results: dict[str, Any], as_json: bool) -> None:
    from orbitset.report.tables import tests_heading, text_table, text_tests
    from orbitset.run_folder import without_nan

    rows, tests = results["rows"], results.get("tests", [])
    if as_json:
        print(json.dumps({"rows": without_nan(rows)}, allow_nan=False))
        return
    words = results.get("protocol", {}).get("measures", {})
    print(text_table(rows, words))
    if tests:
        print(f"\n{tests_heading(tests)}\n\n{text_tests(tests, rows, words)}")
    if about_tests := results.get("about_tests"):
        print(f"\n{textwrap.fill(about_tests, 80)}")


def say(message: str) -> None:
    print(_CONTROL.sub(lambda letter: repr(letter[0])[1:-1], message), file=sys.stderr, flush=True)


def fail(message: str, hint: str | None, code: int) -> int:
    say(f"error: {message}" + (f"\n\nhint: {hint}" if hint else ""))
    return code
