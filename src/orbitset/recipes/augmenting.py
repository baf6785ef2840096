"""Whether training images are augmented, where the user does not say.

A pretrained network gains nothing by it, nor does a training that shows every image a few times. For others
the images themselves tell. Augmentation helps where changed images still show their thing, and harms where
turning, zooming or recolouring makes one thing look like another: weights of type, kinds of apples. So a
sample of the training images is changed half as much, and the nearest image of each is looked for.

Shapes: N images of C x H x W.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from orbitset.datasets.decode import load_images
from orbitset.datasets.source import TableSource
from orbitset.orbits.augmentation import Augmentation
from orbitset.protocols.images import grouping
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.own_images import OrbitOptions
from orbitset.recipes.short import why_short
from orbitset.seeds import stream

_SIZE_PX, _MOST_IMAGES = 32, 600
_STRENGTH, _ENOUGH = 0.5, 0.8
"""The share lies between those of the development sets that lose, at most 0.74, and that gain, at least 0.89
(docs/log.md)"""


def leaves_augmentation_open(options: OrbitOptions, settings: Mapping[str, str]) -> bool:
    """Whether nothing that the user says is about augmentation."""
    is_set = any(name.startswith(("orbits.affine", "orbits.photometric")) for name in settings)
    is_silent = options.augment is None and not is_set
    return is_silent and settings.get("orbits.size_px") != "null"


def with_augmentation(
    source: TableSource, config: Experiment, *, has_time_limit: bool = False
) -> tuple[Experiment, str]:
    """The experiment with augmentation if it gains by it, and why, in words."""
    against = _against(config, has_time_limit=has_time_limit)
    if against is not None:
        return config, f"images do not change in training: {against} (--augment changes them)"
    share = share_that_bears(source, config)
    orbits = config.observed
    alike = f"nearest to an image of their {orbits.label}"
    words = f"{share:.0%} of sampled images, changed half as much, are {alike}"
    if share < _ENOUGH:
        return config, f"images do not change in training: only {words} (--augment changes them)"
    assert orbits.size_px is not None
    augmented = replace(config, orbits=orbits.augmented(orbits.size_px))
    return augmented, f"why they change: {words} (--no-augment leaves them as they are)"


def _against(config: Experiment, *, has_time_limit: bool) -> str | None:
    """Why augmentation would not help, whatever the images are like."""
    if config.begins_useful:
        return "trained weights gain nothing by it"
    short = why_short(config, has_time_limit=has_time_limit)
    return None if short is None else f"{short} loses by it"


def share_that_bears(source: TableSource, config: Experiment) -> float:
    """The share of half-augmented training images whose nearest image has their label; of a sample."""
    orbits, parts = config.observed, config.evaluation
    table = source.cropped(grouping(orbits).usable(source.table(orbits.factors)), orbits.crops)
    table = table.where(parts.split_by, parts.train)
    order = torch.randperm(len(table), generator=stream("images to augment"))
    images, _ = load_images(
        table.at(sorted(order[:_MOST_IMAGES].tolist())),
        size_px=_SIZE_PX,
        is_colour=orbits.is_colour,
        on_problem="skip",
        is_cached=False,
    )
    assert orbits.label is not None
    return share_near_their_own(images.images, images.factors[orbits.label])


def share_near_their_own(images_NCHW: Tensor, label_N: Tensor) -> float:
    """The share of images that, half augmented, are nearest to an image of their label, themselves included.

    >>> greys = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 1, 8, 8)
    >>> share_near_their_own(greys, torch.arange(2))
    1.0
    """
    plain = images_NCHW.float() / 255
    changes = Augmentation.moderate(plain.shape[-1], _STRENGTH)
    changed = changes.apply(plain, changes.draw(len(plain), stream("changes of a sample")))
    nearest_N = torch.cdist(changed.flatten(1), plain.flatten(1)).argmin(1)
    return float((label_N[nearest_N] == label_N).float().mean())
