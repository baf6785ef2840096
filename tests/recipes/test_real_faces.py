"""The two small sets of faces, on stand-ins with their layout."""

import itertools

import pytest
from PIL import Image

from orbitset.datasets.mnist import data_root
from orbitset.errors import DataError
from orbitset.recipes.real_faces import (
    PIE32,
    PIE32_IMAGES,
    POINTING04,
    POINTING04_IMAGES,
)


def write(folder, columns, rows):
    folder.mkdir(parents=True)
    Image.new("L", (8, 8)).save(folder / "0.png")
    lines = [",".join(["path", *columns])]
    for number, row in enumerate(rows):
        name = f"{number}.png"
        if number:
            (folder / name).hardlink_to(folder / "0.png")
        lines.append(",".join([name, *row]))
    (folder / "manifest.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture
def pie32(tmp_path):
    rows = itertools.product("abcdefgh", ("c05", "c27"), ("f02", "f03"))
    return write(tmp_path / "pie32", ("identity", "camera", "flash"), rows)


def test_identities_are_split_in_five_ways_and_never_shared(pie32):
    study = PIE32.study(pie32)
    splits = {line.split: line.config.evaluation for line in study.lines}
    assert len(splits) == 5
    for parts in splits.values():
        assert sorted((*parts.train, *parts.validation, *parts.test)) == list("abcdefgh")
        assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [4, 2, 2]
    assert len({parts.train for parts in splits.values()}) > 1
    assert study.labels == ["OJ", "EX", "OT", "OE", "ST", "AE"]
    assert [line.config.orbits.alike for line in study.lines[:3]] == ["flash", None, "flash"]
    assert {line.config.encoder.contrast for line in study.lines} == {"local"}


def test_nothing_of_pie32_is_kept(pie32):
    assert all(line.config.is_private for line in PIE32.study(pie32).lines)


def test_every_training_sees_as_many_images(pie32):
    assert {line.config.train.epochs for line in PIE32.study(pie32).lines} == {PIE32_IMAGES / 16}


def test_pointing04_is_trained_on_each_session_with_three_seeds(tmp_path):
    rows = itertools.product("ab", "12", ("-15", "0", "15"), ("0", "30"))
    folder = write(tmp_path / "pointing04", ("person", "session", "pan", "tilt"), rows)
    study = POINTING04.study(folder)
    assert study.seeds == (0, 1, 2)
    assert {line.split for line in study.lines} == {"1-2", "2-1"}
    evaluation = study.lines[0].config.evaluation
    assert (evaluation.train, evaluation.validation, evaluation.test) == (("1",), (), ("2",))
    assert not study.lines[0].config.is_private
    assert [line.config.orbits.alike for line in study.lines[:3]] == ["tilt", None, "tilt"]
    assert {line.config.encoder.contrast for line in study.lines} == {"local"}


def test_a_smaller_set_is_marked_as_cut_down(pie32):
    assert PIE32.study(pie32).cut_down == "cut down: 32 images instead of 6,930"


def test_rows_can_be_left_out(pie32):
    (pie32 / "3.png").unlink()
    with pytest.raises(DataError, match="row 5: 3.png"):
        PIE32.study(pie32)
    study = PIE32.study(pie32, on_problem="skip")
    assert {line.config.orbits.on_problem for line in study.lines} == {"skip"}


def test_images_that_cannot_be_used_are_not_counted(tmp_path):
    rows = [*itertools.product("ab", "12", ("-15", "0", "15"), ("0", "30")), ("a", "1", "0", "90")]
    folder = write(tmp_path / "pointing04", ("person", "session", "pan", "tilt"), rows)
    assert POINTING04.study(folder).lines[0].config.train.epochs == POINTING04_IMAGES / 12


def test_wrong_folders_are_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        PIE32.study(tmp_path)
    folder = write(tmp_path / "few", ("identity", "camera", "flash"), [("a", "c05", "f02")] * 2)
    with pytest.raises(DataError, match="has 1 identities"):
        PIE32.study(folder)
    with pytest.raises(DataError, match="no factor person"):
        POINTING04.study(folder)


@pytest.mark.skipif(not (data_root() / "pie32").is_dir(), reason="pie32 is not here")
def test_the_real_sets_have_the_numbers_they_are_known_for():
    parts = PIE32.study().lines[0].config.evaluation
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [33, 16, 17]
    assert PIE32.study().lines[0].config.data == "pie32"
    assert POINTING04.study().lines[0].config.train.epochs == POINTING04_IMAGES / 1365
