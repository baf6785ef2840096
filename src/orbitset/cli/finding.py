"""Commands that find images among others: index, search, dedupe, classify."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer import Argument, Option

from orbitset.cli import model_options
from orbitset.cli.options import Device, Json, Quiet, Trust, say
from orbitset.errors import check_choice, count_of

_HEADING = f"  {'distance':>10}  image"
app = typer.Typer(help="Build an index of images to search in.", no_args_is_help=True)


@app.command("add")
def index_add(
    model: model_options.ModelFolder,
    index: Annotated[Path, Argument(metavar="INDEX", help="Folder of the index, new or existing.")],
    images: model_options.Images,
    kind: Annotated[
        str | None,
        Option(
            metavar="flat|ivf|hnsw",
            help="Type of a new index: flat is exact; ivf and hnsw are for millions of images.",
        ),
    ] = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add images to an index, or replace those that it has.

    Example: orbitset index add runs/mine photos.index photos/
    """
    from orbitset.uses.finding import add_to_index

    check_choice("--kind", kind, (None, "flat", "ivf", "hnsw"))
    with model_options.counting("embedding", quiet) as counted:
        report = add_to_index(
            model_options.load(model, device),
            index,
            images,
            kind=cast(Any, kind),
            on_progress=counted,
        )
    content = {name: getattr(report, name) for name in ("added", "replaced", "size")}
    size = count_of(report.size, "image")
    text = f"{report.added:,} added, {report.replaced:,} replaced; {size}: {index}"
    model_options.finish(
        as_json, content | {"index": str(index)}, [text], report.problems, report.ignored
    )


@app.command("remove")
def index_remove(
    index: Annotated[Path, Argument(metavar="INDEX", help="Folder of an index.")],
    images: Annotated[
        list[Path],
        Argument(
            metavar="IMAGES", help="Images, or folders, videos or arrays with all their images."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Remove images from an index; their files need not exist any more.

    Example: orbitset index remove photos.index photos/old.jpg
    """
    from orbitset.uses.finding import remove_from_index

    removed, unknown, left = remove_from_index(index, images)
    content = {"removed": removed, "unknown": unknown, "size": left, "index": str(index)}
    model_options.finish(
        as_json, content, [f"{removed:,} removed; {count_of(left, 'image')} left: {index}"]
    )
    for path in unknown:
        say(model_options.printable(f"not in the index: {path}"))


def search(
    model: model_options.ModelFolder,
    index: Annotated[Path, Argument(metavar="INDEX", help="Folder of an index.")],
    queries: Annotated[
        list[Path],
        Argument(metavar="QUERIES", help="Images to search for, or anything train takes."),
    ],
    k: Annotated[int, Option(help="Number of nearest images to show for each query.", min=1)] = 10,
    sheet: model_options.Sheet = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the images in an index that are nearest to each query.

    Example: orbitset search runs/mine photos.index query.jpg --sheet found.html
    """
    from orbitset.uses.finding import search_index, search_sheet

    loaded = model_options.load(model, device)
    with model_options.counting("queries", quiet) as counted:
        answers, problems = search_index(loaded, index, queries, k=k, on_progress=counted)
    model_options.write_sheet(sheet, lambda: search_sheet(loaded, answers))
    matches_by_query = [
        {"query": answer.query, "matches": [asdict(match) for match in answer.matches]}
        for answer in answers
    ]
    lines = [_HEADING]
    for answer in answers:
        lines.append(answer.query)
        lines += [f"  {match.distance:>10.4g}  {match.path}" for match in answer.matches]
    model_options.finish(as_json, {"answers": matches_by_query}, lines, problems)


def dedupe(
    model: model_options.ModelFolder,
    images: model_options.Images,
    far: model_options.Far = None,
    threshold: model_options.Threshold = None,
    sheet: model_options.Sheet = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find duplicates: group the images that show the same thing.

    Example: orbitset dedupe runs/mine photos/ --sheet groups.html
    """
    from orbitset.uses.grouping import FAR, duplicates_sheet, find_duplicates, name_threshold

    model_options.check_one(far, threshold)
    loaded = model_options.load(model, device)
    limit, about = name_threshold(loaded, FAR if far is None else far, threshold)
    with model_options.counting("embedding", quiet) as counted:
        groups, embedded = find_duplicates(loaded, images, threshold=limit, on_progress=counted)
    model_options.write_sheet(sheet, lambda: duplicates_sheet(groups, about))
    content = {
        "images": len(embedded.paths),
        "threshold": limit,
        "groups": [
            {"paths": list(group.names), "distances": list(group.distances)} for group in groups
        ],
    }
    grouped = sum(map(len, groups))
    counts = f"{grouped:,} of them in {count_of(len(groups), 'group')}"
    lines = [f"{count_of(len(embedded.paths), 'image')}; {counts}", about]
    lines += [_HEADING] if groups else []
    for group in groups:
        lines.append(f"{len(group)} images")
        lines += [
            f"  {distance:>10.4g}  {path}"
            for path, distance in zip(group.names, group.distances, strict=True)
        ]
    model_options.finish(as_json, content, lines, embedded.problems)


def classify(
    model: model_options.ModelFolder,
    images: model_options.Images,
    examples: Annotated[
        Path,
        Option(
            help="Folder with a sub-folder of examples, or one image, for each class; or anything "
            "train takes that has a factor with the class."
        ),
    ],
    label: Annotated[
        str | None,
        Option(help="Factor of the examples that is their class. Default: label, or orbit."),
    ] = None,
    reject: Annotated[
        float | None,
        Option(help="Reject images farther than this squared distance from every class."),
    ] = None,
    is_closed: Annotated[
        bool, Option("--closed", help="Never reject: give every image one of the classes.")
    ] = False,
    by: Annotated[
        str,
        Option(
            metavar="nearest|mean",
            help="Compare with the nearest example, or with the mean of a class.",
        ),
    ] = "nearest",
    sheet: model_options.Sheet = None,
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

    check_choice("--by", by, ("nearest", "mean"))
    with model_options.counting("embedding", quiet) as counted:
        result = recognise(
            model_options.load(model, device),
            examples,
            images,
            label=label,
            by=cast(Any, by),
            reject_above=reject,
            is_open=not is_closed,
            on_progress=counted,
        )
    model_options.write_sheet(sheet, lambda: classes_sheet(result))
    rows = list(zip(result.paths, result.results, strict=True))
    content = {
        "reject_above": result.reject_above,
        "rejects_by": result.rejects_by,
        "unknown": list(result.unknown),
        "images": [{"path": path} | asdict(guess) for path, guess in rows],
    }
    width = max([16, *(len(guess.label or "") for _, guess in rows)])
    lines = [f"{'class':<{width}} {'distance':>10}  image"]
    lines += [
        f"{guess.label or '–':<{width}} {guess.distance:>10.4g}  {path}" for path, guess in rows
    ]
    model_options.finish(as_json, content, lines, result.problems)
    for label in result.unknown:
        say(
            model_options.printable(
                f"no example of {label} can be read, so no image is given that class"
            )
        )
    if not as_json and result.rejects_by == "none" and not is_closed:
        say(
            "\nevery image was given a class: no rejection threshold could be estimated "
            "(set one with --reject)"
        )
    if not as_json and result.reject_above is not None:
        source = {
            "given": "set with --reject",
            "examples": "the threshold that best separates the examples of different classes",
            "calibration": "the model's own threshold at a false accept rate of 5 %",
        }[result.rejects_by]
        say(
            f"\nimages farther than {result.reject_above:.4g} from every class get none (–): {source}"
        )
