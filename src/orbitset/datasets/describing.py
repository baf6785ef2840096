"""A manifest from a function of image paths: file names often say what an image shows."""

import csv
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orbitset.datasets.folder import MANIFEST, ORBIT, list_folder
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

    `describe` is called with the path of each image and gives its orbit, a mapping of factors to values, None
    where one is not known, or None for an image that is to be left out. Images must lie below the folder of
    the manifest.

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
    if path.suffix.lower() != ".csv" or path.is_dir():
        raise DataError(f"{path} is not a name for a manifest; let it end in .csv")
    if path.exists() and not overwrite:
        raise DataError(f"{path} exists already; overwrite=True replaces it")
    rows = []
    for name in list_folder(folder).images.table.paths:
        try:
            description = describe(folder / name)
        except Exception as error:
            raise DataError(f"{folder / name} could not be described: {error!r}") from error
        if description is not None:
            factors = description if isinstance(description, Mapping) else {ORBIT: description}
            rows.append({"path": _relative(folder, name, path), **_texts(factors, folder / name)})
    if not rows:
        raise DataError(f"no image in {folder} was given an orbit")
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomically(path, text.getvalue().encode())
    return path


def _relative(folder: Path, name: str, manifest: Path) -> str:
    root = manifest.parent.resolve()
    try:
        relative = (folder.resolve() / name).relative_to(root).as_posix()
    except ValueError:
        raise DataError(
            f"{folder / name} does not lie below {manifest.parent}, where the manifest is to be written"
        ) from None
    return _text(relative, f"the path {relative!r}")


def _texts(factors: Mapping[Any, Any], image: Path) -> dict[str, str]:
    texts = {
        str(name).strip(): "" if value is None else _text(value, f"the {name} of {image}")
        for name, value in factors.items()
    }
    if "" in texts or "path" in texts or len(texts) < len(factors):
        raise DataError(
            f"the factors of {image} are {', '.join(map(repr, factors))}; give each its name"
        )
    if not any(texts.values()):
        raise DataError(f"{image} has no orbit and no factor; give None for images to be left out")
    return texts


def _text(value: Any, what: str) -> str:
    is_number = isinstance(value, float | np.number) and math.isfinite(value)
    if not (isinstance(value, str | int) or is_number):
        raise DataError(f"{what} is {value!r}; give a text or a number")
    text = str(value).strip()
    if "\0" in text or not text.isprintable():
        raise DataError(f"{what} is {text!r}, which cannot be written into a table")
    return text
