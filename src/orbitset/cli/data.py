"""Commands that look at data."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitset.cli import options
from orbitset.cli.model_options import Sheet, write_sheet
from orbitset.errors import ConfigError, OrbitsetError, count_of

if TYPE_CHECKING:
    from orbitset.datasets.inspect import Check
    from orbitset.recipes.compose import Composed

_SHORTER = 10
"""Minutes that are proposed where a training takes longer"""

app = typer.Typer(help="Look at the data there is.", no_args_is_help=True)


@app.command("list")
def data_list(as_json: options.Json = False) -> None:
    """Name the data sets, what is in them and whether they are here.

    Example: orbitset data list
    """
    from orbitset.datasets.mnist import data_root, is_mnist_folder

    folder = data_root() / "mnist"
    is_here = is_mnist_folder(folder)
    sets = {
        "digits": {"images": 1797, "size_px": 16, "here": True, "where": "embedded"},
        "mnist": {"images": 70000, "size_px": 28, "here": is_here, "where": str(folder)},
    }
    if as_json:
        print(json.dumps({"data": sets}))
        return
    for name, row in sets.items():
        here = "here" if row["here"] else "not here"
        print(f"{name:<8} {row['images']:>6,} images, {row['size_px']} px  {here}: {row['where']}")


@app.command("check")
def data_check(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="X",
            help="mnist, digits, multi-pie:FOLDER, module:function, or a path of images, a manifest, shards "
            "or videos.",
        ),
    ] = None,
    named: options.SourceOption = None,
    orbit: options.OrbitOption = None,
    canonical: options.CanonicalOption = None,
    crops: options.CropsOption = None,
    sheet: Sheet = None,
    as_json: options.Json = False,
) -> None:
    """Read all of the data, verify it and describe it; MNIST is downloaded if it is absent.

    The check lists all problems of a manifest, or of a folder with a sub-folder for each orbit, and then
    exits with code 1. It counts the segments of videos.

    Example: orbitset data check mnist

    Example: orbitset data check faces.csv --orbit person,light --canonical view=front
    """
    from orbitset.datasets.source import Heads, TableSource, open_source

    spec = options.named_source(source, named)
    if spec is None:
        raise ConfigError("no data were named; give X, such as a folder of images")
    data = open_source(spec)
    if isinstance(data, TableSource):
        check = data.check(options.listed(orbit), canonical, crops)
    elif any(option is not None for option in (orbit, canonical, crops, sheet)):
        raise ConfigError(
            "--orbit, --canonical, --crops and --sheet are for the orbits of a manifest, shards or a folder "
            "with sub-folders"
        )
    else:
        check = data.check()
    write_sheet(sheet, lambda: _sheet(check, data.spec))
    print(json.dumps(check.summary) if as_json else "\n".join(check.lines))
    if not as_json and not isinstance(data, Heads):
        print(_next_step(spec, orbit, canonical, crops))
    if not check.is_sound:
        raise typer.Exit(1)


def _next_step(source: str, orbit: str | None, canonical: str | None, crops: Path | None) -> str:
    """The command that trains on the data, or why that would be refused."""
    from orbitset.recipes.compose import compose
    from orbitset.recipes.described import described_exclusions
    from orbitset.recipes.own_images import OrbitOptions
    from orbitset.recipes.request import Request

    path = None if crops is None else str(crops.resolve())
    observed = OrbitOptions(orbit=options.listed(orbit), canonical=canonical, crops=path)
    try:
        composed = compose(Request(source=source, observed=observed))
        length = _length(composed)
        excluded = described_exclusions(composed.config) if composed.config.is_observed else ""
    except OrbitsetError as error:
        return f"train would refuse this: {error}"
    words = ["orbitset", "train", source]
    for name, value in (("--orbit", orbit), ("--canonical", canonical), ("--crops", crops)):
        words += [] if value is None else [name, str(value)]
    lines = (excluded, length, f"next: {shlex.join(words)}")
    return "\n".join(filter(None, lines))


def _length(composed: "Composed") -> str:
    """A line on how long the training takes here; nothing where that is not known."""
    from orbitset.runs.length import estimated
    from orbitset.training.progress import duration_in_words

    device = options.find_device(None)
    if (
        composed.source is None
        or (estimate := estimated(composed.config, composed.source, device)) is None
    ):
        return ""
    images, seconds = estimate
    at_most = "at most " if composed.config.train.patience is not None else ""
    limit = f"; --minutes {_SHORTER} trains for less" if seconds > 60 * _SHORTER else ""
    return (
        f"training would show {at_most}{images:,} images: about {duration_in_words(seconds)} here "
        f"({device}), besides its evaluations{limit}"
    )


def _sheet(check: "Check", source: str) -> str:
    """The first orbits as a page."""
    from orbitset.datasets.pictures import open_bytes
    from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet

    files = dict(file for _, members in check.orbits for file in members)
    rows = [
        SheetRow(
            f"{name}: {count_of(len(members), 'member')}",
            [SheetPicture(Path(path), Path(path).name) for path, _ in members],
        )
        for name, members in check.orbits
    ]

    return contact_sheet(
        rows, title=f"The first orbits of {source}", open_file=lambda path: open_bytes(files[path])
    )
