"""Image files as cameras, scanners, web pages and accidents leave them."""

import logging
import os
import struct
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from orbitset.datasets.pictures import ImageForm, Shares, decoded, large_images, size_of
from orbitset.errors import ConfigError

GREY, COLOUR = ImageForm(16), ImageForm(16, is_colour=True)


def _noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _large_png(path, side=10_000):
    """Of one bit a pixel, a few kilobytes."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((side // 8 + 1) * side), 1)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def test_grey_and_colour_are_what_is_wanted_of_either(tmp_path):
    path = tmp_path / "red.png"
    Image.new("RGB", (16, 16), (200, 0, 0)).save(path)
    assert GREY.read(path)[0, 3, 3] == round(200 * 0.299)
    assert COLOUR.read(path)[:, 3, 3].tolist() == [200, 0, 0]
    Image.new("L", (16, 16), 90).save(path)
    assert COLOUR.read(path)[:, 3, 3].tolist() == [90, 90, 90]
    assert GREY.read(path).shape == (1, 16, 16)


def test_images_are_fitted_whole_into_the_middle(tmp_path):
    path = tmp_path / "wide.png"
    Image.new("L", (64, 32), 255).save(path)
    image = GREY.read(path)[0]
    assert (image[4:12] == 255).all() and not image[:4].any() and not image[12:].any()


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (3, 5000), (1, 32), (1, 1)])
def test_nothing_is_too_thin_to_be_seen(tmp_path, size):
    path = tmp_path / "line.png"
    Image.new("L", size, 255).save(path)
    assert GREY.read(path).max() == 255


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("zero.png", b"", "is empty: it has 0 bytes"),
        ("text.jpg", b"to be or not to be", "cannot be read as an image: it is of no known format"),
        ("half.gif", b"GIF89a", "cannot be read as an image"),
        ("half.tif", b"II*\0\x08\0\0\0\x05\0", "cannot be read as an image"),
        (
            "script.jpg",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
            "PostScript",
        ),
    ],
)
def test_what_is_no_image_is_named_with_the_reason(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    assert reason in decoded(tmp_path / name)


def test_files_that_are_not_there_or_no_files_are_named(tmp_path):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "round.png").symlink_to("round.png")
    reason = "cannot be read as an image: "
    assert GREY.read(tmp_path / "gone.png") == f"{reason}No such file or directory"
    assert GREY.read(tmp_path / "folder.png") == f"{reason}Is a directory"
    assert GREY.read(tmp_path / "round.png") == f"{reason}Too many levels of symbolic links"
    assert size_of(tmp_path / "round.png") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read_are_named(tmp_path):
    Image.new("L", (9, 9)).save(tmp_path / "secret.png")
    (tmp_path / "secret.png").chmod(0)
    assert GREY.read(tmp_path / "secret.png") == "cannot be read as an image: Permission denied"


@pytest.mark.parametrize(
    "suffix", ["jpg", "png", "gif", "tif", "webp", "bmp", "ppm", "jp2", "avif"]
)
def test_damage_anywhere_gives_an_image_or_a_reason(tmp_path, suffix):
    if suffix in ("avif", "webp") and not features.check(suffix):
        pytest.skip(f"this Pillow has no {suffix}")
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(_noise(20, 24)).save(path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    with large_images():
        for at in range(40):
            damaged = bytearray(whole)
            for place in rng.integers(0, min(len(whole), 300), 4):
                damaged[place] = rng.integers(0, 256)
            path.write_bytes(damaged if at % 2 else whole[: rng.integers(1, len(whole))])
            found = COLOUR.read(path)
            assert isinstance(found, str) or found.shape == (3, 16, 16)


def test_a_truncated_image_is_not_taken_for_whole(tmp_path):
    for name in ("cut.jpg", "cut.png"):
        Image.fromarray(_noise(40, 40)).save(tmp_path / name)
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        assert "truncated" in GREY.read(tmp_path / name)


@pytest.mark.parametrize("name", ["moving.gif", "moving.png", "pages.tiff", "moving.webp"])
def test_one_of_several_frames_must_be_chosen(tmp_path, name):
    first, second = (Image.fromarray(_noise(8, 8, seed)) for seed in range(2))
    first.save(tmp_path / name, save_all=True, append_images=[second])
    assert GREY.read(tmp_path / name) == "has 2 frames; give one of them"


def test_cameras_that_add_a_preview_do_not_make_a_film(tmp_path):
    first, second = (Image.fromarray(_noise(80, 80, seed)) for seed in range(2))
    first.save(tmp_path / "photo.jpg", "MPO", save_all=True, append_images=[second])
    first.save(tmp_path / "plain.jpg")
    assert (GREY.read(tmp_path / "photo.jpg") == GREY.read(tmp_path / "plain.jpg")).all()


def test_transparent_parts_become_black(tmp_path):
    pixels = np.full((16, 16, 4), 255, np.uint8)
    pixels[:8, :, 3] = 0
    Image.fromarray(pixels).save(tmp_path / "alpha.png")
    paletted = Image.new("P", (16, 16), 1)
    paletted.putpalette([0, 0, 255, 255, 255, 255])
    paletted.paste(0, (0, 0, 16, 8))
    paletted.save(tmp_path / "palette.png", transparency=0)
    keyed = Image.new("RGB", (16, 16), (255, 255, 255))
    keyed.paste((1, 2, 3), (0, 0, 16, 8))
    keyed.save(tmp_path / "key.png", transparency=(1, 2, 3))
    for name in ("alpha.png", "palette.png", "key.png"):
        image = COLOUR.read(tmp_path / name)
        assert not image[:, :8].any() and (image[:, 8:] == 255).all(), name


@pytest.mark.parametrize(
    ("mode", "white"),
    [
        ("1", 1),
        ("LA", (255, 255)),
        ("La", (255, 255)),
        ("RGBa", (255, 255, 255, 255)),
        ("CMYK", (0, 0, 0, 0)),
        ("YCbCr", (255, 128, 128)),
        ("HSV", (0, 0, 255)),
        ("LAB", (255, 128, 128)),
    ],
)
def test_other_colours_are_converted(mode, white):
    for wanted in (GREY, COLOUR):
        assert wanted.fit(Image.new(mode, (16, 16), white)).min() >= 254


def test_scans_in_cmyk_and_lab_are_read(tmp_path):
    Image.new("CMYK", (20, 20), (0, 255, 255, 0)).save(tmp_path / "cmyk.jpg", quality=100)
    assert COLOUR.read(tmp_path / "cmyk.jpg")[:, 8, 8].tolist() == pytest.approx([255, 0, 0], abs=4)
    Image.new("LAB", (20, 20), (255, 128, 128)).save(tmp_path / "lab.tif")
    assert GREY.read(tmp_path / "lab.tif").min() >= 254


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "deep.pgm"])
def test_sixteen_bits_are_scaled(tmp_path, name):
    Image.fromarray(np.full((16, 16), 0x80FF, np.uint16)).save(tmp_path / name)
    assert (GREY.read(tmp_path / name) == 0x80).all()


def test_pixels_of_unknown_scale_are_refused(tmp_path):
    for kind in (np.float32, np.int32):
        Image.fromarray(np.ones((16, 16), kind)).save(tmp_path / "deep.tif")
        assert "has pixels of 32 bits" in GREY.read(tmp_path / "deep.tif")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_the_camera_was_held(tmp_path, orientation):
    path, exif = tmp_path / "a.png", Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(_noise(12, 24)).save(path, exif=exif)
    with Image.open(path) as opened:
        expected = ImageOps.exif_transpose(opened)
    assert np.array_equal(decoded(path), expected)
    assert size_of(path) == expected.size == ((24, 12) if orientation < 5 else (12, 24))


@pytest.mark.parametrize("exif", [b"Exif\0\0MM\0*\0\0\0\x08\0\x05", b"Exif\0\0XX", b"Exif\0\0"])
def test_damaged_exif_data_is_no_reason_not_to_show_an_image(tmp_path, exif):
    for name in ("a.jpg", "a.png", "a.webp"):
        Image.new("RGB", (9, 9)).save(tmp_path / name, exif=exif)
        with large_images():
            assert GREY.read(tmp_path / name).shape == (1, 16, 16)


def test_a_large_png_is_refused_and_a_large_jpeg_read_in_part(tmp_path):
    _large_png(tmp_path / "large.png")
    Image.new("L", (10_000, 10_000), 77).save(tmp_path / "large.jpg")
    with large_images():
        found = GREY.read(tmp_path / "large.png")
        assert found == (
            "has 10000x10000 px, more than 50,000,000; ORBITSET_MAX_PIXELS sets the limit"
        )
        assert decoded(tmp_path / "large.jpg", 16).size == (1250, 1250)
        assert (GREY.read(tmp_path / "large.jpg") == 77).all()
        assert "more than 50,000,000" in decoded(tmp_path / "large.jpg")


def test_the_limit_of_pixels_can_be_set(tmp_path, monkeypatch):
    Image.new("L", (20, 20)).save(tmp_path / "a.png")
    monkeypatch.setenv("ORBITSET_MAX_PIXELS", "399")
    assert GREY.read(tmp_path / "a.png") == (
        "has 20x20 px, more than 399; ORBITSET_MAX_PIXELS sets the limit"
    )
    monkeypatch.setenv("ORBITSET_MAX_PIXELS", "400")
    assert GREY.read(tmp_path / "a.png").shape == (1, 16, 16)
    monkeypatch.setenv("ORBITSET_MAX_PIXELS", "many")
    with pytest.raises(ConfigError, match="ORBITSET_MAX_PIXELS is 'many'; give a number above 0"):
        GREY.read(tmp_path / "a.png")


@pytest.mark.parametrize("edge", [30_000, 1e300])
def test_a_box_that_is_larger_than_images_may_be_is_refused(tmp_path, edge):
    Image.new("L", (16, 16)).save(tmp_path / "a.png")
    reason = GREY.read(tmp_path / "a.png", (0, 0, edge, edge))
    assert reason.startswith("has a box of ") and "more than 50,000,000" in reason
    assert GREY.read(tmp_path / "a.png", (-8, -8, 24, 24)).shape == (1, 16, 16)


def _with_size(path, side):
    """Write another size into the header of a JPEG."""
    content = bytearray(path.read_bytes())
    at = max(content.find(b"\xff\xc0"), content.find(b"\xff\xc2"))
    content[at + 5 : at + 9] = struct.pack(">HH", side, side)
    path.write_bytes(content)


def test_a_progressive_jpeg_counts_as_a_whole_however_small_it_is_decoded(tmp_path):
    for name, is_progressive in (("a.jpg", False), ("b.jpg", True)):
        Image.new("RGB", (16, 16)).save(tmp_path / name, progressive=is_progressive)
        _with_size(tmp_path / name, 20_000)
    with large_images():
        assert "progressive" not in str(GREY.read(tmp_path / "a.jpg"))
        reason = GREY.read(tmp_path / "b.jpg")
    assert reason.startswith(
        "is a progressive JPEG of 20000x20000 px, and decoding it takes 2.4 GB"
    )


def test_a_jpeg_in_several_scans_counts_as_a_progressive_one(tmp_path):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (16, 16)).save(path)
    content = path.read_bytes()
    at = content.index(b"\xff\xda")
    one_component = b"\xff\xda\0\x08\1\1\0\0\x3f\0"
    path.write_bytes(content[:at] + one_component + content[at + 14 :])
    _with_size(path, 20_000)
    with large_images():
        assert GREY.read(path).startswith("is a progressive JPEG")


def test_images_wait_for_memory_until_others_are_fitted(tmp_path, monkeypatch):
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    in_use, fit = [0], ImageForm.fit

    def slow_fit(*inputs):
        in_use.append(in_use[-1] + 1)
        time.sleep(0.01)
        in_use.append(in_use[-1] - 1)
        return fit(*inputs)

    monkeypatch.setattr(ImageForm, "fit", slow_fit)
    for gigabytes, most in (("1e-4", 1), ("1", 4)):
        monkeypatch.setenv("ORBITSET_DECODING_GB", gigabytes)
        in_use[:] = [0]
        with ThreadPoolExecutor(4) as threads:
            images = list(threads.map(GREY.read, [tmp_path / "a.png"] * 8))
        assert all(image.shape == (1, 16, 16) for image in images)
        assert (max(in_use) == 1) == (most == 1)


def test_a_fraction_of_a_jpeg_is_at_least_twice_what_is_wanted(tmp_path):
    Image.fromarray(_noise(100, 300)).save(tmp_path / "a.jpg")
    assert decoded(tmp_path / "a.jpg", 16).size == (150, 50)
    assert decoded(tmp_path / "a.jpg", 64).size == (300, 100)


def test_pillow_is_left_as_it_was_in_whatever_order_it_is_used():
    before, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    first, second = large_images(), large_images()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert Image.MAX_IMAGE_PIXELS is None
    second.__exit__(None, None, None)
    assert before == Image.MAX_IMAGE_PIXELS and warnings.filters == filters
    with pytest.raises(KeyError), large_images():
        raise KeyError
    assert before == Image.MAX_IMAGE_PIXELS and warnings.filters == filters


def test_what_pillow_thinks_of_a_file_reaches_nobody(tmp_path, capfd):
    path = tmp_path / "odd.png"
    paletted = Image.new("P", (16, 16))
    paletted.save(path, transparency=bytes([0, 255]))
    tags = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, 1, 8), (277, 3, 1, 700), (262, 3, 1, 1)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "odd.tif").write_bytes(b"II*\0" + struct.pack("<I", 8) + directory)
    with large_images():
        assert GREY.read(path).shape == (1, 16, 16)
        assert isinstance(GREY.read(tmp_path / "odd.tif"), str)
    assert logging.getLogger("PIL").hasHandlers()
    assert capfd.readouterr().err == ""


def test_boxes_are_cut_out_of_the_whole_image(tmp_path):
    Image.fromarray(_noise(400, 400)).save(tmp_path / "a.png")
    pixels = np.asarray(Image.fromarray(_noise(400, 400)).convert("L"))
    found = GREY.read(tmp_path / "a.png", (100.0, 200.0, 116.0, 216.0))
    assert (found[0] == pixels[200:216, 100:116]).all()
    assert "its box lies outside" in GREY.read(tmp_path / "a.png", (400.0, 0.0, 500.0, 9.0))


@pytest.mark.parametrize("size", [(8, 4), (80, 40)])
def test_shares_are_of_each_image_itself(tmp_path, size):
    image = Image.new("L", size)
    width, height = size
    image.paste(200, (width // 2, height // 2, width, height))
    image.save(tmp_path / "a.png")
    below, above = (
        GREY.read(tmp_path / "a.png", Shares(*box)) for box in ((0.5, 0.5, 1, 1), (0, 0, 0.5, 0.5))
    )
    assert below.max() == 200 and not above.any()
