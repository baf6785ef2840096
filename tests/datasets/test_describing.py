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


def test_factors_may_be_known_for_some_images_only(photos):
    kinds = {"cup": "dish", "hat": None}
    path = write_manifest(photos, lambda path: {"orbit": 1, "kind": kinds[_first_word(path)]})
    assert read_manifest(path).columns["kind"] == ("dish", "", "dish")
    found = {"cup": {"orbit": 1}, "hat": {"orbit": 2.5, "worn": True}}
    path = write_manifest(photos, lambda path: found[_first_word(path)], overwrite=True)
    assert read_manifest(path).columns == {"orbit": ("1", "2.5", "1"), "worn": ("", "True", "")}


@pytest.mark.parametrize(
    ("describe", "word"),
    [
        (lambda path: None, "no image in .* was given an orbit"),
        (lambda path: "", "cup_1.png has no orbit and no factor"),
        (lambda path: {"a": None}, "cup_1.png has no orbit and no factor"),
        (lambda path: {}, "cup_1.png has no orbit and no factor"),
        (lambda path: {"path": 1}, "are 'path'; give each its name"),
        (lambda path: {" a": 1, "a": 2}, "are ' a', 'a'; give each its name"),
        (lambda path: {" ": 1}, "give each its name"),
        (
            lambda path: path.stem.split("_"),
            r"the orbit of .*cup_1.png is \['cup', '1'\]; give a text",
        ),
        (lambda path: float("nan"), "is nan; give a text or a number"),
        (lambda path: "a\0b", "cannot be written into a table"),
        (lambda path: 1 / 0, "cup_1.png could not be described: ZeroDivisionError"),
    ],
)
def test_what_describes_nothing_is_refused(photos, describe, word):
    with pytest.raises(DataError, match=word):
        write_manifest(photos, describe)
    assert not (photos / "manifest.csv").exists()


def test_images_lie_below_their_manifest(photos, tmp_path):
    with pytest.raises(DataError, match="does not lie below"):
        write_manifest(photos, _first_word, to=tmp_path / "elsewhere" / "manifest.csv")


def test_links_are_followed(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("ORBITSET_FOLLOW_LINKS", "1")
    Image.new("L", (8, 8)).save(tmp_path / "far.png")
    (photos / "far_1.png").symlink_to(tmp_path / "far.png")
    assert "far_1.png" in read_manifest(write_manifest(photos, _first_word)).paths


@pytest.mark.parametrize("name", ["table.parquet", "a", "folder.csv"])
def test_a_manifest_is_a_csv(photos, name):
    (photos / "folder.csv").mkdir()
    with pytest.raises(DataError, match="let it end in .csv"):
        write_manifest(photos, _first_word, to=photos / name)
