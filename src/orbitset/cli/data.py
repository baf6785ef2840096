"""Commands that look at data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from orbitset.cli.model_options import Sheet, write_sheet
from orbitset.cli.options import CanonicalOption, CropsOption, Json, OrbitOption, listed
from orbitset.errors import ConfigError

if TYPE_CHECKING:
    from orbitset.datasets.source import Array, Digits, Heads, Mnist, Plain, TableSource, Videos

_OF_ORBITS = "--orbit, --canonical, --crops and --sheet"

app = typer.Typer(help="Look at the data there is.", no_args_is_help=True)


@app.command("list")
def data_list(as_json: Json = False) -> None:
    """Name the data sets, what is in them and whether they are here.

    Example: orbitset data list
    """
    from orbitset.datasets.mnist import data_root, is_mnist_folder

    folder = data_root() / "mnist"
    sets = {
        "digits": {"images": 1797, "size_px": 16, "here": True, "where": "embedded"},
        "mnist": {
            "images": 70000,
            "size_px": 28,
            "here": is_mnist_folder(folder),
            "where": str(folder),
        },
    }
    if as_json:
        print(json.dumps({"data": sets}))
        return
    for name, about in sets.items():
        here = "here" if about["here"] else "not here"
        print(
            f"{name:<8} {about['images']:>6,} images, {about['size_px']} px  {here}: {about['where']}"
        )


@app.command("check")
def data_check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="X",
            help="mnist, digits, multi-pie:FOLDER, module:function, or a path of images, a manifest, shards "
            "or videos.",
        ),
    ],
    orbit: OrbitOption = None,
    canonical: CanonicalOption = None,
    crops: CropsOption = None,
    sheet: Sheet = None,
    as_json: Json = False,
) -> None:
    """Read data whole, verify it and say what was found; fetches MNIST where it is absent.

    Of a manifest, or a folder with a sub-folder for each orbit, all problems are listed; then the exit code
    is 1. Of videos, the segments are counted.

    Example: orbitset data check mnist

    Example: orbitset data check faces.csv --orbit person,light --canonical view=front
    """
    from orbitset.datasets.source import Array, Digits, Heads, Mnist, Videos, open_source

    data = open_source(source)
    has_options = any(option is not None for option in (orbit, canonical, crops, sheet))
    if isinstance(data, Videos):
        if has_options:
            raise ConfigError(f"{_OF_ORBITS} are for images; orbits of videos are segments")
        _check_videos(data, as_json)
    elif isinstance(data, Array | Digits | Heads | Mnist):
        if has_options:
            raise ConfigError(f"{_OF_ORBITS} are for the orbits of a manifest or folder")
        _check_splits(data, as_json)
    else:
        _check_table(data, listed(orbit), canonical, crops, sheet, as_json)


def _check_videos(source: "Videos", as_json: bool) -> None:
    from orbitset.datasets.decode import Decoding
    from orbitset.datasets.video import load_videos

    decoding = Decoding(is_colour=True, on_problem="skip")
    videos = load_videos(source.spec, source.root, source.names, decoding)
    clips = [
        {
            "video": clip.name,
            "frames": clip.frames,
            "cuts": list(clip.cuts),
            "segments": clip.segments,
            "left_out": clip.left_out,
        }
        for clip in videos.clips
    ]
    if as_json:
        problems = [str(problem) for problem in videos.problems]
        print(json.dumps({"data": source.spec, "videos": clips, "problems": problems}))
    else:
        print(f"{source.spec}: {videos}")
        for clip in videos.clips:
            cuts = f", {len(clip.cuts)} cuts" if clip.cuts else ""
            print(f"  {clip.name}: {clip.frames:,} frames{cuts}, {clip.segments:,} segments")
        for problem in videos.problems:
            print(f"problem: {problem}")
    if videos.problems:
        raise typer.Exit(1)


def _check_table(
    source: "TableSource | Plain",
    orbit: list[str] | None,
    canonical: str | None,
    crops: Path | None,
    sheet: Path | None,
    as_json: bool,
) -> None:
    from orbitset.datasets.inspect import inspect_table
    from orbitset.datasets.pictures import open_bytes
    from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet

    inspected = inspect_table(source, orbit=orbit, canonical=canonical, crops=crops)
    files = dict(file for orbit_files in inspected.orbits for file in orbit_files)
    rows = [
        SheetRow(
            f"{len(members)} members",
            [SheetPicture(Path(path), Path(path).name) for path, _ in members],
        )
        for members in inspected.orbits
    ]
    title = f"The first orbits of {source.spec}"

    def open_file(path: str) -> BinaryIO:
        return open_bytes(files[path])

    write_sheet(sheet, lambda: contact_sheet(rows, title=title, open_file=open_file))
    print(json.dumps(inspected.as_dict()) if as_json else str(inspected))
    if inspected.problems or inspected.missing or inspected.unexpected:
        raise typer.Exit(1)


def _check_splits(source: "Array | Digits | Heads | Mnist", as_json: bool) -> None:
    from orbitset.datasets.source import load_splits

    splits = load_splits(source)
    shape, labels = list(splits.train.images.shape[1:]), splits.train.labels
    sizes = {
        "train": len(splits.train),
        "validation": len(splits.validation),
        "test": len(splits.test),
    }
    num_classes = None if labels is None else len(labels.unique())
    if as_json:
        print(json.dumps({"data": source.spec, **sizes, "shape": shape, "classes": num_classes}))
        return
    classes = "no labels" if labels is None else f"{num_classes} classes"
    size = f"{shape[1]}x{shape[2]} px, {'grey' if shape[0] == 1 else 'colour'}"
    print(
        f"{source.spec}: {sizes['train']:,} to train, {sizes['validation']:,} to label from, "
        f"{sizes['test']:,} to test; {size}, {classes}"
    )
