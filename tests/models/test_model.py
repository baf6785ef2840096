"""Images in whatever form they come."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from orbitset.errors import DataError
from orbitset.models import model as models

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (3, 16, 16), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def grey(build_model):
    return build_model()


@pytest.fixture(scope="module")
def colour(build_model):
    return build_model(channels=3)


@pytest.fixture
def saved(tmp_path):
    """Arrays as the PNG files that hold them."""

    def save(arrays):
        paths = [tmp_path / f"{at}.png" for at in range(len(arrays))]
        for path, array in zip(paths, arrays, strict=True):
            Image.fromarray(array).save(path)
        return paths

    return save


@pytest.mark.parametrize("images", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("size_px", [16, 40])
def test_files_pillow_images_and_arrays_are_one(grey, colour, saved, images, size_px):
    images = np.stack([np.asarray(Image.fromarray(one).resize((size_px, 30))) for one in images])
    paths = saved(images)
    pillow = [Image.fromarray(one) for one in images]
    for model in (grey, colour):
        wanted = model.embed(paths)
        assert wanted.shape == (3, 16) and wanted.dtype == np.float32
        forms = [list(map(str, paths)), pillow, tuple(pillow), iter(pillow), np.array(paths)]
        forms += [images, torch.from_numpy(images), images / 255, (images / 255).astype(np.float32)]
        first = images[..., None] if images.ndim == 3 else images
        forms += [first, first.transpose(0, 3, 1, 2), torch.from_numpy(first).permute(0, 3, 1, 2)]
        for form in forms:
            assert np.abs(model.embed(form) - wanted).max() < 1e-5


def test_one_image_may_stand_alone(grey, saved):
    (path,) = saved(GREY[:1])
    assert grey.embed(path).shape == grey.embed(str(path)).shape == (1, 16)
    assert grey.embed(Image.fromarray(GREY[0])).shape == (1, 16)
    assert grey.rectify(path).shape == (1, 16, 16)


def test_nothing_gives_nothing(grey, colour):
    for empty in (
        [],
        np.empty((0, 16, 16), np.uint8),
        np.empty((0, 3, 9, 9)),
        torch.empty(0, 5, 5),
    ):
        assert grey.embed(empty).shape == (0, 16)
        assert grey.rectify(empty).shape == (0, 16, 16)
        assert colour.rectify(empty).shape == (0, 16, 16, 3)
    assert grey.distances([], []).shape == (0,)


def test_a_network_is_shown_no_empty_batch(grey, monkeypatch):
    monkeypatch.setattr(grey, "network", None)
    assert grey.embed(GREY[:0]).shape == (0, 16) and grey.rectify(GREY[:0]).shape == (0, 16, 16)


def test_floats_of_the_right_size_are_not_rounded(grey):
    images = RNG.random((2, 1, 16, 16))
    for kind in (np.float64, np.float32, np.float16):
        prepared = grey.prepare(images.astype(kind))
        assert prepared.dtype == torch.float32
        assert np.array_equal(prepared.numpy(), images.astype(kind).astype(np.float32))
    assert grey.embed(torch.from_numpy(images).bfloat16()).shape == (2, 16)


def test_arrays_that_torch_dislikes_are_taken_without_a_word(grey):
    wanted = grey.embed(GREY)
    read_only = GREY.copy()
    read_only.flags.writeable = False
    backwards = GREY[:, ::-1][:, ::-1]
    other_end = (GREY / 255).astype(">f4")
    needs_gradient = torch.from_numpy(GREY / 255).requires_grad_()
    for form in (read_only, backwards, np.asfortranarray(GREY), other_end, needs_gradient):
        assert np.abs(grey.embed(form) - wanted).max() < 1e-5
    assert np.array_equal(grey.embed(GREY[::-1]), wanted[::-1])


@pytest.mark.parametrize(
    ("images", "error", "reason"),
    [
        (GREY[0], ValueError, r"shape \(16, 16\); give \(N, H, W\)"),
        (
            COLOUR[0],
            ValueError,
            r"\(16, 16, 3\), which looks like one in colour; give images\[None\]",
        ),
        (np.zeros((2, 16, 16, 4), np.uint8), ValueError, "with 1 or 3 channels"),
        (np.zeros((1, 2, 3, 4, 5), np.uint8), ValueError, "give"),
        (np.zeros((2, 0, 5), np.uint8), ValueError, "and so no pixels"),
        (GREY.astype(np.int64), TypeError, "dtype int64; give uint8, or floats"),
        (GREY.astype(np.uint16), TypeError, "dtype uint16"),
        (GREY > 9, TypeError, "dtype bool"),
        (GREY.astype(np.complex64), TypeError, "dtype complex64"),
        (GREY.astype(np.float32), ValueError, r"outside \[0, 1\]"),
        (GREY / 255 - 0.5, ValueError, r"outside \[0, 1\]"),
        (GREY * np.nan, ValueError, "NaN"),
        ([GREY[0]], TypeError, "an image is a ndarray; give paths, Pillow images, or one array"),
        ([b"a.png"], TypeError, "an image is a bytes"),
        (None, TypeError, "NoneType"),
    ],
)
def test_what_is_no_image_is_refused(grey, images, error, reason):
    with pytest.raises(error, match=reason):
        grey.embed(images)


def test_files_that_cannot_be_read_are_named(grey, tmp_path):
    (tmp_path / "empty.png").touch()
    for name, reason in (
        ("empty.png", "is empty"),
        ("gone.png", "No such file"),
        (".", "directory"),
    ):
        with pytest.raises(DataError, match=reason):
            grey.embed([tmp_path / name])


def test_pillow_images_are_refused_for_what_files_are(grey, tmp_path):
    frames = [Image.fromarray(one) for one in GREY]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    content = (tmp_path / "film.gif").read_bytes()
    with (
        Image.open(tmp_path / "film.gif") as film,
        pytest.raises(DataError, match="image 1 has 3 frames"),
    ):
        grey.embed([frames[0], film])
    with pytest.raises(DataError, match="image 0 has pixels of 32 bits"):
        grey.embed(Image.new("F", (16, 16)))
    frames[0].save(tmp_path / "cut.png")
    content = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with (
        Image.open(tmp_path / "cut.png") as cut,
        pytest.raises(DataError, match="image 0 cannot be read as an image"),
    ):
        grey.embed(cut)


def test_a_pillow_image_is_turned_as_its_file_is(grey, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(GREY[0]).save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as opened:
        assert np.array_equal(grey.embed(opened), grey.embed(tmp_path / "a.png"))


def test_images_lie_in_the_middle_of_the_canvas(build_model, saved):
    model = build_model(image_px=11)
    white = np.full((1, 11, 11), 255, np.uint8)
    for form in (white, saved(white), white / 255, np.full((1, 30, 30), 255, np.uint8)):
        shown = model.prepare(form)[0, 0]
        assert shown.shape == (16, 16)
        assert shown[2:13, 2:13].eq(1).all() and shown.sum() == 121
    assert model.embed(white).shape == (1, 16)


def test_images_are_taken_one_at_a_time_where_no_more_fit(grey, monkeypatch):
    expected = grey.embed(GREY), grey.rectify(GREY)
    forward = torch.nn.functional.conv2d

    def scarce(inputs, *arguments, **options):
        if len(inputs) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(inputs, *arguments, **options)

    monkeypatch.setattr("torch.nn.functional.conv2d", scarce)
    assert np.abs(grey.embed(GREY) - expected[0]).max() < 1e-4
    assert np.abs(grey.rectify(GREY).astype(int) - expected[1]).max() <= 1


def test_rectified_images_are_pixels(grey, colour):
    for model, shape in ((grey, (3, 16, 16)), (colour, (3, 16, 16, 3))):
        rectified = model.rectify(GREY)
        assert rectified.shape == shape and rectified.dtype == np.uint8
        pixels = model.prepare(GREY).mul(255).byte().numpy()
        assert np.array_equal(model.rectify_prepared(pixels), rectified)


def test_many_images_go_through_in_parts(grey, monkeypatch):
    images = RNG.integers(0, 256, (20, 16, 16), dtype=np.uint8)
    whole = grey.embed(images)
    monkeypatch.setattr(models, "_BATCH", 3)
    assert np.abs(grey.embed(images) - whole).max() < 1e-5
    assert len(grey.rectify(images)) == 20


def test_distances_are_of_pairs(grey):
    codes = grey.embed(GREY).astype(np.float64)
    assert grey.distances(GREY, GREY).tolist() == [0, 0, 0]
    expected = np.square(codes[:2] - codes[1:]).sum(1)
    assert grey.distances(GREY[:2], GREY[1:]) == pytest.approx(expected, rel=1e-3)
    with pytest.raises(ValueError, match="there are 1 and 3 images; give as many of both"):
        grey.distances(GREY[:1], GREY)


def test_bfloat16_is_near_and_other_words_are_refused(grey):
    exact, rounded = grey.embed(GREY), grey.embed(GREY, precision="bfloat16")
    assert rounded.dtype == np.float32
    assert 0 < np.abs(exact - rounded).max() < 0.1
    with pytest.raises(ValueError, match="precision is 'half'"):
        grey.embed(GREY, precision="half")


def test_it_says_what_it_is(grey):
    assert grey.id == "untrained" and grey.code_size == 16
    assert grey.device.type == "cpu" and grey.form.size_px == 16


def test_pillow_is_left_as_it_was(grey, saved):
    before, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    grey.embed(saved(GREY))
    with pytest.raises(DataError):
        grey.embed("gone.png")
    assert before == Image.MAX_IMAGE_PIXELS and warnings.filters == filters
