import numpy as np
import pytest

from orbitset.datasets.named import load_observed, load_splits, manifest_of
from orbitset.errors import DataError


def test_data_are_found_by_name_and_by_path(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((20, 4, 4), np.uint8))
    assert len(load_splits("digits").train) == 997
    assert len(load_splits(str(tmp_path / "x.npy")).train) == 12


def test_what_cannot_be_read_is_an_error_that_says_what_can(tmp_path):
    with pytest.raises(DataError, match=r"with MNIST's idx files, or a \.npy"):
        load_splits(str(tmp_path))


def test_observed_images_come_by_the_path_of_their_manifest(face_manifest, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    orbit = ("person", "session", "light")
    seen, left_out = load_observed(str(face_manifest), orbit=orbit, target=("view", "front"))
    assert (len(seen), left_out) == (144, ())
    assert seen.values["view"] == ("front", "left", "right")


def test_sets_of_faces_are_looked_for_under_the_data_root(face_manifest, tmp_path, monkeypatch):
    monkeypatch.setenv("ORBITSET_DATA", str(tmp_path))
    with pytest.raises(DataError, match="pie32 is looked for in .*say where it lies with --root"):
        load_observed("pie32", orbit=("identity",))
    (tmp_path / "pie32").mkdir()
    (tmp_path / "pie32" / "manifest.csv").touch()
    assert manifest_of("pie32") == tmp_path / "pie32" / "manifest.csv"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("faces", "is not data with factors; give heads, multi-pie:FOLDER, pie32"),
        ("heads:many", "heads:many is not understood; give heads:20x6"),
        ("heads:20", "heads:20 is not understood"),
        ("multi-pie:nowhere", "nowhere is not a folder"),
    ],
)
def test_what_is_no_observed_data_is_refused(data, message):
    with pytest.raises(DataError, match=message):
        load_observed(data, orbit=("person",))
