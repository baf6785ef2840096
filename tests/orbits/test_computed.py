import pytest
import torch

from orbitset.errors import ConfigError, DataError
from orbitset.orbits.affine import IDENTITY, AffineRanges, warp
from orbitset.orbits.computed import AffineOrbits, OrbitConfig
from orbitset.orbits.photometric import PhotometricRanges

NO_CHANGES = PhotometricRanges(
    crop_area_min=1, brightness=0, contrast=0, gamma_max=1, saturation=0, hue_deg=0, blur_max_px=0,
    illumination=0, noise=0,
)  # fmt: skip


def random_images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def orbits_of(images, **options):
    options = {"canvas_px": 12, "members": 5, "ranges": AffineRanges(translation_px=2), **options}
    return AffineOrbits(images, **options)


def all_members(orbits):
    orbit = torch.arange(len(orbits)).repeat_interleave(orbits.num_members)
    return orbits.members(orbit, torch.arange(orbits.num_members).repeat(len(orbits)))


def test_fixed_orbits_are_equal_for_equal_seeds_and_differ_otherwise():
    images = random_images(3, 1, 8, 8)
    first, again, other = (all_members(orbits_of(images, seed=s)) for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_fixed_orbits_ignore_the_global_random_state():
    images = random_images(3, 1, 8, 8)
    torch.manual_seed(0)
    first = all_members(orbits_of(images))
    torch.manual_seed(1)
    assert torch.equal(first, all_members(orbits_of(images)))


def test_fixed_orbits_do_not_depend_on_the_images():
    params = [orbits_of(random_images(4, 1, 8, 8, seed=s), seed=3).params_NMQ for s in (0, 1)]
    assert torch.equal(params[0], params[1])


def test_fixed_members_do_not_depend_on_what_is_asked_beside_them_or_before():
    orbits = orbits_of(random_images(4, 1, 8, 8))
    whole = all_members(orbits).unflatten(0, (4, 5))
    some = orbits.members(torch.tensor([3, 0, 3]), torch.tensor([4, 2, 0]))
    torch.testing.assert_close(some, whole[[3, 0, 3], [4, 2, 0]], atol=1e-6, rtol=0)


def test_member_0_is_the_canonical_image():
    images = random_images(4, 3, 8, 8)
    orbits = orbits_of(images)
    every = torch.arange(4)
    first = orbits.members(every, torch.zeros(4, dtype=torch.int64))
    assert torch.equal(first, orbits.canonical(every))
    assert torch.equal(first, warp(images, torch.tensor([IDENTITY] * 4), 12))


def test_canonical_images_lie_unmoved_in_the_middle():
    images = random_images(3, 1, 8, 8)
    expected = torch.zeros(2, 1, 12, 12)
    expected[..., 2:10, 2:10] = images[[2, 0]] / 255
    shown = orbits_of(images).canonical(torch.tensor([2, 0]))
    torch.testing.assert_close(shown, expected, atol=1e-5, rtol=0)


def test_all_members_of_all_orbits_have_parameters_of_their_own():
    params = orbits_of(random_images(6, 1, 8, 8)).params_NMQ
    assert params.shape == (6, 5, 5)
    assert len(params[:, 1:].reshape(-1, 5).unique(dim=0)) == 6 * 4


def test_members_show_the_image_of_their_orbit():
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    images[1] = 255
    bright = all_members(orbits_of(images)).unflatten(0, (3, 5)).amax((2, 3, 4))
    assert (bright[[0, 2]] == 0).all()
    assert (bright[1] > 0.5).all()


def test_fresh_members_are_equal_for_equal_generators_and_differ_otherwise():
    orbits = orbits_of(random_images(3, 1, 8, 8), mode="fresh")
    orbit, member = torch.tensor([0, 0, 2]), torch.tensor([0, 1, 4])
    first, again, other = (
        orbits.members(orbit, member, generator=torch.Generator().manual_seed(s)) for s in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])


def test_fresh_orbits_keep_no_parameters_and_have_the_same_canonical_images():
    images = random_images(3, 1, 8, 8)
    fresh, fixed = orbits_of(images, mode="fresh"), orbits_of(images)
    assert fresh.params_NMQ is None
    assert torch.equal(fresh.canonical(torch.arange(3)), fixed.canonical(torch.arange(3)))


def test_fresh_members_without_a_generator_are_an_error():
    orbits = orbits_of(random_images(3, 1, 8, 8), mode="fresh")
    with pytest.raises(ValueError, match="pass a generator"):
        orbits.members(torch.tensor([0]), torch.tensor([1]))


def test_ranges_of_the_paper_are_the_default():
    assert AffineOrbits(random_images(2, 1, 8, 8)).ranges == AffineRanges()


@pytest.mark.parametrize("shape", [(8, 8), (4, 8, 8), (4, 2, 8, 8), (4, 8, 8, 3), (4, 1, 8, 8, 1)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(
        DataError, match=r"images have shape \(.*\); give \(count, channels"
    ) as info:
        AffineOrbits(torch.zeros(shape, dtype=torch.uint8))
    assert str(shape) in str(info.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_images_of_another_dtype_are_refused(dtype):
    with pytest.raises(DataError, match=r"images have dtype (float32|int64|bool); give uint8"):
        AffineOrbits(torch.zeros(4, 1, 8, 8, dtype=dtype))


@pytest.mark.parametrize("num", [0, 1])
def test_fewer_than_two_images_are_refused(num):
    with pytest.raises(DataError, match=f"there are {num} images; give at least 2"):
        AffineOrbits(torch.zeros(num, 1, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize("shape", [(3,), (5,), (4, 1), ()])
def test_labels_of_another_length_are_refused(shape):
    with pytest.raises(DataError, match=r"labels have shape .* but there are 4 images"):
        AffineOrbits(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(shape).long())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "other"}, "orbits.mode is 'other'; choose one of fixed, fresh"),
        ({"members": 0}, "orbits.members is 0; give at least 1"),
        ({"members_per_batch": 0}, "orbits.members_per_batch is 0; give 1 to 33"),
        ({"members": 5, "members_per_batch": 6}, "orbits.members_per_batch is 6; give 1 to 5"),
        ({"orbits_per_batch": 0}, "orbits.orbits_per_batch is 0; give at least 1"),
        ({"canvas_px": 1}, "orbits.canvas_px is 1; give at least 2"),
    ],
)
def test_orbit_settings_out_of_range_are_refused(settings, text):
    with pytest.raises(ConfigError) as info:
        OrbitConfig(**settings)
    assert str(info.value).startswith(text)


def test_photometric_orbits_change_members_and_leave_the_canonical_image(random_photos):
    orbits = AffineOrbits(
        random_photos, canvas_px=16, members=4, photometric=PhotometricRanges(), seed=1
    )
    orbit = torch.arange(5)
    canonical = orbits.canonical(orbit)
    torch.testing.assert_close(canonical, random_photos.float() / 255)
    assert torch.equal(orbits.members(orbit, torch.zeros_like(orbit)), canonical)
    first, second = (orbits.members(orbit, torch.full_like(orbit, n)) for n in (1, 2))
    assert (first - second).abs().mean() > 0.05
    assert first.min() >= 0 and first.max() <= 1


def test_photometric_members_are_the_affine_ones_changed(random_photos):
    """Ranges that change nothing leave what the affine orbit shows."""
    same = {"canvas_px": 16, "mode": "fresh"}
    plain = AffineOrbits(random_photos, **same)
    neutral = AffineOrbits(random_photos, **same, photometric=NO_CHANGES)
    orbit = torch.arange(5)
    drawn = neutral.draw(orbit, orbit, generator=torch.Generator().manual_seed(3))
    assert torch.equal(neutral.show(orbit, drawn), plain.show(orbit, drawn[:, :5]).clamp(0, 1))


@pytest.fixture
def random_photos():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (5, 3, 16, 16), generator=generator).to(torch.uint8)


def test_orbits_have_the_defaults_of_their_configuration():
    orbits, config = AffineOrbits(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)), OrbitConfig()
    assert (orbits.canvas_px, orbits.num_members) == (config.canvas_px, config.members)
    assert (orbits.mode, orbits.ranges) == (config.mode, config.affine)
