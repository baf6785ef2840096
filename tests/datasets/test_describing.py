import pytest
from PIL import Image

from orbitset.datasets import read_manifest, write_manifest
from orbitset.errors import DataError


@pytest.fixture
def photos(tmp_path):
    for name in ("b/cup_2.png", "a/cup_1.png", "a/hat_1.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def _first_word(path):
    return path.stem.split("_")[0]


def test_a_function_gives_orbits(photos):
    table = read_manifest(write_manifest(photos, _first_word))
    assert table.paths == ("a/cup_1.png", "a/hat_1.png", "b/cup_2.png")
    assert table.columns == {"orbit": ("cup", "hat", "cup")}


def test_a_function_gives_factors_and_leaves_images_out(photos):
    def describe(path):
        if path.parent.name == "b":
            return None
        assert path.is_file()
        return {"thing": _first_word(path), "number": int(path.stem[-1])}

    to = photos.parent / "things, seen.csv"
    table = read_manifest(write_manifest(photos, describe, to=to))
    assert table.paths == ("photos/a/cup_1.png", "photos/a/hat_1.png")
    assert table.columns == {"thing": ("cup", "hat"), "number": ("1", "1")}


def test_what_exists_is_not_replaced_unasked(photos):
    path = write_manifest(photos, _first_word)
    before = path.read_bytes()
    with pytest.raises(DataError, match="exists already"):
        write_manifest(photos, lambda path: "all")
    assert path.read_bytes() == before
    assert "all" in write_manifest(photos, lambda path: "all", overwrite=True).read_text()


@pytest.mark.parametrize(
    ("describe", "word"),
    [
        (lambda path: None, "no image in .* was given an orbit"),
        (lambda path: "", "the orbit of .*cup_1.png is empty"),
        (lambda path: {"a": None}, "the a of .*cup_1.png is empty"),
        (lambda path: {}, "are none"),
        (lambda path: {"path": 1}, "none is named path"),
        (lambda path: {path.stem[:3]: 1}, "has the factors hat, a/cup_1.png has cup"),
    ],
)
def test_what_describes_nothing_is_refused(photos, describe, word):
    with pytest.raises(DataError, match=word):
        write_manifest(photos, describe)
    assert not (photos / "manifest.csv").exists()


def test_images_lie_below_their_manifest(photos, tmp_path):
    with pytest.raises(DataError, match="does not lie below"):
        write_manifest(photos, _first_word, to=tmp_path / "elsewhere" / "manifest.csv")
