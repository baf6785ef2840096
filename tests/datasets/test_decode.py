import os

import numpy as np
import pytest
import torch
from PIL import Image

from orbitset.datasets.decode import load_images
from orbitset.datasets.table import ImageTable
from orbitset.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "orbitset" / "images"


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


@pytest.fixture
def table(tmp_path):
    """Four grey images of 6x6 pixels."""
    rng = np.random.default_rng(0)
    paths = tuple(f"images/{name}.png" for name in "abcd")
    for path in paths:
        save(tmp_path / path, rng.integers(0, 256, (6, 6), dtype=np.uint8))
    return ImageTable("faces.csv", tmp_path, paths, {"person": tuple("xxyy")}, (2, 3, 4, 5))


def pixels(table, at):
    return torch.from_numpy(np.array(Image.open(table.root / table.paths[at])))


def test_images_are_read_as_they_are(table):
    seen, left = load_images(table)
    assert seen.images.shape == (4, 1, 6, 6)
    assert seen.images.dtype == torch.uint8
    assert all(torch.equal(seen.images[at, 0], pixels(table, at)) for at in range(4))
    assert seen.values == {"person": ("x", "y")}
    assert left == table


def test_a_second_call_reads_the_cache(table, cache, monkeypatch):
    first, _ = load_images(table)
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".u8"]
    monkeypatch.setattr(Image, "open", lambda path: pytest.fail("decoded again"))
    second, _ = load_images(table)
    assert torch.equal(first.images, second.images)


def test_writing_to_the_images_does_not_reach_the_cache(table):
    load_images(table)[0].images.zero_()
    assert load_images(table)[0].images.any()


@pytest.mark.parametrize("change", ["pixels", "time", "size_px", "order"])
def test_whatever_changes_is_read_anew(table, cache, change, tmp_path):
    load_images(table)
    options = {}
    if change == "pixels":
        save(tmp_path / table.paths[1], np.zeros((6, 6), dtype=np.uint8))
    if change == "time":
        os.utime(tmp_path / table.paths[1], ns=(1, 1))
    if change == "size_px":
        options["size_px"] = 12
    if change == "order":
        rows = tuple(reversed(table.paths))
        table = ImageTable(table.source, table.root, rows, table.columns, table.rows)
    seen, _ = load_images(table, **options)
    assert len(list(cache.glob("*.json"))) == 2
    if change == "pixels":
        assert not seen.images[1].any()
    if change == "order":
        assert torch.equal(seen.images[0, 0], pixels(table, 0))


def test_a_damaged_cache_is_made_anew(table, cache):
    wanted = load_images(table)[0].images.clone()
    (stored,) = cache.glob("*.u8")
    stored.write_bytes(stored.read_bytes()[:-1])
    assert torch.equal(load_images(table)[0].images, wanted)
    (about,) = cache.glob("*.json")
    about.write_text("{")
    assert torch.equal(load_images(table)[0].images, wanted)


def test_without_a_cache_it_still_works(table, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert torch.equal(load_images(table)[0].images[0, 0], pixels(table, 0))


def break_file(path, how):
    match how:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_bytes(b"not an image")
        case "cut off":
            path.write_bytes(path.read_bytes()[:-30])
        case "gone":
            path.unlink()
        case "larger":
            save(path, np.zeros((8, 6), dtype=np.uint8))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("empty", "images/c.png is empty: it has 0 bytes"),
        ("text", "images/c.png cannot be read as an image"),
        ("cut off", "images/c.png cannot be read as an image"),
        ("gone", "images/c.png cannot be read as an image"),
        ("larger", "images/c.png has 6x8 px, most have 6x6"),
    ],
)
def test_bad_files_are_named_and_stop_or_are_left_out(table, how, reason):
    break_file(table.root / table.paths[2], how)
    for _ in range(2):  # decoded, then from the cache
        with pytest.raises(DataError, match="faces.csv has 1 problem: row 4: ") as caught:
            load_images(table)
        assert reason in caught.value.message
        seen, left = load_images(table, on_problem="skip")
        assert left.paths == (table.paths[0], table.paths[1], table.paths[3])
        assert torch.equal(seen.images[2, 0], pixels(table, 3))
        assert seen.factors["person"].tolist() == [0, 0, 1]
        assert [problem.row for problem in left.left_out] == [4]


def test_a_mended_file_is_noticed(table):
    path = table.root / table.paths[2]
    content = path.read_bytes()
    break_file(path, "text")
    load_images(table, on_problem="skip")
    path.write_bytes(content)
    assert len(load_images(table)[0]) == 4


def test_nothing_readable_is_an_error(table):
    for path in table.paths:
        (table.root / path).write_bytes(b"")
    with pytest.raises(DataError, match="nothing is left"):
        load_images(table, on_problem="skip")


def test_sizes_are_brought_to_one_without_losing_any_part(table):
    save(table.root / table.paths[0], np.full((4, 8), 255, dtype=np.uint8))
    image = load_images(table, size_px=8)[0].images[0, 0]
    assert image.shape == (8, 8)
    assert image[2:6].eq(255).all()
    assert not image[:2].any()
    assert not image[6:].any()


def test_colour_is_kept_or_made_grey(table):
    colour = np.zeros((6, 6, 3), dtype=np.uint8)
    colour[..., 0] = 200
    save(table.root / table.paths[0], colour)
    assert load_images(table, is_colour=True)[0].images[:2, :, 0, 0].tolist() == [
        [200, 0, 0],
        [int(pixels(table, 1)[0, 0])] * 3,
    ]
    assert load_images(table)[0].images[0, 0, 0, 0] == round(200 * 0.299)


def test_sixteen_bits_are_scaled_and_palettes_and_alpha_understood(table):
    save(table.root / table.paths[0], np.full((6, 6), 0x80FF, dtype=np.uint16))
    paletted = Image.fromarray(np.full((6, 6), 77, dtype=np.uint8)).convert("P")
    paletted.save(table.root / table.paths[1])
    alpha = np.full((6, 6, 2), 255, dtype=np.uint8)
    alpha[..., 0] = 99
    save(table.root / table.paths[2], alpha)
    seen, _ = load_images(table)
    assert seen.images[:3, 0, 3, 3].tolist() == [0x80, 77, 99]


def test_images_are_turned_as_the_camera_was_held(table, tmp_path):
    path = table.root / "images" / "a.jpg"
    turned = Image.new("L", (6, 12), 0)
    turned.paste(255, (0, 0, 6, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned clockwise by a quarter to be upright
    turned.save(path, exif=exif, quality=100)
    alone = ImageTable("a", tmp_path, ("images/a.jpg",), {"person": ("x",)}, (2,))
    image = load_images(alone)[0].images[0, 0]
    assert image.shape == (6, 12)
    assert image[:, -2:].min() > 200
    assert image[:, :-4].max() < 50


def test_boxes_are_cut_out(table):
    boxes = ((1.0, 2.0, 5.0, 6.0), (3.0, 3.0, 9.0, 9.0), (7.0, 0.0, 9.0, 2.0), (0.0, 0.0, 4.0, 4.0))
    boxed = ImageTable(table.source, table.root, table.paths, table.columns, table.rows, boxes)
    seen, left = load_images(boxed, size_px=4, on_problem="skip")
    assert torch.equal(seen.images[0, 0], pixels(table, 0)[2:6, 1:5])
    assert [str(problem) for problem in left.left_out] == [
        "row 4: images/c.png has 6x6 px, and its box lies outside"
    ]
    assert len(left.boxes) == 3
    with pytest.raises(ConfigError, match="has boxes; give size_px"):
        load_images(boxed)


def test_progress_is_told(table):
    told = []
    load_images(table, on_progress=lambda done, total: told.append((done, total)))
    assert told == [(4, 4)]


def test_nonsense_is_refused(table):
    with pytest.raises(ConfigError, match="size_px is 1"):
        load_images(table, size_px=1)
    with pytest.raises(DataError, match="names no images"):
        load_images(ImageTable("faces.csv", table.root, (), {}, ()))


def test_what_must_not_be_kept_is_not(table, cache):
    seen, _ = load_images(table, is_cached=False)
    assert torch.equal(seen.images[0, 0], pixels(table, 0))
    assert not cache.exists()


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_of_unknown_scale_are_named(table, dtype):
    path = table.root / "images" / "c.tiff"
    Image.fromarray(np.ones((6, 6), dtype=dtype)).save(path)
    path.rename(table.root / table.paths[2])
    with pytest.raises(DataError, match="row 4: images/c.png has pixels of 32 bits"):
        load_images(table)
