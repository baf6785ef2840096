"""Plain images: each shows a thing of its own, so the changes that do not matter must be computed."""

import torch

from orbitset.datasets.decode import Decoding, fitting_size, is_coloured, load_images
from orbitset.datasets.images import ImageSet, Splits
from orbitset.datasets.table import ImageTable
from orbitset.errors import DataError
from orbitset.seeds import stable_seed

_FEWEST = 20


def load_plain(table: ImageTable, decoding: Decoding) -> Splits:
    """The images, fitted into squares of one size and split, and what could not be used.

    Six tenths are trained on, two are for validation, two are tested on. The name of a file decides: more
    images do not move others from one part to another.
    """
    is_colour = decoding.is_colour
    images, rest = load_images(
        table,
        size_px=decoding.size_px or fitting_size(table),
        is_colour=is_coloured(table) if is_colour is None else is_colour,
        on_problem=decoding.on_problem,
        is_cached=decoding.is_cached,
    )
    tenth_N = torch.tensor([stable_seed("part", path) % 10 for path in rest.paths])
    if len(rest) < _FEWEST or min(int((tenth_N // 2 == part).sum()) for part in (0, 1)) < 2:
        raise DataError(
            f"{table.source} has {len(rest)} images that can be used, too few to train on some and test on "
            "others",
            hint=f"give at least {_FEWEST}, better some hundreds",
        )
    pixels = ImageSet(images.images)
    test, validation, train = tenth_N < 2, (tenth_N >= 2) & (tenth_N < 4), tenth_N >= 4
    return Splits(pixels[train], pixels[validation], pixels[test], left_out=rest.left_out)
