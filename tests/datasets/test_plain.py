import numpy as np
import pytest
from PIL import Image

from orbitset.datasets.decode import Decoding
from orbitset.datasets.source import Folder, Manifest, Plain, open_source
from orbitset.errors import DataError


def load_splits(folder, size_px=None, is_colour=None):
    decoding = Decoding(size_px=size_px, is_colour=is_colour, on_problem="skip")
    return open_source(str(folder)).load_splits(decoding)


@pytest.fixture
def album(tmp_path, monkeypatch):
    """Forty colour images of two sizes, one broken, and a text beside them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "album"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(40):
        pixels = rng.integers(0, 255, (20, 24 + 8 * (number % 2), 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "40.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("not an image")
    return folder


def test_a_folder_is_plain_if_all_its_images_lie_in_itself(album, photos):
    assert isinstance(open_source(str(album)), Plain)
    assert isinstance(open_source(str(photos)), Folder)
    (album / "more").mkdir()
    Image.new("RGB", (8, 8)).save(album / "more" / "1.png")
    assert isinstance(open_source(str(album)), Folder)


def test_a_manifest_says_what_images_are(album):
    (album / "manifest.csv").write_text("path,orbit\n0.png,a\n1.png,a\n")
    assert isinstance(open_source(str(album)), Manifest)


def test_every_image_is_in_one_part_and_what_is_broken_is_named(album):
    splits = load_splits(album, size_px=16)
    parts = (splits.train, splits.validation, splits.test)
    assert sum(map(len, parts)) == 40
    assert min(map(len, parts)) >= 2
    assert {tuple(part.images.shape[1:]) for part in parts} == {(3, 16, 16)}
    assert [problem.row for problem in splits.left_out] == [41]
    assert "40.png" in splits.left_out[0].reason


def test_the_size_is_chosen_from_the_images(album):
    assert load_splits(album).train.images.shape[-1] == 32


def test_more_images_move_none_from_one_part_to_another(album):
    before = set(load_splits(album, size_px=32).test.images.sum((1, 2, 3)).tolist())
    Image.new("RGB", (24, 20), "red").save(album / "another.png")
    after = load_splits(album, size_px=32)
    assert before <= set(after.test.images.sum((1, 2, 3)).tolist())


def test_too_few_images_are_refused(album):
    for number in range(12, 40):
        (album / f"{number}.png").unlink()
    with pytest.raises(DataError, match="has 12 images that can be used, too few"):
        load_splits(album)


def test_colours_are_kept_or_not_as_asked(album):
    assert load_splits(album, is_colour=False).train.images.shape[1] == 1
