"""Which images a folder holds, and in which order."""

import os

import pytest

from orbitset.datasets.folder import list_folder
from orbitset.errors import DataError


@pytest.fixture
def folder(tmp_path):
    """Empty files by their names; nothing is decoded here."""

    def make(*names, root=tmp_path / "photos"):
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        return root

    return make


def test_sub_folders_are_orbits_and_numbers_are_counted(folder):
    root = folder("b/img10.png", "b/img2.png", "b/IMG1.PNG", "a/x.jpeg", "a/deep/y.webp", "top.gif")
    found = list_folder(root).images
    names = ["top.gif", "a/x.jpeg", "a/deep/y.webp", "b/IMG1.PNG", "b/img2.png", "b/img10.png"]
    assert list(found.table.paths) == names
    assert found.table.columns["orbit"] == ("", "a", "a/deep", "b", "b", "b")
    assert found.table.rows == (1, 2, 3, 4, 5, 6)


def test_names_that_count_the_same_have_an_order_of_their_own(folder):
    root = folder("a1.png", "a001.png", "a01.png", "a2.png")
    assert list_folder(root).images.table.paths == ("a001.png", "a01.png", "a1.png", "a2.png")


def test_what_is_hidden_is_left_aside_and_what_is_no_image_is_named(folder):
    root = folder("a.png", ".hidden.png", ".thumbs/b.png", "notes.txt", "sub/Thumbs.db")
    found = list_folder(root).images
    assert found.table.paths == ("a.png",)
    assert found.ignored == ("notes.txt", "sub/Thumbs.db")


def test_a_folder_may_be_called_like_an_image(folder):
    root = folder("x.png/inside.jpg")
    assert list_folder(root).images.table.paths == ("x.png/inside.jpg",)


def test_links_are_followed_once_and_never_round(folder, tmp_path):
    root = folder("real/a.png")
    elsewhere = folder("c.png", root=tmp_path / "elsewhere")
    (root / "up").symlink_to("..")
    (root / "self").symlink_to(".")
    (root / "twin").symlink_to("real")
    (root / "loop.png").symlink_to("loop.png")
    (root / "linked").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(root)
    assert list_folder(root).images.table.paths == ("loop.png", "linked/c.png", "real/a.png")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(folder):
    root = folder("a.png", "secret/b.png")
    (root / "secret").chmod(0)
    found = list_folder(root).images
    (root / "secret").chmod(0o700)
    assert found.ignored == ("secret",)


def test_holding_images_means_finding_them(folder):
    root = folder("notes.txt", ".thumbs/a.png")
    assert list_folder(root).ending_in({".txt"}) == ["notes.txt"]
    with pytest.raises(DataError, match="there is no image in .* known: avif, bmp"):
        _ = list_folder(root).images
    folder("sub/a.TIFF")
    assert list_folder(root).images.table.paths == ("sub/a.TIFF",)


@pytest.mark.parametrize("name", ["with space.png", "größe 東京.png", "new\nline.png", "-dash.png"])
def test_names_may_be_anything(folder, name):
    assert list_folder(folder(name)).images.table.paths == (name,)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        list_folder(tmp_path / "gone")
