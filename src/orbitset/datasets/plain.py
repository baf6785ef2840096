"""Plain images: a folder without sub-folders and without a manifest. Each shows a thing of its own, so the
changes that do not matter must be computed."""

from pathlib import Path

import torch

from orbitset.datasets.decode import Progress, fitting_size, is_coloured, load_images
from orbitset.datasets.folder import MANIFEST, ORBIT, holds_images, scan_folder
from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.table import OnProblem
from orbitset.errors import DataError
from orbitset.seeds import stable_seed

_FEWEST = 20


def is_plain(data: str) -> bool:
    """Whether a folder holds images, all of them in itself."""
    folder = Path(data)
    if not folder.is_dir() or (folder / MANIFEST).is_file() or not holds_images(folder):
        return False
    return not any(scan_folder(folder).table.columns[ORBIT])


def load_plain(
    data: str,
    *,
    size_px: int | None = None,
    is_colour: bool | None = None,
    on_problem: OnProblem = "skip",
    on_progress: Progress | None = None,
) -> Splits:
    """The images, fitted into squares of one size and split, and what could not be used.

    Six tenths are trained on, two are stopped by, two tested on. The name of a file decides: more images do
    not move others from one part to another.
    """
    table = scan_folder(data).table
    seen, left = load_images(
        table,
        size_px=size_px or fitting_size(table),
        is_colour=is_coloured(table) if is_colour is None else is_colour,
        on_problem=on_problem,
        on_progress=on_progress,
    )
    tenth_N = torch.tensor([stable_seed("part", path) % 10 for path in left.paths])
    if len(left) < _FEWEST or min(int((tenth_N // 2 == part).sum()) for part in (0, 1)) < 2:
        raise DataError(
            f"{data} has {len(left)} images that can be used, too few to train on some and test on others",
            hint=f"give at least {_FEWEST}, better some hundreds",
        )
    images = ImageSet(torch.as_tensor(seen.images))
    test, validation, train = (tenth_N < 2, (tenth_N >= 2) & (tenth_N < 4), tenth_N >= 4)
    return Splits(images[train], images[validation], images[test], left_out=left.left_out)
