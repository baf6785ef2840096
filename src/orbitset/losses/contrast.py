"""Objectives of later years than the paper's, on the cosines of codes, each with or without its decoder.

Their terms: `contrast` compares codes; `rectify` is the decoder's, the weighted mean squared error per pixel
value; `temperature` and `bias` are learned beside the network; `memory` is the number of remembered codes
that were compared with. What they remember from step to step is in buffers, which a checkpoint holds.

Shapes: N codes of D entries, M codes in memory, O orbits.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.errors import ConfigError
from orbitset.losses.joint import reconstruction_loss
from orbitset.losses.objective import BatchLike, Objective, Terms
from orbitset.losses.similarity import (
    info_nce_loss,
    multi_similarity_loss,
    orbit_means,
    prototype_loss,
    sigmoid_loss,
    unit_codes,
)
from orbitset.losses.terms import RECTIFY, Term

Compared = tuple[Tensor, Mapping[str, Tensor]]
"""A contrast, and further terms"""
RECTIFY_WEIGHT = 10.0
"""Squared errors per pixel value begin near 0.1, and the contrast is of order 1."""
HARD_WEIGHT = 3.0
"""Of 1, 3 and 10 the best weight beside InfoNCE on the development sets (docs/log.md)"""
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.01, 1.0),
    "momentum": (0.0, 1.0),
    "memory": (0, math.inf),
    "memory_after": (0, math.inf),
}


def check_ranges(settings: Mapping[str, float], group: str = "") -> None:
    """Refuse settings of these objectives that are out of range.

    >>> check_ranges({"temperature": 3.0}, "loss.")
    Traceback (most recent call last):
    orbitset.errors.ConfigError: loss.temperature is 3.0; give a number from 0.01 to 1
    """
    for name, (low, high) in _RANGES.items():
        if not low <= (value := settings.get(name, low)) <= high:
            range_ = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise ConfigError(f"{group}{name} is {value}; give a number {range_}")


class CosineObjective(Objective, ABC):
    """What these objectives share: a learned temperature, and the decoder's term if it has a weight."""

    about_contrast: ClassVar[str]
    about_others: Mapping[str, Term] = MappingProxyType({})

    def __init__(
        self,
        temperature: float,
        learns_temperature: bool,
        rectify_weight: float,
        shapes_codes: bool,
    ) -> None:
        """Without `shapes_codes` the decoder learns from codes as they are, which it does not change."""
        super().__init__()
        self.temperature = Temperature(temperature, is_learned=learns_temperature)
        self.shapes_codes = shapes_codes
        self.rectify_weight, self.uses_rectified = rectify_weight, rectify_weight != 0

    @property
    def about_terms(self) -> dict[str, Term]:
        """What the terms mean, for those who watch a training."""
        contrast = Term(
            self.about_contrast,
            when_silent="the orbits are told apart with certainty; train for less, or with more orbits",
            to_balance="raise --set loss.rectify_weight=…",
        )
        temperature = Term("what cosines are divided by", is_part=False)
        terms = {"contrast": contrast, "temperature": temperature, **self.about_others}
        if self.rectify_weight:
            terms["rectify"] = RECTIFY
        return terms

    @abstractmethod
    def compare(self, codes: Tensor, orbits: Tensor, temperature: Tensor) -> Compared:
        """The contrast of codes, and further terms to show."""

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        temperature = self.temperature()
        contrast, others = self.compare(codes, batch.orbits, temperature)
        terms = {"contrast": contrast, "temperature": temperature.detach(), **others}
        loss = contrast
        for name in (name for name, about in self.about_others.items() if about.is_part):
            loss = loss + others[name]
        if not self.rectify_weight:
            return {"loss": loss, **terms}
        if rectified is None:
            raise ValueError("the rectify term needs the rectified images; pass model(images)[1]")
        num_values = batch.canonical.shape[1:].numel()
        rectify = self.rectify_weight / num_values * reconstruction_loss(rectified, batch.canonical)
        return {"loss": loss + rectify, **terms, "rectify": rectify}


class InfoNCE(CosineObjective):
    """IN: find the orbit of an image among all images of the batch, and the last `memory` images before it.

    The memory is compared with from step `memory_after` on, when codes change less quickly. It holds codes
    without their gradients. `code_size` is needed for it alone.   [memory: Wang et al. 2020]
    """

    about_contrast = "other images of an orbit are nearer than all other images"

    def __init__(
        self,
        *,
        code_size: int | None = None,
        temperature: float = 0.1,
        learns_temperature: bool = True,
        memory: int = 0,
        memory_after: int = 100,
        rectify_weight: float = RECTIFY_WEIGHT,
        shapes_codes: bool = True,
    ) -> None:
        super().__init__(temperature, learns_temperature, rectify_weight, shapes_codes)
        check_ranges({"memory": memory, "memory_after": memory_after})
        if memory and code_size is None:
            raise ConfigError("a memory needs the size of codes; give code_size")
        self.memory = CodeMemory(memory, code_size, memory_after) if memory and code_size else None
        if self.memory is not None:
            self.about_others = {"memory": Term("remembered codes compared with", is_part=False)}

    def compare(self, codes: Tensor, orbits: Tensor, temperature: Tensor) -> Compared:
        if self.memory is None:
            return info_nce_loss(codes, orbits, temperature=temperature), {}
        others, orbits_of_others = self.memory.recalled()
        contrast = info_nce_loss(
            codes,
            orbits,
            temperature=temperature,
            memory=others,
            memory_orbits=orbits_of_others,
        )
        self.memory.store(codes, orbits)
        return contrast, {"memory": (orbits_of_others >= 0).sum()}


class HardInfoNCE(InfoNCE):
    """IM: InfoNCE, and `hard_weight` times the multi-similarity loss, which looks at hard pairs alone.

    InfoNCE orders all pairs of a batch; pairs that are hard to tell decide which image is the nearest.
    """

    about_others = MappingProxyType(
        {
            "hard_pairs": Term(
                "pairs that are hard to tell, times their weight; 0 when none is left",
                when_silent="no pair of a batch is hard to tell any more; InfoNCE learns on alone",
            )
        }
    )

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        learns_temperature: bool = True,
        hard_weight: float = HARD_WEIGHT,
        rectify_weight: float = RECTIFY_WEIGHT,
        shapes_codes: bool = True,
    ) -> None:
        super().__init__(
            temperature=temperature,
            learns_temperature=learns_temperature,
            rectify_weight=rectify_weight,
            shapes_codes=shapes_codes,
        )
        self.hard_weight = hard_weight

    def compare(self, codes: Tensor, orbits: Tensor, temperature: Tensor) -> Compared:
        contrast, _ = super().compare(codes, orbits, temperature)
        return contrast, {"hard_pairs": self.hard_weight * multi_similarity_loss(codes, orbits)}


class SigmoidPairs(CosineObjective):
    """SG: say of every pair of images in the batch whether it shows one orbit, with a learned bias."""

    about_contrast = "every pair of images is of one orbit, or not"
    about_others = MappingProxyType({"bias": Term("what is added to cosines", is_part=False)})

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        learns_temperature: bool = True,
        bias: float = -5.0,
        rectify_weight: float = RECTIFY_WEIGHT,
        shapes_codes: bool = True,
    ) -> None:
        super().__init__(temperature, learns_temperature, rectify_weight, shapes_codes)
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    def compare(self, codes: Tensor, orbits: Tensor, temperature: Tensor) -> Compared:
        contrast = sigmoid_loss(codes, orbits, temperature=temperature, bias=self.bias)
        return contrast, {"bias": self.bias.detach()}


class OrbitPrototypes(CosineObjective):
    """PR: find the orbit of an image among the prototypes of all orbits that were met so far.

    A prototype is a unit vector. At each visit of its orbit, before the loss, it becomes the direction of
    `momentum` times itself plus 1 - `momentum` times the mean direction of the orbit's codes in the batch; at
    the first visit it becomes that mean.
    """

    about_contrast = "the prototype of an image's orbit is nearer than those of others"
    prototypes: Tensor
    is_known: Tensor

    def __init__(
        self,
        *,
        code_size: int,
        num_orbits: int,
        temperature: float = 0.1,
        learns_temperature: bool = True,
        momentum: float = 0.5,
        rectify_weight: float = RECTIFY_WEIGHT,
        shapes_codes: bool = True,
    ) -> None:
        super().__init__(temperature, learns_temperature, rectify_weight, shapes_codes)
        check_ranges({"momentum": momentum})
        self.momentum = momentum
        self.register_buffer("prototypes", torch.zeros(num_orbits, code_size))
        self.register_buffer("is_known", torch.zeros(num_orbits, dtype=torch.bool))

    def compare(self, codes: Tensor, orbits: Tensor, temperature: Tensor) -> Compared:
        self.update(codes, orbits)
        known = self.prototypes, self.is_known
        return prototype_loss(codes, orbits, *known, temperature=temperature), {}

    @torch.no_grad()
    def update(self, codes: Tensor, orbits: Tensor) -> None:
        """Move the prototypes of these orbits towards these codes."""
        means_ND = orbit_means(unit_codes(codes), orbits).to(self.prototypes.dtype)
        moved_ND = self.momentum * self.prototypes[orbits] + (1 - self.momentum) * means_ND
        new_ND = torch.where(self.is_known[orbits][:, None], F.normalize(moved_ND, dim=1), means_ND)
        self.prototypes.index_copy_(0, orbits, new_ND)
        self.is_known.index_fill_(0, orbits, True)


class Temperature(nn.Module):
    """A number from 0.01 to 1, learned by its logarithm, or fixed."""

    log: Tensor

    def __init__(self, start: float, *, is_learned: bool = True) -> None:
        super().__init__()
        check_ranges({"temperature": start})
        log = torch.tensor(math.log(start))
        if is_learned:
            self.log = nn.Parameter(log)
        else:
            self.register_buffer("log", log)

    def forward(self) -> Tensor:
        with torch.no_grad():
            # the value itself: beyond a clamped one there would be no gradient back
            self.log.clamp_(*map(math.log, _RANGES["temperature"]))
        return self.log.exp()


class CodeMemory(nn.Module):
    """The last codes of a training, of length 1 and with their orbits, in a ring."""

    codes: Tensor
    orbits: Tensor
    place: Tensor
    steps: Tensor

    def __init__(self, size: int, code_size: int, after: int) -> None:
        super().__init__()
        self.after = after
        self.register_buffer("codes", torch.zeros(size, code_size))
        self.register_buffer("orbits", torch.full((size,), -1))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def recalled(self) -> tuple[Tensor, Tensor]:
        """Codes (M, D) and orbits (M,), -1 for those that do not count yet."""
        return self.codes, torch.where(self.steps >= self.after, self.orbits, -1)

    @torch.no_grad()
    def store(self, codes_ND: Tensor, orbit_N: Tensor) -> None:
        """Replace the oldest codes by these; of more than fit, the last."""
        size = len(self.orbits)
        last_ND = unit_codes(codes_ND[-size:]).to(self.codes.dtype)
        row_N = (self.place + torch.arange(len(last_ND), device=self.place.device)) % size
        self.codes.index_copy_(0, row_N, last_ND)
        self.orbits.index_copy_(0, row_N, orbit_N[-size:])
        self.place.add_(len(last_ND)).remainder_(size)
        self.steps.add_(1)
