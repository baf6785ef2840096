import pytest
import torch

from orbitset.orbits import AffineRanges, ObservedOrbits, OrbitBatches, warp
from orbitset.orbits.affine import IDENTITY
from orbitset.orbits.augmentation import Augmentation
from orbitset.orbits.photometric import NEUTRAL, PARAMETERS, PhotometricRanges, apply_photometric

MODERATE = Augmentation.moderate(16)
GEOMETRY = Augmentation(AffineRanges(), PhotometricRanges(
    brightness=0, contrast=0, saturation=0, hue_deg=0, gamma_max=1, blur_max_px=0, illumination=0,
    noise=0, flip_probability=0.5,
))  # fmt: skip


def some_images(num=6, channels=3, height=16, width=16):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(
        0, 256, (num, channels, height, width), dtype=torch.uint8, generator=generator
    )


def batches_of(augmentation=MODERATE, *, is_streamed=False, seed=0, images=None):
    images = some_images(12) if images is None else images
    orbits = ObservedOrbits(
        images, torch.arange(12) // 4, torch.tensor([0, 4, 8]), is_streamed=is_streamed
    )
    return OrbitBatches(
        orbits, orbits_per_batch=2, members_per_batch=3, augmentation=augmentation, seed=seed
    )


def params_with(**values):
    """One row of parameters that are neutral but for these."""
    affine = dict(zip(("rotation", "shear", "scale", "right", "down"), IDENTITY, strict=True))
    looks = dict(zip(PARAMETERS, NEUTRAL, strict=True))
    row = {**affine, **looks}
    assert values.keys() <= row.keys()
    return torch.tensor([list((row | values).values())])


def test_every_image_is_changed_by_a_draw_of_its_own():
    same = some_images(1).expand(12, -1, -1, -1).contiguous()
    batch = batches_of(images=same).batch(0)
    shown = batch.images.flatten(1)
    distance = torch.cdist(shown, shown)
    assert (distance + torch.eye(len(shown)) > 0.1).all()
    assert batch.images.min() >= 0 and batch.images.max() <= 1


def test_targets_members_and_order_are_those_without_augmentation():
    for index in (0, 1, 5):
        plain, changed = batches_of(None).batch(index), batches_of().batch(index)
        assert torch.equal(plain.orbits, changed.orbits)
        assert torch.equal(plain.canonical, changed.canonical)
        assert plain.seed == changed.seed
        assert not torch.equal(plain.images, changed.images)
    nothing = batches_of(Augmentation()).batch(5)
    assert torch.equal(nothing.images, plain.images)


def test_draws_depend_on_the_seed_and_the_number_of_the_batch_alone():
    batches = batches_of()
    images = [batches.batch(index).images for index in (0, 1, 7)]
    again = batches_of()
    assert torch.equal(again.batch(7).images, images[2])
    assert torch.equal(again.batch(0).images, images[0])
    assert not torch.equal(batches.draw(0).changes, batches.draw(1).changes)
    assert not torch.equal(batches.draw(0).changes, batches_of(seed=1).draw(0).changes)


def test_streamed_images_are_augmented_alike():
    resident, streamed = batches_of(), batches_of(is_streamed=True)
    for index in (0, 1, 2, 9, 9):
        assert torch.equal(resident.batch(index).images, streamed.batch(index).images)
        assert torch.equal(resident.batch(index).canonical, streamed.batch(index).canonical)


def test_the_place_changes_as_the_affine_warp_says_inside_the_image():
    images = some_images(50, height=16, width=16)
    affine = Augmentation(AffineRanges(translation_px=3))
    params = affine.draw(50, torch.Generator().manual_seed(1))
    changed = affine.apply(images.float() / 255, params)
    warped = warp(images, params[:, :5], 16)
    is_inside = warp(torch.full_like(images, 255), params[:, :5], 16) > 0.9999
    assert 0.3 < is_inside.float().mean() < 0.99
    torch.testing.assert_close(changed[is_inside], warped[is_inside], atol=1e-4, rtol=0)


def test_a_crop_and_a_flip_are_those_of_computed_orbits():
    images = some_images(20, height=12, width=18).float() / 255
    ranges = GEOMETRY.photometric
    params = Augmentation(None, ranges).draw(20, torch.Generator().manual_seed(0))
    changed = Augmentation(None, ranges).apply(images, params)
    expected = apply_photometric(images, params[:, 5:], ranges)
    inner = (..., slice(2, -2), slice(2, -2))  # at the border one is mirrored, the other continued
    torch.testing.assert_close(changed[inner], expected[inner], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, lambda image: image),
        ({"flip": 1.0}, lambda image: image.flip(-1)),
        ({"rotation": torch.pi / 2}, lambda image: image.rot90(-1, (2, 3))),
        ({"right": 5.0}, lambda image: torch.cat([image[..., :5].flip(-1), image[..., :-5]], -1)),
        ({"down": -2.0}, lambda image: torch.cat([image[..., 2:, :], image[..., -2:, :].flip(-2)], -2)),
        (
            {"rotation": torch.pi / 2, "flip": 1.0},
            lambda image: image.rot90(-1, (2, 3)).flip(-1),
        ),
    ],
)  # fmt: skip
def test_what_lies_outside_is_mirrored(values, expected):
    image = some_images(1).float() / 255
    changed = GEOMETRY.apply(image, params_with(**values))
    torch.testing.assert_close(changed, expected(image), atol=1e-5, rtol=0)


def test_a_turned_image_is_cropped_after_its_turn():
    image = some_images(1).float() / 255
    crop = {"crop_width": 0.6, "crop_height": 0.8, "crop_x": 0.3, "crop_y": -0.2, "flip": 1.0}
    changed = GEOMETRY.apply(image, params_with(rotation=torch.pi / 2, **crop))
    turned = image.rot90(-1, (2, 3))
    expected = apply_photometric(turned, params_with(**crop)[:, 5:], GEOMETRY.photometric)
    torch.testing.assert_close(changed, expected, atol=1e-5, rtol=0)


def test_a_white_page_stays_white():
    page = torch.ones(8, 1, 20, 20)
    changed = Augmentation(AffineRanges()).apply(
        page, Augmentation(AffineRanges()).draw(8, torch.Generator().manual_seed(0))
    )
    torch.testing.assert_close(changed, page)


def test_what_may_change_is_said():
    assert str(MODERATE) == (
        "turn ±10°, zoom 0.95 to 1.15, shift ±0.8 px, crops of 0.6 to 1 of the area, brightness ±0.3, "
        "hue ±20°, blur up to 1 px"
    )
    assert str(Augmentation(AffineRanges())) == "turn ±90°, zoom 0.7 to 1.3, shift ±15 px"
