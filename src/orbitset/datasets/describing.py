"""A manifest from a function: what an image shows is often in its name, or in a table of one's own."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orbitset.datasets.folder import MANIFEST, ORBIT, scan_folder
from orbitset.errors import DataError
from orbitset.files import write_atomically


def write_manifest(
    folder: Path | str,
    describe: Callable[[Path], Any],
    *,
    to: Path | str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write manifest.csv for all images below a folder, for `orbitset train` and every other command.

    `describe` is called with the path of each image and gives its orbit, a mapping of factors to values, or
    None for an image that is to be left out. Images must lie below the folder of the manifest.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("cup_1.png", "cup_2.png", "hat_1.png"):
    ...     Image.new("L", (8, 8)).save(folder / name)
    >>> write_manifest(folder, lambda path: path.stem.split("_")[0]).read_text().split()
    ['path,orbit', 'cup_1.png,cup', 'cup_2.png,cup', 'hat_1.png,hat']
    """
    folder = Path(folder)
    path = folder / MANIFEST if to is None else Path(to)
    if path.exists() and not overwrite:
        raise DataError(f"{path} exists already; overwrite=True replaces it")
    rows = []
    for name in scan_folder(folder).table.paths:
        image = folder / name
        given = describe(image)
        if given is not None:
            factors = given if isinstance(given, Mapping) else {ORBIT: given}
            rows.append({"path": _relative(image, path), **_texts(factors, image)})
            if rows[-1].keys() != rows[0].keys():
                raise DataError(
                    f"{image} has the factors {_names(rows[-1])}, {rows[0]['path']} has {_names(rows[0])}; "
                    "give every image the same"
                )
    if not rows:
        raise DataError(f"no image in {folder} was given an orbit")
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomically(path, text.getvalue().encode())
    return path


def _relative(image: Path, manifest: Path) -> str:
    root = manifest.parent.resolve()
    try:
        return image.resolve().relative_to(root).as_posix()
    except ValueError:
        raise DataError(
            f"{image} does not lie below {manifest.parent}, where the manifest is to be written"
        ) from None


def _texts(factors: Mapping[Any, Any], image: Path) -> dict[str, str]:
    found = {str(name): "" if value is None else str(value) for name, value in factors.items()}
    if not found or "path" in found or not all(name.strip() for name in found):
        raise DataError(f"the factors of {image} are {_names(found) or 'none'}; none is named path")
    empty = [name for name, text in found.items() if not text.strip()]
    if empty:
        raise DataError(f"the {empty[0]} of {image} is empty; give None for images to be left out")
    return found


def _names(row: Mapping[str, str]) -> str:
    return ", ".join(name for name in row if name != "path")
