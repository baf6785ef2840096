"""Commands that look at data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from orbitset.cli.model_options import Sheet, write_sheet
from orbitset.cli.options import CanonicalOption, CropsOption, Json, OrbitOption, listed
from orbitset.errors import ConfigError

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
            help="mnist, digits, multi-pie:FOLDER, or the path of images, a manifest, shards or videos.",
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
    from orbitset.datasets.named import is_table, is_video

    is_asked = any(option is not None for option in (orbit, canonical, crops, sheet))
    if is_video(source):
        if is_asked:
            raise ConfigError(f"{_OF_ORBITS} are for images; orbits of videos are segments")
        _check_videos(source, as_json)
        return
    if is_table(source):
        _check_table(source, orbit, canonical, crops, sheet, as_json)
        return
    if is_asked:
        raise ConfigError(f"{_OF_ORBITS} are for the orbits of a manifest or folder")
    _check_splits(source, as_json)


def _check_videos(source: str, as_json: bool) -> None:
    from orbitset.datasets.video import load_videos
    from orbitset.protocols import VideoConfig

    found = load_videos(
        Path(source), is_colour=True, segments=VideoConfig().segments, on_problem="skip"
    )
    clips = [
        {
            "video": clip.name,
            "frames": clip.frames,
            "cuts": list(clip.cuts),
            "segments": clip.segments,
            "left_out": clip.left_out,
        }
        for clip in found.clips
    ]
    if as_json:
        problems = [str(problem) for problem in found.problems]
        print(json.dumps({"data": source, "videos": clips, "problems": problems}))
    else:
        print(f"{source}: {found}")
        for clip in found.clips:
            cuts = f", {len(clip.cuts)} cuts" if clip.cuts else ""
            print(f"  {clip.name}: {clip.frames:,} frames{cuts}, {clip.segments:,} segments")
        for problem in found.problems:
            print(f"problem: {problem}")
    if found.problems:
        raise typer.Exit(1)


def _check_table(
    source: str,
    orbit: str | None,
    canonical: str | None,
    crops: Path | None,
    sheet: Path | None,
    as_json: bool,
) -> None:
    from orbitset.datasets.inspect import inspect_table
    from orbitset.datasets.shards import open_at
    from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet

    found = inspect_table(source, orbit=listed(orbit), canonical=canonical, crops=crops)
    rows = [
        SheetRow(f"{len(paths)} members", [SheetPicture(path, path.name) for path in paths])
        for paths in found.orbits
    ]
    title = f"The first orbits of {source}"
    write_sheet(sheet, lambda: contact_sheet(rows, title=title, open_file=open_at))
    print(json.dumps(found.as_dict()) if as_json else str(found))
    if found.problems or found.missing or found.unexpected:
        raise typer.Exit(1)


def _check_splits(source: str, as_json: bool) -> None:
    from orbitset.datasets.named import load_splits

    splits = load_splits(source)
    shape = list(splits.train.images.shape[1:])
    labels = splits.train.labels
    found = {
        "data": source,
        "train": len(splits.train),
        "validation": len(splits.validation),
        "test": len(splits.test),
        "shape": shape,
        "classes": None if labels is None else len(labels.unique()),
    }
    if as_json:
        print(json.dumps(found))
        return
    classes = "no labels" if labels is None else f"{found['classes']} classes"
    size = f"{shape[1]}x{shape[2]} px, {'grey' if shape[0] == 1 else 'colour'}"
    print(
        f"{source}: {len(splits.train):,} to train, {len(splits.validation):,} to label from, "
        f"{len(splits.test):,} to test; {size}, {classes}"
    )
