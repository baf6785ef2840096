"""Whether training images are augmented, where the user does not say."""

import torch
from PIL import Image

from orbitset.recipes.augmenting import share_near_their_own
from orbitset.recipes.compose import Request, compose
from orbitset.recipes.own_images import OrbitOptions


def _things(folder, picture, *, things=8, views=3):
    for thing in range(things):
        (folder / f"thing {thing}").mkdir(parents=True)
        for view in range(views):
            picture(thing, view).save(folder / f"thing {thing}" / f"{view}.png")
    return folder


def _patches(thing, view):
    """Each thing has large patches of its own, which no change of light makes another's."""
    pixels = torch.rand(4, 4, 3, generator=torch.Generator().manual_seed(thing)) * 255
    image = Image.fromarray(pixels.byte().numpy())
    return image.resize((64, 64), Image.Resampling.NEAREST).rotate(view)


def _stripes(thing, view):
    """All show one pattern, a little further along or turned by a degree more with each thing."""
    column = torch.arange(64)
    pixels = (((column + thing // 4) // 2) % 2 * 255).expand(64, 64)
    return Image.fromarray(pixels.byte().numpy()).rotate(thing % 4)


def test_images_that_stay_their_own_are_augmented(tmp_path):
    composed = compose(Request(source=str(_things(tmp_path, _patches))))
    assert composed.config.observed.augmentation is not None
    said = str(composed)
    assert (
        "why they change: 100% of sampled images, changed half as much, are nearest to an" in said
    )
    plain = compose(Request(source=str(tmp_path), observed=OrbitOptions(augment=False)))
    assert plain.config.observed.augmentation is None and plain.why_augmented is None


def test_images_that_would_become_others_stay_as_they_are(tmp_path):
    composed = compose(Request(source=str(_things(tmp_path, _stripes))))
    assert composed.config.observed.augmentation is None
    assert "images do not change in training: only " in str(composed)


def test_what_is_set_of_one_kind_of_change_is_all_that_changes(tmp_path):
    folder = _things(tmp_path, _patches)
    settings = ("orbits.photometric.hue_deg=0",)
    composed = compose(Request(source=str(folder), settings=settings))
    assert composed.config.observed.affine is None and composed.why_augmented is None


def test_the_choice_is_the_same_each_time(tmp_path):
    folder = str(_things(tmp_path, _stripes))
    assert str(compose(Request(source=folder))) == str(compose(Request(source=folder)))


def test_equal_images_of_different_labels_are_not_told_apart():
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    assert share_near_their_own(images, torch.arange(4)) == 0.25
