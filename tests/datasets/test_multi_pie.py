import pytest
import torch
from PIL import Image

from orbitset.datasets import multi_pie
from orbitset.datasets.decode import load_images
from orbitset.datasets.multi_pie import (
    CAMERAS,
    LIGHTS,
    crop_by_camera,
    path_of,
    scan_multi_pie,
)
from orbitset.datasets.source import open_source
from orbitset.datasets.table import orbit_problems
from orbitset.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        multi_pie, "LIGHTS", LIGHTS[:2]
    )  # a tree of 20 lights takes a while to write


def save(root, *parts, size=(8, 6)):
    path = root / path_of(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (int(parts[0]), int(parts[1]), 0)).save(path)
    return path


@pytest.fixture
def tree(tmp_path):
    """Two subjects in all sessions, one in two of them; also another recording and cameras not used."""
    root = tmp_path / "Multi-Pie" / "data"
    for subject, sessions in (("001", "1234"), ("002", "13"), ("250", "1234")):
        for session in sessions:
            for camera in (*CAMERAS, "08_1", "19_1"):
                for light in LIGHTS[:2]:
                    save(root, subject, f"0{session}", "01", camera.replace("_", ""), light)
    save(root, "001", "01", "02", "051", "00")
    return root


def test_a_whole_tree_has_the_right_counts_and_factors(tree):
    found = scan_multi_pie(tree)
    assert found.subjects == ("001", "250")
    assert len(found.table) == 2 * 4 * 13 * 2
    assert (found.missing, found.unexpected) == ((), ())
    columns = found.table.columns
    assert {name: len(set(values)) for name, values in columns.items()} == {
        "person": 2,
        "session": 4,
        "view": 13,
        "light": 2,
    }
    assert orbit_problems(found.table, ("person", "light", "session"), ("view", "051")) == []
    assert (len(found.table), len(found.subjects), found.missing) == (208, 2, ())


def test_the_designs_numbers_are_the_papers():
    assert len(CAMERAS) * len(LIGHTS) * 4 * 129 == 134_160
    assert CAMERAS[6].replace("_", "") == multi_pie.CANONICAL
    assert not {"08_1", "19_1"} & set(CAMERAS)


def test_pixels_go_with_their_factors(tree):
    seen, _ = load_images(crop_by_camera(scan_multi_pie(tree).table), size_px=4, is_colour=True)
    assert seen.images.shape == (208, 3, 4, 4)
    person = torch.tensor([int(value) for value in seen.values["person"]])[seen.factors["person"]]
    session = torch.tensor([int(value) for value in seen.values["session"]])[
        seen.factors["session"]
    ]
    assert torch.equal(seen.images[:, 0, 1, 1].long(), person)
    assert torch.equal(seen.images[:, 1, 1, 1].long(), session)


def test_subjects_who_missed_a_session_are_named(tree):
    assert scan_multi_pie(tree).incomplete == {"002": ("1", "3")}
    check = open_source(f"multi-pie:{tree}").check()
    assert "in some sessions only, and not used: 002" in check.lines


@pytest.mark.parametrize("spare", ["a", "session00", "z"])
def test_a_second_link_to_a_session_hides_nothing(tree, tmp_path, spare):
    elsewhere = tmp_path / "elsewhere"
    (tree / "session01").rename(elsewhere)
    for name in ("session01", spare):
        (tree / name).symlink_to(elsewhere)
    found = scan_multi_pie(tree)
    assert len(found.table) == 208 and not found.missing


def test_folders_may_be_links_but_no_circle(tree, tmp_path):
    folder = tree / "session01/multiview/250"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    (tree / "session01/again").symlink_to(tree)
    found = scan_multi_pie(tree)
    assert (found.subjects, found.missing, found.unexpected) == (("001", "250"), (), ())


def test_another_session_does_not_stand_in(tree):
    (tree / path_of("001", "01", "01", "051", "00")).unlink()
    save(tree, "001", "11", "01", "051", "00")
    found = scan_multi_pie(tree)
    assert found.missing == (path_of("001", "01", "01", "051", "00"),)
    assert found.unexpected == (path_of("001", "11", "01", "051", "00"),)


def test_missing_images_and_cameras_are_named(tree):
    gone = [path_of("001", "02", "01", "190", light) for light in LIGHTS[:2]]
    for path in gone:
        (tree / path).unlink()
    found = scan_multi_pie(tree)
    assert found.missing == tuple(gone)
    assert len(found.table) == 206


def test_files_without_a_place_are_named(tree):
    (tree / "readme.txt").touch()
    wrong = tree / "session01/multiview/001/01/05_1/001_01_01_050_00.png"
    wrong.touch()
    odd = save(tree, "001", "01", "01", "051", "77")
    fifth = save(tree, "001", "05", "01", "051", "00")
    (tree / "session01/highres").mkdir()
    (tree / "session01/highres/001_01_01_051_00.png").touch()
    assert set(scan_multi_pie(tree).unexpected) == {
        path.relative_to(tree).as_posix() for path in (tree / "readme.txt", wrong, odd, fifth)
    }


def test_unreadable_and_empty_images_are_named(tree):
    empty, broken = (tree / path_of("001", "01", "01", camera, "00") for camera in ("051", "110"))
    empty.write_bytes(b"")
    broken.write_bytes(b"no image")
    table = scan_multi_pie(tree).table
    with pytest.raises(DataError) as caught:
        load_images(table, size_px=4)
    assert "001_01_01_051_00.png is empty: it has 0 bytes" in caught.value.message
    assert "001_01_01_110_00.png cannot be read as an image" in caught.value.message
    seen, left = load_images(table, size_px=4, on_problem="skip")
    assert len(seen) == len(left) == 206


@pytest.mark.parametrize("content", [[], ["a.png"], [path_of("001", "01", "01", "051", "00")]])
def test_folders_without_the_data_set_are_refused(tmp_path, content):
    for name in content:
        path = tmp_path / "other" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with pytest.raises(
        DataError, match=r"is not a folder|no images of Multi-PIE|all four sessions"
    ):
        scan_multi_pie(tmp_path / "other")
