"""Whether training images are augmented, where the user does not say.

A pretrained network gains little by it, and a short training loses. For others the images themselves tell.
Augmentation helps where changed images still show their thing, and harms where turning, zooming or
recolouring makes one thing look like another: weights of type, kinds of apples. So a sample of the training
images is changed half as much, and the nearest image of each is looked for.

Shapes: N images of C x H x W.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from orbitset.datasets.decode import load_images
from orbitset.datasets.source import TableSource
from orbitset.orbits.augmentation import Augmentation
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.own_images import OrbitOptions
from orbitset.recipes.short import trained_table
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
    source: TableSource, config: Experiment, short: str | None
) -> tuple[Experiment, str]:
    """The experiment with augmentation if it gains by it, and why, in words. `short` says why it counts as a
    short training."""
    if config.begins_useful:
        return config, "no augmentation: trained weights gain little by it (--augment turns it on)"
    if short is not None:
        return config, f"no augmentation: {short} it lowers accuracy (--augment turns it on)"
    share = share_recognised(source, config)
    words = (
        f"{share:.0%} of sampled training images, changed half as much, stay nearest to an image of their "
        f"{config.observed.label}; it takes {_ENOUGH:.0%}"
    )
    if share < _ENOUGH:
        return config, f"no augmentation: only {words} (--augment turns it on)"
    size_px = config.observed.size_px
    assert size_px is not None
    augmented = replace(config, orbits=config.observed.augmented(size_px))
    return augmented, f"why augmentation: {words} (--no-augment turns it off)"


def share_recognised(source: TableSource, config: Experiment) -> float:
    """The share of half-augmented training images whose nearest image has their label; of a sample."""
    orbits, table = config.observed, trained_table(source, config)
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
