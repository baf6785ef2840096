"""Recognition from one or a few examples of each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orbitset.datasets.folder import list_folder
from orbitset.datasets.shards import open_at
from orbitset.datasets.table import Problem
from orbitset.errors import ConfigError
from orbitset.models import Model
from orbitset.search.examples import By, Examples, Recognised, leave_one_out_threshold
from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet
from orbitset.uses.embedding import Progress, embed
from orbitset.uses.verifying import check_distance

Source = Literal["given", "examples", "calibration", "none"]


@dataclass(frozen=True)
class Classified:
    """What each image was taken for."""

    paths: tuple[str, ...]
    found: tuple[Recognised, ...]
    examples: dict[str, str]
    """Of each class, the first example"""
    reject_above: float | None
    """Squared distance from which on an image is of no class"""
    rejects_by: Source
    unknown: tuple[str, ...]
    """Classes of which no example can be read"""
    problems: tuple[Problem, ...]


def classify(
    model: Model,
    examples: Path | str,
    images: Sequence[Path | str],
    *,
    by: By = "nearest",
    reject_above: float | None = None,
    is_open: bool = True,
    far: float = 0.05,
    on_progress: Progress | None = None,
) -> Classified:
    """The class of each image, or none if it is far from all.

    A class is a sub-folder of `examples`, or a single image there, called by its name. The distance that is
    too far is the one given, or what tells the classes apart among their examples, or the model's own; with
    `is_open=False` nothing is too far.
    """
    _check(reject_above, is_open)
    examples = Path(examples)
    table = list_folder(examples).images.table
    known = embed(model, [examples])
    classes = dict(
        zip(
            (str(examples / path) for path in table.paths),
            (
                orbit or Path(path).stem
                for path, orbit in zip(table.paths, table.columns["orbit"], strict=True)
            ),
            strict=True,
        )
    )
    labels = [classes[path] for path in known.paths]
    shown: dict[str, str] = {}
    for label, path in zip(labels, known.paths, strict=True):
        shown.setdefault(label, path)
    examples_of = Examples(known.codes_ND, labels, by=by)
    reject_above, rejects_by = _threshold(model, examples_of, reject_above, is_open, far)
    queries = embed(model, images, on_progress=on_progress)
    found = examples_of.classify(queries.codes_ND, reject_above=reject_above)
    return Classified(
        queries.paths,
        tuple(found),
        shown,
        reject_above,
        rejects_by,
        tuple(label for label in dict.fromkeys(classes.values()) if label not in shown),
        (*known.problems, *queries.problems),
    )


def _check(reject_above: float | None, is_open: bool) -> None:
    if reject_above is None:
        return
    if not is_open:
        raise ConfigError("nothing is to be rejected, and from a distance on; give one of both")
    check_distance("the distance to reject from", reject_above)


def _threshold(
    model: Model, examples: Examples, given: float | None, is_open: bool, far: float
) -> tuple[float | None, Source]:
    if given is not None:
        return given, "given"
    if not is_open:
        return None, "none"
    own = leave_one_out_threshold(examples)
    if own is not None:
        return own, "examples"
    if model.calibration is not None and any(one.far == far for one in model.calibration.points):
        return model.calibration.at(far).threshold, "calibration"
    return None, "none"


def classes_sheet(result: Classified) -> str:
    """A page with a row for each class: an example, and what was taken for it."""
    rows = []
    for label, example in result.examples.items():
        pictures = [SheetPicture(example, label, "example", is_marked=True)]
        pictures += [
            SheetPicture(path, Path(path).name, f"{one.distance:.4g}")
            for path, one in zip(result.paths, result.found, strict=True)
            if one.label == label
        ]
        rows.append(SheetRow(label, pictures))
    rejected = [
        SheetPicture(path, Path(path).name, f"{one.nearest}? {one.distance:.4g}")
        for path, one in zip(result.paths, result.found, strict=True)
        if one.label is None
    ]
    if rejected:
        rows.append(SheetRow("none of these", rejected))
    return contact_sheet(
        rows,
        title="Classes",
        note="With squared distances from the nearest class.",
        open_file=open_at,
    )
