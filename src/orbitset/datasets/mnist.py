"""MNIST from its four idx files, plain or gzipped, checked and split 50,000 / 10,000 / 10,000.

The last 10,000 of the 60,000 training digits are the validation part.
"""

import gzip
import hashlib
import http.client
import io
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from orbitset.datasets.images import ImageSet, Splits
from orbitset.errors import DataError
from orbitset.files import cache_folder, write_atomically

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""Checksums of the files once unzipped, so that one table serves both forms"""
_MOST_BYTES = 16 + 60_000 * 28 * 28
"""Of a file once unzipped: a few kilobytes may unzip to gigabytes"""
_HINT = "delete the file and run again to fetch it anew, or replace it by the original"


def data_root() -> Path:
    """The folder that holds data sets: $ORBITSET_DATA, or the user's cache folder."""
    root = os.environ.get("ORBITSET_DATA")
    return Path(root) if root else cache_folder()


def load_mnist(
    folder: Path | None = None, *, download: bool = True, mirrors: Sequence[str] = MIRRORS
) -> Splits:
    """MNIST from the folder (by default `mnist` under the data root), downloaded first where absent."""
    folder = folder or data_root() / "mnist"
    raw = {name: _verified(folder, name, download, mirrors) for name in SHA256}
    train, test = (
        ImageSet(
            _payload(raw[f"{part}-images-idx3-ubyte"], 16).view(-1, 1, 28, 28),
            _payload(raw[f"{part}-labels-idx1-ubyte"], 8).long(),
        )
        for part in ("train", "t10k")
    )
    return Splits(train=train[:50_000], validation=train[50_000:], test=test)


def is_mnist_folder(folder: Path) -> bool:
    """Whether any of the four files lies in the folder, in either form."""
    return any(_find(folder, name) for name in SHA256)


def _payload(raw: bytes, header: int) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)[header:].clone()


def _find(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _verified(folder: Path, name: str, download: bool, mirrors: Sequence[str]) -> bytes:
    path = _find(folder, name)
    if path is None:
        if not download:
            raise _missing(folder, name, "downloading is switched off")
        path = _fetch(folder, name, mirrors)
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if path.suffix == ".gz":
        try:
            content = _unzipped(content)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(
                f"{path} cannot be unzipped ({error}): it is truncated or damaged", hint=_HINT
            ) from None
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != SHA256[name]:
        raise DataError(
            f"{path} is damaged: its content has checksum {checksum[:12]}…, not {SHA256[name][:12]}…",
            hint=_HINT,
        )
    return content


def _unzipped(zipped: bytes) -> bytes:
    """Not more of it than a byte above what the largest file has, which makes its checksum another."""
    with gzip.GzipFile(fileobj=io.BytesIO(zipped)) as file:
        return file.read(_MOST_BYTES + 1)


def _fetch(folder: Path, name: str, mirrors: Sequence[str]) -> Path:
    """Download into the folder from the first mirror whose file has the right checksum."""
    reasons = []
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=30) as response:
                zipped = response.read(_MOST_BYTES)
            if hashlib.sha256(_unzipped(zipped)).hexdigest() != SHA256[name]:
                raise ValueError("wrong checksum")
        except (OSError, EOFError, ValueError, zlib.error, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            reasons.append(f"{mirror}: {reason}")
            continue
        path = folder / f"{name}.gz"
        try:
            write_atomically(path, zipped)
        except OSError as error:
            raise DataError(f"{path} could not be written: {error.strerror}") from None
        return path
    raise _missing(folder, name, "; ".join(reasons) or "no mirror is known")


def _missing(folder: Path, name: str, reason: str) -> DataError:
    return DataError(
        f"MNIST's {name} is not in {folder} and could not be downloaded ({reason})",
        hint=f"put the four original files, {', '.join(f'{n}.gz' for n in SHA256)}, "
        f"into {folder}, or set ORBITSET_DATA to a folder that holds them under mnist/",
    )
