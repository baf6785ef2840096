"""A trained model in use: images in, codes and rectified images out.

Shapes: N images, D code entries, C x S x S what the network takes and gives.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from orbitset.datasets.pictures import ImageForm, large_images, upright, why_unreadable
from orbitset.datasets.shards import file_at
from orbitset.encoders import Encoder
from orbitset.encoders.folded import FoldedEncoder
from orbitset.errors import ConfigError, DataError
from orbitset.memory import in_halves
from orbitset.models.description import Calibration, Description
from orbitset.models.known import Assessment, Known
from orbitset.precision import Precision, in_bfloat16

Images = Any
"""One image or many: paths, Pillow images, or arrays and tensors (N, H, W), (N, H, W, 3) or (N, C, H, W) of
uint8, or of floats in [0, 1]"""
_BATCH = 256


class Model:
    """An encoder, and how its input is prepared.

    >>> import orbitset
    >>> model = orbitset.load("runs/mine")  # doctest: +SKIP
    >>> codes = model.embed(["a.jpg", "b.jpg"])  # doctest: +SKIP
    """

    def __init__(
        self, network: Encoder, description: Description, known: Known | None = None
    ) -> None:
        self.network = network.eval()
        self.known = known
        """What it was trained on, in codes; None where that is not known"""
        self._folded: FoldedEncoder | None = None
        self.description = description
        about = description.input
        self.form = ImageForm(about.image_px or about.size_px, about.is_colour)
        """How image files are read for it"""

    @property
    def id(self) -> str:
        return self.description.id

    @property
    def code_size(self) -> int:
        size = self.description.network.encoder.code_size
        assert size is not None, "a built network's is known"
        return size

    @property
    def calibration(self) -> Calibration | None:
        return self.description.calibration

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def embed(self, images: Images, *, precision: Precision = "float32") -> np.ndarray:
        """Codes (N, D), float32."""
        codes = [self.encode(batch, precision=precision).cpu() for batch in self._batches(images)]
        return torch.cat(codes).numpy() if codes else np.empty((0, self.code_size), np.float32)

    def rectify(self, images: Images) -> np.ndarray:
        """Each image in its canonical pose: uint8 (N, S, S), or (N, S, S, 3) in colour."""
        pixels = [self._rectified(batch) for batch in self._batches(images)]
        size = self.description.input.size_px
        shape = (0, size, size, 3) if self.description.input.is_colour else (0, size, size)
        return np.concatenate(pixels) if pixels else np.empty(shape, np.uint8)

    def confidence(self, images: Images) -> np.ndarray:
        """How much each image is like what the model was trained on, from 0 to 1, (N,).

        It is the share of held-out images that are at least as unlike it: below 0.01 an image is unlike
        anything trained on, and its rectified image is invented.
        """
        self.check_known()
        parts = [np.empty(0)]
        for batch in self._batches(images):
            _, assessment = self.rectify_and_assess(batch)
            assert assessment is not None
            parts.append(assessment.confidence)
        return np.concatenate(parts)

    def check_known(self) -> None:
        """An error if the model has no confidence."""
        if self.known is None:
            raise ConfigError(
                "the confidence of this model is not known: an older version of orbitset trained it",
                hint="train it again",
            )

    @torch.inference_mode()
    def rectify_and_assess(self, images: Tensor) -> tuple[np.ndarray, Assessment | None]:
        """Rectified pixels of prepared images, and how sure they are, if that is known."""
        codes_ND, rectified_NCSS = in_halves(self.network, images.to(self.device))
        assessment = None
        if self.known is not None:
            again_ND = in_halves(self.network.encode, rectified_NCSS.clamp(0, 1))
            assessment = self.known.assess(self.known.measure(codes_ND, again_ND, images))
        return self._pixels(rectified_NCSS), assessment

    def distances(self, a: Images, b: Images) -> np.ndarray:
        """Squared Euclidean distances of the codes of pairs of images, (N,)."""
        code_a, code_b = (self.embed(images).astype(np.float64) for images in (a, b))
        if len(code_a) != len(code_b):
            raise ValueError(
                f"there are {len(code_a)} and {len(code_b)} images; give as many of both"
            )
        difference = code_a - code_b
        distances: np.ndarray = np.square(difference).sum(1)
        return distances

    @torch.inference_mode()
    def encode(self, images: Tensor, *, precision: Precision = "float32") -> Tensor:
        """Codes of prepared images."""
        images = images.to(self.device)
        if self._folded is None or not self._folded.is_current:
            self._folded = FoldedEncoder(self.network)
        is_rounded = in_bfloat16(precision, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_rounded):
            return in_halves(self._folded.encode, images)

    def rectify_prepared(self, pixels: np.ndarray) -> np.ndarray:
        """Rectify pixels that were read as `form` says."""
        return self._rectified(self.place(torch.from_numpy(pixels)))

    @torch.inference_mode()
    def _rectified(self, images_NCSS: Tensor) -> np.ndarray:
        return self._pixels(in_halves(self.network.rectify, images_NCSS.to(self.device)))

    def _pixels(self, rectified_NCSS: Tensor) -> np.ndarray:
        levels = (
            rectified_NCSS.clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
        )
        pixels: np.ndarray = levels.numpy()
        return pixels if self.description.input.is_colour else pixels[..., 0]

    def prepare(self, images: Images) -> Tensor:
        """The network's input for these images: floats in [0, 1], (N, C, S, S)."""
        if isinstance(images, np.ndarray) and images.dtype.kind in "OU":
            images = images.tolist()
        if isinstance(images, np.ndarray):
            # torch takes no other order of bytes or rows, and warns of what cannot be written
            native = np.require(images, images.dtype.newbyteorder("="), ["C", "W"])
            images = torch.from_numpy(native)
        if isinstance(images, Tensor):
            return self.place(self._fitted(images.detach()))
        if isinstance(images, str | Path | Image.Image):
            images = [images]
        with large_images():
            pixels = list(self._read(images))
        size = self.form.size_px
        shape = (0, self.description.input.channels, size, size)
        return self.place(torch.from_numpy(np.stack(pixels) if pixels else np.empty(shape, "u1")))

    def _batches(self, images: Images) -> Sequence[Tensor]:
        """Prepared images, a few hundred at a time; some networks take no empty batch."""
        prepared = self.prepare(images)
        return prepared.split(_BATCH) if len(prepared) else ()

    def place(self, images: Tensor) -> Tensor:
        """Images of the right size as floats, on the canvas if there is one."""
        placed = images.float()
        if not images.is_floating_point():
            placed = placed.div(255)
        about = self.description.input
        if about.image_px is None:
            return placed
        before = (about.size_px - about.image_px) // 2
        after = about.size_px - about.image_px - before
        return F.pad(placed, (before, after, before, after))

    def _read(self, images: Sequence[Any]) -> Iterator[np.ndarray]:
        for at, image in enumerate(images):
            if isinstance(image, Image.Image):
                name, pixels = f"image {at}", self._opened(image)
            elif isinstance(image, str | Path):
                name, pixels = str(image), self.form.read(file_at(image))
            else:
                raise TypeError(
                    f"an image is a {type(image).__name__}; give paths, Pillow images, or one array of all"
                )
            if isinstance(pixels, str):
                raise DataError(f"{name} {pixels}")
            yield pixels

    def _opened(self, image: Image.Image) -> np.ndarray | str:
        """A Pillow image as its file would have been read."""
        try:
            turned = upright(image)
            return turned if isinstance(turned, str) else self.form.fit(turned)
        except Exception as error:
            return why_unreadable(error)

    def _fitted(self, images: Tensor) -> Tensor:
        """An array of images as (N, C, size, size), as files would have been read."""
        images = _channels_first(images)
        _check_values(images)
        channels, size = self.description.input.channels, self.form.size_px
        assert size is not None
        if images.shape[1:] == (channels, size, size):
            return images
        levels = images if images.dtype == torch.uint8 else images.mul(255).round().to(torch.uint8)
        arrays = levels.permute(0, 2, 3, 1).cpu().numpy()
        plain = arrays[..., 0] if arrays.shape[-1] == 1 else arrays
        fitted = [self.form.fit(Image.fromarray(pixels)) for pixels in plain]
        empty = np.empty((0, channels, size, size), np.uint8)
        return torch.from_numpy(np.stack(fitted) if fitted else empty)


def _channels_first(images: Tensor) -> Tensor:
    if images.ndim == 3 and images.shape[2] in (1, 3):
        raise ValueError(
            f"images have shape {tuple(images.shape)}, which looks like one in colour; give images[None]"
        )
    if len(images) and 0 in images.shape:
        raise ValueError(f"images have shape {tuple(images.shape)}, and so no pixels")
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.permute(0, 3, 1, 2)
    raise ValueError(
        f"images have shape {tuple(images.shape)}; give (N, H, W), (N, H, W, 3) or (N, C, H, W) with 1 or 3 "
        "channels"
    )


def _check_values(images: Tensor) -> None:
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        dtype = str(images.dtype).removeprefix("torch.")
        raise TypeError(f"images have dtype {dtype}; give uint8, or floats in [0, 1]")
    if images.numel() and not (bool((images >= 0).all()) and bool((images <= 1).all())):
        raise ValueError("images have values outside [0, 1], or NaN; scale them, or give uint8")
