"""What a training learns from, and the images that are held out to judge it.

Orbits are computed from single images, or observed: images with factors say which of them belong together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from orbitset.datasets.decode import Decoding, Progress
from orbitset.datasets.images import ImageSet, Splits, fingerprint
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.segments import VideoConfig
from orbitset.datasets.source import Heads, Plain, Source
from orbitset.datasets.table import Grouping, Problem
from orbitset.encoders import Encoder
from orbitset.errors import DataError, check_choice
from orbitset.evaluation.labelled import Labelled
from orbitset.memory import in_halves
from orbitset.orbits.batches import OrbitBatches
from orbitset.orbits.computed import AffineOrbits, Mode, OrbitConfig
from orbitset.orbits.observed import (
    ObservedConfig,
    ObservedOrbits,
    SeveralClasses,
    choose_targets,
    classes_of_orbits,
    group_orbits,
)
from orbitset.protocols.contract import Encode, Parts
from orbitset.protocols.encoding import ENCODE_BATCH
from orbitset.protocols.exclusions import Exclusion
from orbitset.seeds import stable_seed, stream

Part = Literal["train", "test"]
_SAMPLED = 100


@dataclass
class Opened:
    """A source, and the images that were loaded from it to describe a training, which the training takes."""

    source: Source
    splits: Splits | None = None
    observed: tuple[ObservedImages, tuple[Problem, ...]] | None = None


class ComputedImages:
    """Single images in three parts, whose orbits are computed."""

    unused: str | None = None
    tested_on: str | None = None

    def __init__(
        self,
        source: Source | Opened,
        orbits: OrbitConfig,
        *,
        on: str = "test",
        seed: int = 0,
        evaluation_seed: int = 0,
        is_private: bool = False,
        device: str = "cpu",
    ) -> None:
        """`seed` draws the training's orbits and batches, `evaluation_seed` the held-out orbits."""
        self.config, self.device = orbits, device
        self.evaluation_seed = evaluation_seed
        self.splits = load_parts(source, orbits, on, is_private=is_private)
        train = self.splits.train
        self.image_shape = (train.images.shape[1], orbits.canvas_px)
        self.image_px: int | None = max(train.images.shape[-2:])
        self.left_out = self.splits.left_out
        self._train = self._orbits(train, orbits.mode, stable_seed("train", seed))
        self.batches = OrbitBatches(
            self._train,
            orbits_per_batch=orbits.orbits_per_batch,
            members_per_batch=orbits.members_per_batch,
            seed=seed,
        )

    @property
    def has_labels(self) -> bool:
        return self.splits.test.labels is not None

    @cached_property
    def validation(self) -> AffineOrbits:
        """Orbits of the validation images, the same for every method and training seed."""
        seed = stable_seed("validation", self.evaluation_seed)
        return self._orbits(self.splits.validation, "fixed", seed)

    @cached_property
    def test(self) -> AffineOrbits:
        """Orbits of the test images, the same for every method and training seed."""
        seed = stable_seed("test", self.evaluation_seed)
        return self._orbits(self.splits.test, "fixed", seed)

    def sample(self, part: Part, num: int) -> Iterator[Tensor]:
        """Random images that are trained or tested on, as the network sees them, a few at a time."""
        orbits = self._train if part == "train" else self.test
        generator = stream("sample", part)
        rows = torch.randperm(len(orbits) * orbits.num_members, generator=generator)[:num]
        for some in rows.to(orbits.device).split(_SAMPLED):
            places = some // orbits.num_members, some % orbits.num_members
            yield orbits.members(*places, generator=generator)

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """How many images there are, and a hash of what they hold."""
        parts = (self.splits.train, self.splits.validation, self.splits.test)
        labels = [part.labels for part in parts if part.labels is not None]
        images = [part.images for part in parts]
        return {"images": sum(map(len, parts)), "sha256": fingerprint(*images, *labels)}

    def _orbits(self, images: ImageSet, mode: Mode, seed: int) -> AffineOrbits:
        images = images.to(self.device)
        return AffineOrbits(
            images.images,
            images.labels,
            canvas_px=self.config.canvas_px,
            members=self.config.members,
            ranges=self.config.affine,
            photometric=self.config.photometric,
            mode=mode,
            seed=seed,
        )


def load_parts(
    source: Source | Opened, orbits: OrbitConfig, on: str = "test", *, is_private: bool = False
) -> Splits:
    """The images that an experiment may look at: the test images only if it is evaluated on them."""
    opened = source if isinstance(source, Opened) else Opened(source)
    splits, opened.splits = opened.splits, None
    if splits is None or (isinstance(opened.source, Plain) and not _fits(splits, orbits)):
        splits = opened.source.load_splits(
            Decoding(
                size_px=orbits.canvas_px,
                is_colour=orbits.is_colour,
                on_problem="skip",
                is_cached=not is_private,
            )
        )
    return splits if on == "test" else splits.without_test()


def _fits(splits: Splits, orbits: OrbitConfig) -> bool:
    """Whether plain images were loaded in the size and the colours of an experiment."""
    channels, height, width = splits.train.images.shape[1:]
    return (channels == 3, height, width) == (orbits.is_colour, orbits.canvas_px, orbits.canvas_px)


def grouping(orbits: ObservedConfig, factors: Sequence[str] = ()) -> Grouping:
    """The settings that say which images are one orbit; a source must have these factors, too."""
    return Grouping(
        orbit=orbits.orbit,
        target=orbits.target,
        factors=tuple(dict.fromkeys((*orbits.factors, *factors))),
        min_members=orbits.min_members,
    )


def decoding(
    orbits: ObservedConfig,
    video: VideoConfig | None = None,
    *,
    is_private: bool = False,
    device: str = "cpu",
) -> Decoding:
    """The settings that say how files become pixels. They are among those of orbits, where recorded runs have
    them."""
    return Decoding(
        size_px=orbits.size_px,
        is_colour=orbits.is_colour,
        crops=orbits.crops,
        on_problem=orbits.on_problem,
        video=video or VideoConfig(),
        is_cached=not is_private,
        device=device,
    )


class GroupedImages:
    """Images with factors that a model is evaluated on, side by side, and how they become codes."""

    image_px: int | None = None

    def __init__(
        self,
        images: ObservedImages,
        left_out: Sequence[Problem],
        orbits: ObservedConfig,
        *,
        is_private: bool,
        device: str,
    ) -> None:
        """All of the images are tested on."""
        channels, height, width = images.images.shape[1:]
        if height != width:
            raise DataError(
                f"images have {width}x{height} px; give orbits.size_px, and they are fitted into squares"
            )
        self.config, self.device = orbits, device
        self.is_private = is_private
        self.image_shape = (channels, height)
        self.sides = {"te": images}
        self.left_out = left_out

    @property
    def tested_on(self) -> str | None:
        """How many images and orbits are tested on, in words."""
        test = self.sides["te"]
        orbits = int(group_orbits(dict(test.factors), self.config.orbit)[0].max()) + 1
        return f"{len(test):,} test images of {orbits:,} orbits"

    @property
    def label(self) -> str:
        """The factor that is recognised."""
        assert self.config.label is not None
        return self.config.label

    def orbits_of(self, images: ObservedImages, *, has_classes: bool = False) -> ObservedOrbits:
        config = self.config
        target = None
        if config.target is not None:
            factor, value = config.target
            target = (factor, images.values[factor].index(value))
        orbit_N, canonical_O = group_orbits(dict(images.factors), config.orbit, target)
        if target is None:
            canonical_O = choose_targets(config.chosen, images.images, orbit_N)
        labels_O = None
        if has_classes and config.classes is not None:
            labels_O = _classes(images, config.classes, orbit_N)
        elif self.label in config.orbit:
            labels_O = images.factors[self.label][canonical_O]
        return ObservedOrbits(images.images, orbit_N, canonical_O, labels_O, device=self.device)

    def encode(self, encode: Encode, images: ObservedImages) -> Labelled:
        """Codes of images, with the factor that is recognised as their label."""
        codes = [encode(self.to_input(part)) for part in images.images.split(ENCODE_BATCH)]
        return Labelled(torch.cat(codes), images.factors[self.label].to(codes[0].device))

    def to_input(self, images: Tensor) -> Tensor:
        """The input of the network: float32 between 0 and 1, on the device."""
        return images.to(self.device).float().div_(255)

    def rectify(self, model: Encoder, images: Tensor) -> Tensor:
        return in_halves(model.rectify, self.to_input(images))


class ObservedSplit(GroupedImages):
    """Images with factors in two or three parts, whose orbits share some of the factors."""

    def __init__(
        self,
        source: Source | Opened,
        orbits: ObservedConfig,
        parts: Parts,
        *,
        video: VideoConfig | None = None,
        is_private: bool = False,
        seed: int = 0,
        device: str = "cpu",
        on_progress: Progress | None = None,
    ) -> None:
        """`parts` are the settings of the protocol."""
        opened = source if isinstance(source, Opened) else Opened(source)
        self.source = opened.source
        loaded, opened.observed = opened.observed, None
        excluded = [Exclusion.parse(text).factor for text in parts.exclude]
        images, left_out = loaded or opened.source.load_observed(
            grouping(orbits, (parts.split_by, *excluded, *orbits.ignore)),
            decoding(orbits, video, is_private=is_private, device=device),
            on_progress,
        )
        super().__init__(images, left_out, orbits, is_private=is_private, device=device)
        check_whole_orbits(images, orbits.orbit, parts.split_by)
        self._divide(images, parts)
        self.batches = self._batches(seed)

    def _divide(self, images: ObservedImages, parts: Parts) -> None:
        by = parts.split_by
        values = {
            name: self._present(images, parts, name) for name in ("train", "validation", "test")
        }
        divided = {name: images.where(by, value) for name, value in values.items()}
        self.train = divided["train"]
        is_test_hidden = parts.on == "validation"
        self.sides = {"te": divided["validation" if is_test_hidden else "test"]}
        if parts.validation:
            self.sides["va"] = divided["validation"]
        num_unused = len(images) - sum(map(len, divided.values()))
        used = (*parts.train, *parts.validation, *parts.test)
        self.unused: str | None = None
        if num_unused:
            unused = ", ".join(value for value in images.values[by] if value not in used)
            self.unused = (
                f"{num_unused:,} images are in no part of the split "
                f"and are not used ({by} {unused})"
            )

    def _present(self, images: ObservedImages, parts: Parts, part: str) -> list[str]:
        """The values of a part, without those all of whose images were left out."""
        requested = list(getattr(parts, part))
        present = [value for value in requested if value in images.values.get(parts.split_by, ())]
        return present if self.left_out and (present or not requested) else requested

    def _batches(self, seed: int) -> OrbitBatches:
        config = self.config
        trained = self.orbits_of(self.train, has_classes=config.classes is not None)
        count = config.orbits_per_batch
        if self.left_out:  # there may be fewer orbits than were counted when the batch was chosen
            count = min(count, len(trained))
        return OrbitBatches(
            trained,
            orbits_per_batch=count,
            members_per_batch=config.members_per_batch,
            weighting=config.weighting,
            alike=None if config.alike is None else self._values_of(trained, config.alike),
            alike_values=min(config.alike_values, count),
            augmentation=config.augmentation,
            seed=seed,
        )

    def _values_of(self, trained: ObservedOrbits, factor: str) -> Tensor:
        """The factor that orbits of one part of a batch have in common."""
        value_O = self.train.factors[factor][trained.canonical_row_N.cpu()]
        if len(value_O.unique()) == len(value_O):
            raise DataError(f"no two orbits that are trained on have the same {factor}")
        return value_O

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """How many images there are, and a hash of what they hold; None for rendered heads, which never
        change."""
        if isinstance(self.source, Heads):
            return None
        parts = (self.train, *self.sides.values())
        tensors = [tensor for part in parts for tensor in (part.images, *part.factors.values())]
        return {"images": sum(map(len, parts)), "sha256": fingerprint(*tensors)}

    def sample(self, part: Part, num: int) -> Iterator[Tensor]:
        """Random images that are trained or tested on, as the network sees them, a few at a time."""
        images = self.train.images if part == "train" else self.sides["te"].images
        rows = torch.randperm(len(images), generator=stream("sample", part))[:num]
        for some in rows.to(images.device).split(_SAMPLED):
            yield self.to_input(images[some])


def check_whole_orbits(images: ObservedImages, orbit: tuple[str, ...], split_by: str) -> None:
    """Refuse a split that cuts orbits: part of what is tested on would be trained on."""
    if split_by in orbit:
        return
    orbit_N = group_orbits(dict(images.factors), orbit)[0]
    both = torch.stack([orbit_N, images.factors[split_by]], 1).unique(dim=0)
    cut = (both[:, 0].bincount() > 1).nonzero().squeeze(1)
    if len(cut):
        row = int((orbit_N == cut[0]).nonzero()[0])
        name = ", ".join(
            f"{factor} {images.values[factor][images.factors[factor][row]]}" for factor in orbit
        )
        raise DataError(
            f"{len(cut):,} orbits have members with several values of {split_by}, the first is ({name}): "
            "part of what is tested on would be trained on",
            hint=f"split by a factor that orbits share, or name {split_by} among them",
        )


def _classes(images: ObservedImages, factor: str, orbit_N: Tensor) -> Tensor:
    """The class of each orbit, -1 where none of its members has one."""
    check_choice("orbits.classes", factor, images.values)
    values = images.values[factor]
    class_N = images.known(factor)
    try:
        class_O = classes_of_orbits(class_N, orbit_N)
    except SeveralClasses as error:
        both = sorted(values[int(class_N[row])] for row in error.rows)
        raise DataError(
            f"members of one orbit have the {factor} {' and '.join(both)}; give an orbit one class"
        ) from None
    if class_O.max() < 1:
        raise DataError(
            f"the images that are trained on have {int(class_O.max()) + 1} classes of {factor}; at least 2 "
            "are needed"
        )
    return class_O
