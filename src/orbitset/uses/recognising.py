"""Recognition from one or a few examples of each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orbitset.datasets.folder import ORBIT
from orbitset.datasets.named_images import find_images, open_image
from orbitset.datasets.table import ImageTable, Problem
from orbitset.errors import ConfigError, DataError
from orbitset.models import Model
from orbitset.search.examples import By, Examples, Recognised, leave_one_out_threshold
from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet, short_names
from orbitset.uses.embedding import Progress, embed, embed_table
from orbitset.uses.verifying import check_distance

Source = Literal["given", "examples", "calibration", "none"]


@dataclass(frozen=True)
class Classified:
    """The class of each image."""

    paths: tuple[str, ...]
    results: tuple[Recognised, ...]
    examples: dict[str, str]
    """The first example of each class"""
    reject_above: float | None
    """The squared distance above which an image has no class"""
    rejects_by: Source
    """Where that threshold comes from"""
    unknown: tuple[str, ...]
    """Classes without a readable example"""
    problems: tuple[Problem, ...]


def classify(
    model: Model,
    examples: Path | str,
    images: Sequence[Path | str],
    *,
    label: str | None = None,
    by: By = "nearest",
    reject_above: float | None = None,
    is_open: bool = True,
    far: float = 0.05,
    on_progress: Progress | None = None,
) -> Classified:
    """The class of each image, or none if it is far from all.

    A class is a sub-folder of `examples`, or a single image there, named by its file; of other sources, the
    value of the factor `label`, by default that of the name label or orbit. `reject_above` is by
    default the distance that tells the classes apart among their examples, or else the model's threshold for
    `far`. With `is_open=False` every image has a class.
    """
    if reject_above is not None:
        if not is_open:
            raise ConfigError("--closed and --reject contradict each other; give one")
        check_distance("the distance to reject from", reject_above)
    table, classes = _classes(find_images([examples], model.form).table, label)
    known = embed_table(model, table)
    labels = [classes[path] for path in known.paths]
    first = {label: path for label, path in zip(labels[::-1], known.paths[::-1], strict=True)}
    labelled = Examples(known.codes, labels, by=by)
    reject_above, rejects_by = _threshold(model, labelled, reject_above, is_open, far)
    queries = embed(model, images, on_progress=on_progress)
    return Classified(
        paths=queries.paths,
        results=tuple(labelled.classify(queries.codes, reject_above=reject_above)),
        examples={label: first[label] for label in labelled.classes},
        reject_above=reject_above,
        rejects_by=rejects_by,
        unknown=tuple(label for label in dict.fromkeys(classes.values()) if label not in first),
        problems=(*known.problems, *queries.problems),
    )


def _classes(table: ImageTable, label: str | None) -> tuple[ImageTable, dict[str, str]]:
    """The examples that have a class, and the class of each by its name."""
    factor = label or next((name for name in ("label", ORBIT) if name in table.columns), None)
    if factor is None:
        raise ConfigError(
            f"the examples in {table.source} have no factor label or orbit that says their classes",
            hint=f"name it with --label: {', '.join(table.columns) or 'they have none at all'}",
        )
    values = table.require([factor]).columns[factor]
    classes = dict(zip(table.paths, values, strict=True))
    if factor == ORBIT and Path(table.source).is_dir():
        classes = {path: orbit or Path(path).stem for path, orbit in classes.items()}
    labelled = [at for at, path in enumerate(table.paths) if classes[path]]
    if not labelled:
        raise DataError(f"no example in {table.source} has a {factor}")
    return table.at(labelled), classes


def _threshold(
    model: Model, examples: Examples, given: float | None, is_open: bool, far: float
) -> tuple[float | None, Source]:
    if given is not None:
        return given, "given"
    if not is_open:
        return None, "none"
    estimate = leave_one_out_threshold(examples)
    if estimate is not None:
        return estimate, "examples"
    points = [] if model.calibration is None else model.calibration.points
    thresholds = [point.threshold for point in points if point.far == far]
    return (thresholds[0], "calibration") if thresholds else (None, "none")


def classes_sheet(result: Classified) -> str:
    """A page with a row for each class: an example, and the images of that class."""
    rows = []
    names = dict(zip(result.paths, short_names(result.paths), strict=True))
    for label, example in result.examples.items():
        pictures = [SheetPicture(example, label, "example", is_marked=True)]
        pictures += [
            SheetPicture(path, names[path], f"{answer.distance:.4g}")
            for path, answer in zip(result.paths, result.results, strict=True)
            if answer.label == label
        ]
        rows.append(SheetRow(label, pictures))
    rejected = [
        SheetPicture(path, names[path], f"{answer.nearest}? {answer.distance:.4g}")
        for path, answer in zip(result.paths, result.results, strict=True)
        if answer.label is None
    ]
    if rejected:
        rows.append(SheetRow("none of these", rejected))
    return contact_sheet(
        rows,
        title="Classes",
        note="With squared distances from the nearest class.",
        open_file=open_image,
    )
