"""What a name or a path is, and what it gives."""

import os

import numpy as np
import pytest
from PIL import Image

from orbitset.datasets.decode import Decoding
from orbitset.datasets.source import (
    Folder,
    Heads,
    Manifest,
    MultiPie,
    Outside,
    Plain,
    Shards,
    Single,
    UnknownSource,
    Videos,
    open_source,
)
from orbitset.datasets.table import Grouping
from orbitset.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def touch(*names):
    for name in names:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "wb").close()


@pytest.mark.parametrize(
    ("files", "spec", "kind"),
    [
        (["x/a/1.png", "x/2.png", "x/v.mp4", "x/t.tar"], "x", Folder),
        (["x/1.png", "x/2.JPG", "x/v.mp4"], "x", Plain),
        (["x/manifest.csv", "x/a/1.png"], "x", Manifest),
        (["x/deep/v.mp4", "x/t.tar"], "x", Videos),
        (["x/t.tar", "x/notes.txt"], "x", Shards),
        (["x/train-images-idx3-ubyte.gz", "x/t.tar"], "x", Single),
        (["x.mkv"], "x.mkv", Videos),
        (["x.npz"], "x.npz", Single),
        ([], "x.parquet", Manifest),
        ([], "train-{000..009}.tar", Shards),
        ([], "mnist", Single),
        ([], "digits", Single),
        ([], "heads", Heads),
        ([], "heads:20x6", Heads),
        ([], "multi-pie:somewhere", MultiPie),
        ([], "my_data:images", Outside),
        ([], "pkg.my_data:images", Outside),
    ],
)
def test_a_name_or_path_is_one_kind_of_source(files, spec, kind):
    touch(*files)
    source = open_source(spec)
    assert (type(source), source.spec) == (kind, spec)


@pytest.mark.parametrize("spec", ["nothing", "notes.txt", "x.npy", "my data:images", "a:b:c", "x:"])
def test_what_is_nothing_known_is_refused_with_what_is(spec):
    touch("notes.txt")
    with pytest.raises(UnknownSource, match="is not data that can be read") as caught:
        open_source(spec)
    assert "module:function" in caught.value.hint


def test_a_folder_with_nothing_in_it_says_what_it_could_hold(tmp_path):
    with pytest.raises(UnknownSource, match="there is no image in it, no video, no shard"):
        open_source(str(tmp_path))


def test_a_folder_is_listed_once_until_its_images_are_decoded(tmp_path, monkeypatch):
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / "x" / name)
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or scandir(path))
    source = open_source(str(tmp_path / "x"))
    source.table()
    images, _ = source.load_observed(Grouping(orbit=("orbit",)), Decoding())
    assert len(images) == 4
    assert listed.count(str(tmp_path / "x")) == 1


def test_single_images_are_split(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((20, 4, 4), np.uint8))
    assert len(open_source("digits").load_splits().train) == 997
    assert len(open_source(str(tmp_path / "x.npy")).load_splits().train) == 12
    with pytest.raises(DataError, match=r"with MNIST's idx files, or a \.npy"):
        open_source("heads").load_splits()


def test_observed_images_come_by_the_path_of_their_manifest(face_manifest):
    grouping = Grouping(orbit=("person", "session", "light"), target=("view", "front"))
    images, left_out = open_source(str(face_manifest)).load_observed(grouping, Decoding())
    assert (len(images), left_out) == (144, ())
    assert images.values["view"] == ("front", "left", "right")


def test_sets_of_faces_are_looked_for_under_the_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("ORBITSET_DATA", str(tmp_path))
    with pytest.raises(DataError, match="pie32 is looked for in .*say where it lies with --root"):
        open_source("pie32")
    touch("pie32/manifest.csv")
    assert open_source("pie32").path == tmp_path / "pie32" / "manifest.csv"


def test_what_cannot_be_understood_or_has_no_factors_is_refused():
    for spec in ("heads:many", "heads:20"):
        with pytest.raises(DataError, match=f"{spec} is not understood; give heads:20x6"):
            open_source(spec)
    grouping = Grouping(orbit=("person",))
    with pytest.raises(DataError, match="nowhere is not a folder"):
        open_source("multi-pie:nowhere").load_observed(grouping, Decoding())
    with pytest.raises(DataError, match="is not data with factors; give heads, multi-pie:FOLDER"):
        open_source("digits").load_observed(grouping, Decoding())


def test_an_image_that_cannot_be_decoded_takes_its_orbit_and_nothing_is_decoded_twice(
    tmp_path, monkeypatch
):
    rng = np.random.default_rng(0)
    for orbit in "abc":
        (tmp_path / "x" / orbit).mkdir(parents=True)
        for at in range(2):
            pixels = rng.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "x" / orbit / f"{at}.png")
    (tmp_path / "x" / "b" / "1.png").write_bytes(b"broken")
    opened, real = [], Image.open
    monkeypatch.setattr(Image, "open", lambda file: opened.append(str(file)) or real(file))
    source = open_source(str(tmp_path / "x"))
    decoding = Decoding(size_px=8, on_problem="skip")
    images, left_out = source.load_observed(Grouping(orbit=("orbit",)), decoding)
    assert images.values["orbit"] == ("a", "c") and len(images) == 4
    assert [problem.row for problem in left_out] == [4, 3]
    assert len(opened) == len(set(opened)) == 6
    entries = list((tmp_path / "cache" / "orbitset" / "images").glob("*.u8"))
    assert len(entries) == 1
    for at, name in enumerate(("a/0", "a/1", "c/0", "c/1")):
        with Image.open(tmp_path / "x" / f"{name}.png") as image:
            assert np.array_equal(images.images[at, 0], np.asarray(image))
