"""Orbits computed from single images: each image is the canonical member of its own orbit.

*Fixed* orbits have a finite list of members, stored as parameters, not as pixels; *fresh* orbits draw new
members every time. Both depend on the seed alone, not on the device.

Shapes: N orbits, M members per orbit, B images of a batch, C x S x S canvas, Q parameters of a member.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from orbitset.config import bounded, check_fields
from orbitset.errors import ConfigError, DataError, check_choice
from orbitset.orbits.affine import IDENTITY, AffineRanges, sample_affine, warp
from orbitset.orbits.photometric import (
    NEUTRAL,
    PhotometricRanges,
    apply_photometric,
    draw_photometric,
)
from orbitset.seeds import stream

Mode = Literal["fixed", "fresh"]


@dataclass(frozen=True, kw_only=True)
class OrbitConfig:
    """How orbits are computed from images, and how they are batched."""

    kind: ClassVar[Literal["computed", "observed"]] = "computed"
    mode: Mode = "fixed"
    members: int = bounded(33, at_least=1)
    """Members per orbit, the canonical one included; an epoch shows each once."""
    canvas_px: int = bounded(64, at_least=2)
    orbits_per_batch: int = bounded(64, at_least=1)
    members_per_batch: int = 4
    affine: AffineRanges = field(default_factory=AffineRanges)
    photometric: PhotometricRanges | None = None
    """If set, members also differ in crop, light, colour and focus"""
    is_colour: bool | None = None
    """Whether plain images keep their colours; null keeps them if any image has some"""

    def __post_init__(self) -> None:
        check_fields(self, "orbits")
        if not 1 <= self.members_per_batch <= self.members:
            raise ConfigError(
                f"orbits.members_per_batch is {self.members_per_batch}; "
                f"give 1 to {self.members}, the members an orbit has"
            )

    def showing(self, *, size_px: int, is_colour: bool) -> "OrbitConfig":
        """The same with images of another size."""
        return replace(self, canvas_px=size_px, is_colour=is_colour)


class AffineOrbits:
    """One orbit per image: affine, and with `photometric` ranges photometric too. Images stay uint8, on their
    device.

    >>> images = torch.zeros(10, 1, 8, 8, dtype=torch.uint8)
    >>> orbits = AffineOrbits(images, canvas_px=16, members=5)
    >>> orbits.members(torch.tensor([3, 3, 7]), torch.tensor([0, 1, 4])).shape
    torch.Size([3, 1, 16, 16])
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        canvas_px: int = 64,
        members: int = 33,
        ranges: AffineRanges | None = None,
        photometric: PhotometricRanges | None = None,
        mode: Mode = "fixed",
        seed: int = 0,
    ) -> None:
        check_images(images, labels)
        check_choice("mode", mode, get_args(Mode))
        if members < 1 or canvas_px < 2:
            raise ConfigError(
                f"members is {members} and canvas_px {canvas_px}; give at least 1 and 2"
            )
        self.images_NCHW = images
        self.labels_N = labels
        self.canvas_px = canvas_px
        self.num_members = members
        self.ranges = ranges or AffineRanges()
        self.photometric = photometric
        self.mode = mode
        self.seed = seed
        self._identity = torch.tensor(IDENTITY, device=images.device)
        if mode == "fixed":
            params = self._sample(len(self) * members, stream("orbits", seed))
            params = params.view(len(self), members, -1)
            params[:, 0] = torch.tensor(IDENTITY if photometric is None else (*IDENTITY, *NEUTRAL))
            self.params_NMQ: Tensor | None = params.to(self.device)
        else:
            self.params_NMQ = None

    def __len__(self) -> int:
        return len(self.images_NCHW)

    @property
    def device(self) -> torch.device:
        return self.images_NCHW.device

    def draw(
        self, orbit: Tensor, member: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Parameters (B, Q) of the members; fresh orbits draw new ones from the generator instead."""
        if self.params_NMQ is not None:
            return self.params_NMQ[orbit, member]
        if generator is None:
            raise ValueError("fresh orbits draw their members anew; pass a generator")
        params_BQ = self._sample(len(orbit), generator)
        if self.device.type == "cuda":
            params_BQ = params_BQ.pin_memory()
        return params_BQ.to(self.device, non_blocking=True)

    def _sample(self, num: int, generator: torch.Generator) -> Tensor:
        affine = sample_affine(num, self.ranges, generator)
        if self.photometric is None:
            return affine
        return torch.cat([affine, draw_photometric(num, self.photometric, generator)], 1)

    def show(self, orbit: Tensor, params: Tensor) -> Tensor:
        """The image of each orbit, transformed by its parameters."""
        affine_B5 = params[:, :5].contiguous()
        images = warp(self.images_NCHW, affine_B5, self.canvas_px, rows=orbit)
        if self.photometric is None or params.shape[1] == 5:
            return images
        return apply_photometric(images, params[:, 5:], self.photometric)

    def members(
        self, orbit: Tensor, member: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The images of the members; fresh orbits draw new members from the generator instead."""
        return self.show(orbit, self.draw(orbit, member, generator=generator))

    def canonical(self, orbit: Tensor, drawn: Tensor | None = None) -> Tensor:
        """The original image of each orbit, in the middle of the canvas."""
        del drawn
        return self.show(orbit, self._identity.expand(len(orbit), 5))


def check_images(images_NCHW: Tensor, labels_N: Tensor | None = None) -> None:
    """Refuse images of wrong shape or dtype, fewer than two, and labels of another length."""
    if images_NCHW.ndim != 4 or images_NCHW.shape[1] not in (1, 3) or 0 in images_NCHW.shape[2:]:
        raise DataError(
            f"images have shape {tuple(images_NCHW.shape)}; "
            "give (count, channels, height, width) with 1 or 3 channels"
        )
    if images_NCHW.dtype != torch.uint8:
        raise DataError(
            f"images have dtype {str(images_NCHW.dtype).removeprefix('torch.')}; give uint8, 0 to 255"
        )
    if len(images_NCHW) < 2:
        raise DataError(f"there are {len(images_NCHW)} images; give at least 2")
    if labels_N is not None and labels_N.shape != images_NCHW.shape[:1]:
        raise DataError(
            f"labels have shape {tuple(labels_N.shape)} but there are {len(images_NCHW)} images; "
            "give one label per image"
        )
