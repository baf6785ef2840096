"""Commands that find images among others: index, search, dedupe, classify."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from orbitset.cli.model_options import (
    Counted,
    Far,
    Images,
    ModelFolder,
    Sheet,
    Threshold,
    check_one,
    finish,
    load,
    printable,
    write_sheet,
)
from orbitset.cli.options import Device, Json, Quiet, Trust, say

app = typer.Typer(help="Make an index of images to search in.", no_args_is_help=True)


@app.command("add")
def index_add(
    model: ModelFolder,
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="A folder; made if not there.")],
    images: Images,
    kind: Annotated[
        Literal["flat", "ivf", "hnsw"] | None,
        typer.Option(help="Of a new index: flat is exact, the others are for millions."),
    ] = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add images, or embed those anew that are there.

    Example: orbitset index add runs/mine photos.index photos/
    """
    from orbitset.uses.finding import add_to_index

    with Counted("embedding", quiet) as counted:
        done = add_to_index(load(model, device), index, images, kind=kind, on_progress=counted)
    found = {"added": done.added, "replaced": done.replaced, "size": done.size, "index": str(index)}
    text = f"{done.added:,} added, {done.replaced:,} replaced; {done.size:,} images: {index}"
    finish(as_json, found, [text], done.problems, done.ignored)


@app.command("remove")
def index_remove(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="The folder of an index.")],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES", help="Images, and folders of them.")
    ],
    as_json: Json = False,
) -> None:
    """Remove images; their files need not be there any more.

    Example: orbitset index remove photos.index photos/old.jpg
    """
    from orbitset.uses.finding import remove_from_index

    removed, unknown, left = remove_from_index(index, images)
    found = {"removed": removed, "unknown": unknown, "size": left, "index": str(index)}
    finish(as_json, found, [f"{removed:,} removed; {left:,} images left: {index}"])
    for path in unknown:
        say(printable(f"not in the index: {path}"))


def search(
    model: ModelFolder,
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="The folder of an index.")],
    queries: Annotated[list[Path], typer.Argument(metavar="QUERIES", help="Images to look for.")],
    k: Annotated[int, typer.Option(help="Matches of each query.", min=1)] = 10,
    sheet: Sheet = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the images of an index that show what the queries show.

    Example: orbitset search runs/mine photos.index query.jpg --sheet found.html
    """
    from orbitset.uses.finding import search_index, search_sheet

    loaded = load(model, device)
    with Counted("queries", quiet) as counted:
        answers, problems = search_index(loaded, index, queries, k=k, on_progress=counted)
    write_sheet(sheet, lambda: search_sheet(loaded, answers))
    found = {
        "answers": [
            {
                "query": answer.query,
                "matches": [{"path": m.path, "distance": m.distance} for m in answer.matches],
            }
            for answer in answers
        ]
    }
    lines = []
    for answer in answers:
        lines.append(answer.query)
        lines += [f"  {match.distance:>10.4g}  {match.path}" for match in answer.matches]
    finish(as_json, found, lines, problems)


def dedupe(
    model: ModelFolder,
    images: Images,
    far: Far = None,
    threshold: Threshold = None,
    sheet: Sheet = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Group images that show the same thing.

    Example: orbitset dedupe runs/mine photos/ --sheet groups.html
    """
    from orbitset.uses.grouping import FAR, duplicates_sheet, find_duplicates

    check_one(far, threshold)
    with Counted("embedding", quiet) as counted:
        groups, looked = find_duplicates(
            load(model, device),
            images,
            far=FAR if far is None else far,
            threshold=threshold,
            on_progress=counted,
        )
    write_sheet(sheet, lambda: duplicates_sheet(groups))
    found = {
        "images": len(looked.paths),
        "groups": [
            {"paths": list(group.names), "distances": list(group.distances)} for group in groups
        ],
    }
    grouped = sum(map(len, groups))
    lines = [f"{len(looked.paths):,} images; {grouped:,} of them in {len(groups):,} groups"]
    for group in groups:
        lines.append(f"{len(group)} images")
        lines += [
            f"  {distance:>10.4g}  {path}"
            for path, distance in zip(group.names, group.distances, strict=True)
        ]
    finish(as_json, found, lines, looked.problems)


def classify(
    model: ModelFolder,
    images: Images,
    examples: Annotated[
        Path, typer.Option(help="A sub-folder of examples for each class, or an image for each.")
    ],
    reject: Annotated[
        float | None, typer.Option(help="Squared distance from which on an image is of no class.")
    ] = None,
    is_closed: Annotated[
        bool, typer.Option("--closed", help="Every image is of one of the classes.")
    ] = False,
    by: Annotated[
        Literal["nearest", "mean"],
        typer.Option(help="Compare with the nearest example, or the mean."),
    ] = "nearest",
    sheet: Sheet = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recognise images from one or a few examples of each class.

    Example: orbitset classify runs/mine photos/ --examples known/
    """
    from orbitset.uses.recognising import classes_sheet
    from orbitset.uses.recognising import classify as recognise

    with Counted("embedding", quiet) as counted:
        result = recognise(
            load(model, device),
            examples,
            images,
            by=by,
            reject_above=reject,
            is_open=not is_closed,
            on_progress=counted,
        )
    write_sheet(sheet, lambda: classes_sheet(result))
    rows = list(zip(result.paths, result.found, strict=True))
    found = {
        "reject_above": result.reject_above,
        "rejects_by": result.rejects_by,
        "unknown": list(result.unknown),
        "images": [
            {
                "path": path,
                "label": one.label,
                "nearest": one.nearest,
                "distance": one.distance,
                "runner_up": one.runner_up,
                "runner_up_distance": one.runner_up_distance,
            }
            for path, one in rows
        ],
    }
    lines = [f"{one.label or '–':<16} {one.distance:>10.4g}  {path}" for path, one in rows]
    finish(as_json, found, lines, result.problems)
    for label in result.unknown:
        say(printable(f"no example of {label} can be read: no image is taken for it"))
    if not as_json and result.rejects_by == "none" and not is_closed:
        say(
            "\nevery image was given a class: no distance was found from which on it should have none"
        )
    if not as_json and result.reject_above is not None:
        source = {
            "given": "as given",
            "examples": "what best tells the examples of one class from those of others",
            "calibration": "the model's own, with a false accept rate of 5 %",
        }[result.rejects_by]
        say(f"\n– is farther than {result.reject_above:.4g} from every class: {source}")
