"""De-duplication: which of many images show the same thing?"""

from collections.abc import Sequence
from pathlib import Path

from orbitset.datasets.named_images import open_image
from orbitset.errors import count_of
from orbitset.models import Model
from orbitset.search.duplicates import Group, find_groups
from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet, short_names
from orbitset.uses.embedding import Embedded, Progress, embed
from orbitset.uses.verifying import check_distance, threshold_of

FAR = 0.001


def find_duplicates(
    model: Model,
    images: Sequence[Path | str],
    *,
    far: float = FAR,
    threshold: float | None = None,
    on_progress: Progress | None = None,
) -> tuple[list[Group], Embedded]:
    """Groups joined by pairs up to a threshold, by default the model's at `far`; and all embedded images."""
    if threshold is None:
        threshold = threshold_of(model, far).threshold
    check_distance("threshold", threshold)
    embedded = embed(model, images, on_progress=on_progress)
    return find_groups(embedded.codes, threshold=threshold, names=embedded.paths), embedded


def name_threshold(model: Model, far: float, threshold: float | None) -> tuple[float, str]:
    """A threshold, by default the model's for a false accept rate, and a sentence that says what it does."""
    rates = ""
    if threshold is None:
        point = threshold_of(model, far)
        threshold = point.threshold
        assert model.calibration is not None
        rates = f" ({model.calibration.describe(point)})"
    check_distance("threshold", threshold)
    about = "Groups are joined where the codes of two images are at squared distance"
    return threshold, f"{about} {threshold:.4g} or less{rates}."


def duplicates_sheet(groups: Sequence[Group], about: str = "") -> str:
    """A page with a row for each group; `about` says by which threshold they are joined."""
    rows = [
        SheetRow(
            f"{len(group)} images",
            [
                SheetPicture(path, name, f"{distance:.4g}", is_marked=path == group.names[0])
                for path, name, distance in zip(
                    group.names, short_names(group.names), group.distances, strict=True
                )
            ],
        )
        for group in groups
    ]
    note = (
        f"{about or 'Images of a group are joined by near pairs.'} The marked one is nearest to all others; "
        "below each is the squared distance of its code from that one's."
    )
    return contact_sheet(
        rows, title=count_of(len(groups), "group"), note=note, open_file=open_image
    )
