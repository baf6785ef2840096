"""How much an image is like what a model was trained on: a confidence between 0 and 1.

Three things tell an image that a model does not know: its code lies far from the codes of all training
images; its rectified image has another code than the image itself; its light, contrast and detail are not
those of training images. How far is far is measured on held-out images.

Shapes: N images of C x S x S, K known images, H held-out images, D code entries, A numbers of appearance.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.encoders import Encoder
from orbitset.errors import RunError
from orbitset.files import ordinary, why, write_atomically
from orbitset.memory import in_halves

KNOWN = "known.safetensors"
UNLIKE = 0.01
"""Images of a lower confidence are unlike anything trained on"""
_SCALES = 3
_FLOOR = 1e-3
"""The least variance in any direction of appearance, as a share of the mean one"""


@dataclass(frozen=True)
class Assessment:
    """For each image its confidence and the three measures that it follows from, all (N,)."""

    confidence: np.ndarray
    distance: np.ndarray
    """Squared distance from the nearest code of a training image"""
    reencoding: np.ndarray
    """Squared distance from the code of the rectified image"""
    appearance: np.ndarray
    """Squared Mahalanobis distance of light, contrast and detail from those of training images"""


@dataclass(frozen=True, eq=False)
class Known:
    """Codes and appearance of training images, and how unlike these held-out images of the same kind are."""

    codes: Tensor
    appearance: Tensor
    held_out: Tensor
    """The three measures of each held-out image"""

    def measure(self, codes: Tensor, again: Tensor, images: Tensor) -> Tensor:
        """The three measures (N, 3) of images, of which `again` are the codes once they are rectified."""
        exact = "donot_use_mm_for_euclid_dist"
        known_KD = self.codes.to(codes)
        nearest_N = torch.cdist(codes, known_KD, compute_mode=exact).amin(1).square()
        mean_A, inverse_AA = self._appearance
        off_NA = appearance(images) - mean_A
        measures = (
            nearest_N.cpu().double(),
            (again - codes).square().sum(1).cpu().double(),
            (off_NA @ inverse_AA * off_NA).sum(1),
        )
        return torch.stack(measures, 1)

    @cached_property
    def _appearance(self) -> tuple[Tensor, Tensor]:
        """The mean of the known images, and the inverse of their covariance."""
        known_KA = self.appearance.double()
        off_KA = known_KA - known_KA.mean(0)
        covariance_AA = off_KA.T @ off_KA / len(off_KA)
        least = _FLOOR * covariance_AA.diagonal().mean() + 1e-9
        return known_KA.mean(0), (covariance_AA + least * torch.eye(len(covariance_AA))).inverse()

    def assess(self, measures: Tensor) -> Assessment:
        """The confidence is the share of held-out images that are at least as unlike what was trained on.

        An image is as unlike as its rarest measure is: the one that the fewest held-out images reach.

        >>> known = Known(torch.zeros(1, 2), torch.zeros(1, 1), torch.arange(1.0, 5).expand(3, -1).T)
        >>> known.assess(torch.tensor([[0.5, 0, 0], [4, 0, 1], [9, 0, 0]])).confidence
        array([1.  , 0.25, 0.  ])
        """
        held_out_H3 = self.held_out.double()
        reached_N, reached_H = (
            (held_out_H3 >= values[:, None]).double().mean(1).amin(1)
            for values in (measures.double(), held_out_H3)
        )
        confidence_N = (reached_H <= reached_N[:, None]).double().mean(1)
        return Assessment(confidence_N.numpy(), *measures.double().T.numpy())


@torch.inference_mode()
def known_of(network: Encoder, trained: Iterable[Tensor], held_out: Iterable[Tensor]) -> Known:
    """What a trained network knows, from batches of prepared images."""
    parts = [(in_halves(network.encode, images), appearance(images)) for images in trained]
    codes_KD, appearance_KA = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    known = Known(codes_KD, appearance_KA, torch.empty(0, 3))
    measures = []
    for images in held_out:
        codes_ND, rectified_NCSS = in_halves(network, images)
        again_ND = in_halves(network.encode, rectified_NCSS.clamp(0, 1))
        measures.append(known.measure(codes_ND, again_ND, images))
    return replace(known, held_out=torch.cat(measures))


def appearance(images_NCSS: Tensor) -> Tensor:
    """Light, contrast, colour and how much detail there is at three scales, (N, A)."""
    images = images_NCSS.double().cpu()
    colour_N = (images - images.mean(1, keepdim=True)).abs().mean((1, 2, 3))
    parts = [images.mean((1, 2, 3)), images.std((1, 2, 3), correction=0), colour_N]
    for _ in range(_SCALES):
        half = F.interpolate(images, size=max(1, images.shape[-1] // 2), mode="area")
        detail = images - F.interpolate(half, size=images.shape[-2:])
        parts += [
            (detail.square().mean((1, 2, 3)) + 1e-5).log(),
            (detail.abs().mean((1, 2, 3)) + 1e-3).log(),
        ]
        images = half
    return torch.stack(parts, 1)


def save_known(known: Known, folder: Path, model_id: str) -> None:
    write_atomically(folder / KNOWN, known_bytes(known, model_id))


def known_bytes(known: Known, model_id: str) -> bytes:
    """The content of the file."""
    tensors = {"codes": known.codes, "appearance": known.appearance, "held_out": known.held_out}
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain, {"model": model_id})


def read_known(folder: Path, model_id: str, code_size: int | None) -> Known | None:
    """What a model knows; None for models of older versions of orbitset."""
    path = folder / KNOWN
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(ordinary(path), "pt") as file:
            of = (file.metadata() or {}).get("model")
            parts = [file.get_tensor(name) for name in ("codes", "appearance", "held_out")]
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {why(error)}") from None
    expected = (code_size, None, 3)
    is_sound = all(
        part.ndim == 2 and len(part) and size in (None, part.shape[1])
        for part, size in zip(parts, expected, strict=True)
    )
    if of != model_id or not is_sound:
        raise RunError(
            f"{path} is not of the model beside it",
            hint="without that file the model works, but states no confidence",
        )
    return Known(*parts)
