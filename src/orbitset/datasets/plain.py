"""Plain images: a folder without sub-folders and without a manifest. Each shows a thing of its own, so the
changes that do not matter must be computed."""

from pathlib import Path

import torch

from orbitset.datasets.arrays import split
from orbitset.datasets.decode import Progress, fitting_size, is_coloured, load_images
from orbitset.datasets.folder import MANIFEST, ORBIT, holds_images, scan_folder
from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.table import OnProblem


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
    on_problem: OnProblem = "skip",
    on_progress: Progress | None = None,
) -> Splits:
    """The images, fitted into squares of one size and split at random, and what could not be used."""
    table = scan_folder(data).table
    seen, left = load_images(
        table,
        size_px=size_px or fitting_size(table),
        is_colour=is_coloured(table),
        on_problem=on_problem,
        on_progress=on_progress,
    )
    parts = split(ImageSet(torch.as_tensor(seen.images)))
    return Splits(parts.train, parts.validation, parts.test, left_out=left.left_out)
