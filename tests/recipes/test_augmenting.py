"""Whether training images are augmented, where the user does not say."""

import pytest
import torch
from PIL import Image

from orbitset.recipes.augmenting import share_near_their_own
from orbitset.recipes.compose import compose
from orbitset.recipes.own_images import OrbitOptions
from orbitset.recipes.request import Request

NETWORK = """
from torch import nn

class Useful(nn.Sequential):
    size_px, mean, sd, is_pretrained = 32, (0.5,) * 3, (0.25,) * 3, True

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""

LONG = 1_500.0
"""Epochs of 18 images"""


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
    composed = compose(Request(source=str(_things(tmp_path, _patches)), epochs=LONG))
    assert composed.config.observed.augmentation is not None
    said = str(composed)
    assert (
        "why augmentation: 100% of sampled training images, changed half as much, stay nearest"
        in said
    )
    plain = compose(Request(source=str(tmp_path), observed=OrbitOptions(augment=False)))
    assert plain.config.observed.augmentation is None and plain.why_augmented is None


def test_images_that_would_become_others_stay_as_they_are(tmp_path):
    composed = compose(Request(source=str(_things(tmp_path, _stripes)), epochs=LONG))
    assert composed.config.observed.augmentation is None
    assert "no augmentation: only " in str(composed)


SHORT = [
    ({"epochs": 9.5}, "with only 171 images shown"),
    ({"epochs": LONG, "minutes": 9.0}, "with a limit of 9 minutes"),
]


@pytest.mark.parametrize(("said", "short"), SHORT)
def test_short_trainings_are_not_augmented_and_their_codes_are_spread(said, short, tmp_path):
    folder = str(_things(tmp_path, _patches))
    composed = compose(Request(source=folder, **said))
    config = composed.config
    assert (config.observed.augmentation, config.encoder.code_norm) == (None, "sphere")
    assert f"no augmentation: {short} it lowers accuracy" in str(composed)
    assert f"(sphere): {short} they would stay nearly alike" in str(composed)
    asked = compose(
        Request(
            source=folder,
            observed=OrbitOptions(augment=True),
            settings=("encoder.code_norm=unit",),
            **said,
        )
    )
    assert asked.config.observed.augmentation is not None and asked.why_spread is None
    assert asked.config.encoder.code_norm == "unit"
    named = compose(Request(source=folder, method="IM+R", **said))
    assert named.config == config
    other = compose(Request(source=folder, method="IN+R", **said))
    assert other.config.encoder.code_norm == "unit"
    longer = compose(Request(source=folder, epochs=LONG, minutes=10.0))
    assert longer.config.encoder.code_norm == "unit" and longer.why_spread is None


def test_trained_weights_keep_their_codes_and_see_images_as_they_are(tmp_path, monkeypatch):
    (tmp_path / "useful_network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    folder = str(_things(tmp_path / "things", _patches))
    composed = compose(Request(source=folder, encoder="useful_network:Useful", epochs=3.0))
    config = composed.config
    assert (config.observed.augmentation, config.encoder.code_norm) == (None, "unit")
    assert "no augmentation: trained weights gain little by it" in str(composed)
    assert config.loss.hard_weight == 1
    asked = Request(
        source=folder, encoder="useful_network:Useful", settings=("loss.hard_weight=2",)
    )
    assert compose(asked).config.loss.hard_weight == 2


def test_what_is_set_of_one_kind_of_change_is_all_that_changes(tmp_path):
    folder = _things(tmp_path, _patches)
    settings = ("orbits.photometric.hue_deg=0",)
    composed = compose(Request(source=str(folder), settings=settings))
    assert composed.config.observed.affine is None and composed.why_augmented is None


def test_the_choice_is_the_same_each_time(tmp_path):
    folder = str(_things(tmp_path, _stripes))
    request = Request(source=folder, epochs=LONG)
    assert str(compose(request)) == str(compose(request))


def test_equal_images_of_different_labels_are_not_told_apart():
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    assert share_near_their_own(images, torch.arange(4)) == 0.25
