"""Indexes, search, duplicates and classes as their users meet them."""

import json
import os
import shutil

import pytest
from PIL import Image

from orbitset.models import save_model_folder


@pytest.fixture
def index(orbitset, model_folder, photos, tmp_path):
    folder = tmp_path / "photos.index"
    assert orbitset("index", "add", model_folder, folder, photos, "-q").returncode == 0
    return folder


@pytest.fixture
def zero(tmp_path):
    (tmp_path / "zero.png").touch()
    return tmp_path / "zero.png"


def _only_json(done):
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def test_images_are_added_twice_searched_and_removed_from_anywhere(
    orbitset, model_folder, photos, tmp_path, monkeypatch
):
    index = tmp_path / "new" / "index"
    done = orbitset("index", "add", model_folder, index, photos)
    assert done.stdout == f"9 added, 0 replaced; 9 images: {index}\n"
    monkeypatch.chdir(photos)
    found = _only_json(orbitset("index", "add", model_folder, index, "ant", "--json"))
    assert (found["added"], found["replaced"], found["size"]) == (0, 3, 9)
    monkeypatch.chdir(photos / "ant")
    done = orbitset("search", model_folder, index, "1.png", "--k", 1)
    heading, first, second = done.stdout.splitlines()
    assert heading.split() == ["distance", "image"]
    assert first == str(photos / "ant" / "1.png")
    assert second.endswith(f"  {photos / 'ant' / '2.png'}")
    done = orbitset("index", "remove", index, "1.png", "nothing.png")
    assert done.stdout == f"1 removed; 8 images left: {index}\n"
    assert done.stderr == "not in the index: nothing.png\n"
    found = _only_json(orbitset("index", "remove", index, photos, "--json"))
    assert (found["removed"], found["unknown"], found["size"]) == (8, [], 0)


def test_a_query_does_not_find_itself(orbitset, model_folder, photos, index, zero):
    query = photos / "bee" / "10.jpg"
    done = orbitset("search", model_folder, index, query, zero, "--k", 100, "--json")
    found = _only_json(done)
    (answer,) = found["answers"]
    assert answer["query"] == str(query)
    paths = [match["path"] for match in answer["matches"]]
    assert len(paths) == 8 and str(query) not in paths
    assert all("/bee/" in path for path in paths[:2])
    assert found["skipped"] == [f"{zero} is empty: it has 0 bytes"]


def test_an_index_that_cannot_be_searched_is_named(
    orbitset, fails, build_model, model_folder, photos, index, tmp_path
):
    query = photos / "ant" / "1.png"
    fails(orbitset("search", model_folder, tmp_path / "none", query), 2, "there is no index")
    fails(orbitset("index", "remove", tmp_path / "none", query), 2, "there is no index")
    save_model_folder(build_model(seed=1), tmp_path / "other")
    fails(orbitset("search", tmp_path / "other", index, query), 1, "made by another model")
    fails(orbitset("index", "add", tmp_path / "other", index, query), 1, "made by another model")
    fails(orbitset("search", model_folder, index, query, "--k", 0), 2, "--k")
    orbitset("index", "remove", index, photos)
    fails(orbitset("search", model_folder, index, query), 1, "is empty", "add images to it first")


def test_an_index_that_nothing_came_into_is_not_left_behind(
    orbitset, fails, model_folder, photos, index, zero, tmp_path
):
    new = tmp_path / "new"
    fails(orbitset("index", "add", model_folder, new, zero), 1, "no image could be read")
    assert not new.exists()
    fails(orbitset("index", "add", model_folder, index, zero), 1, "no image could be read")
    found = _only_json(orbitset("index", "add", model_folder, index, zero, photos, "--json"))
    assert found["size"] == 9 and len(found["skipped"]) == 1
    fails(orbitset("index", "add", model_folder, photos, photos), 2, "holds no index")
    fails(orbitset("index", "add", model_folder, index, photos, "--kind", "ivf"), 2, "kind flat")
    fails(orbitset("index", "add", model_folder, index, photos, "--kind", "tree"), 2, "hnsw")


def test_names_do_no_harm_to_a_terminal(orbitset, model_folder, tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    for name in (b"a\n.png", b"b\x1b[31m.png", b"c\xff.png"):
        Image.new("L", (16, 16), 90).save(folder / os.fsdecode(name))
    index = tmp_path / "index"
    assert orbitset("index", "add", model_folder, index, folder).returncode == 0
    for command in (
        ["search", model_folder, index, folder],
        ["dedupe", model_folder, folder],
        ["classify", model_folder, folder, "--examples", folder, "--closed"],
    ):
        done = orbitset(*command)
        assert done.returncode == 0, done.stderr
        for shown in ("a\\n.png", "b\\x1b[31m.png", "c\\udcff.png"):
            assert shown in done.stdout
        done.stdout.encode()
        json.dumps(_only_json(orbitset(*command, "--json")))


def test_duplicates_are_grouped(orbitset, model_folder, photos, tmp_path):
    folder = shutil.copytree(photos, tmp_path / "photos")
    shutil.copy(folder / "ant" / "1.png", folder / "copy of 1.png")
    found = _only_json(orbitset("dedupe", model_folder, folder, "--threshold", 1e-9, "--json"))
    assert found["images"] == 10
    (group,) = found["groups"]
    assert {os.path.basename(path) for path in group["paths"]} == {"1.png", "copy of 1.png"}
    done = orbitset("dedupe", model_folder, photos)
    assert done.stdout.startswith("9 images; 9 of them in 3 groups\nGroups are joined where")
    assert "squared distance 0.001 or less (false accept rate 0.1%" in done.stdout
    assert "\n    distance  image\n3 images\n           0  " in done.stdout


def test_thresholds_of_duplicates_are_checked(orbitset, fails, build_model, photos, tmp_path):
    save_model_folder(build_model(calibration=None), tmp_path / "plain")
    dedupe = ["dedupe", tmp_path / "plain", photos]
    fails(orbitset(*dedupe), 2, "no measured threshold", "--threshold")
    fails(orbitset(*dedupe, "--threshold", 1, "--far", 0.01), 2, "give one")
    for wrong in ("nan", "inf", "-1"):
        fails(orbitset(*dedupe, "--threshold", wrong), 2, "give a squared distance")
    assert orbitset(*dedupe, "--threshold", 0).returncode == 0


def test_images_are_recognised(orbitset, model_folder, photos, zero, tmp_path):
    known = shutil.copytree(photos, tmp_path / "known", ignore=shutil.ignore_patterns("cat"))
    classify = ["classify", model_folder, photos, zero, "--examples", known]
    done = orbitset(*classify)
    labels = [line.split(" ")[0] for line in done.stdout.splitlines()]
    assert labels == ["class"] + ["ant"] * 3 + ["bee"] * 3 + ["–"] * 3
    assert "the threshold that best separates the examples" in done.stderr
    assert f"skipped: {zero} is empty" in done.stderr
    found = _only_json(orbitset(*classify, "--closed", "--by", "mean", "--json"))
    assert None not in [image["label"] for image in found["images"]]
    assert found["rejects_by"] == "none" and found["reject_above"] is None
    found = _only_json(orbitset(*classify, "--reject", 100, "--json"))
    assert found["rejects_by"] == "given" and found["reject_above"] == 100


def test_classes_stand_above_each_other_whatever_their_length(
    orbitset, model_folder, photos, tmp_path
):
    shutil.copytree(photos / "ant", tmp_path / "known" / "a-class-with-a-long-name")
    shutil.copytree(photos / "bee", tmp_path / "known" / "bee")
    classify = ["classify", model_folder, photos, "--examples", tmp_path / "known", "--closed"]
    header, *lines = orbitset(*classify).stdout.splitlines()
    assert {line.index("/") for line in lines} == {header.index("image")}


def test_classes_without_readable_examples_are_named(
    orbitset, fails, model_folder, photos, tmp_path
):
    known = shutil.copytree(photos, tmp_path / "known")
    for path in (known / "cat").iterdir():
        path.write_bytes(b"")
    classify = ["classify", model_folder, photos / "ant", "--examples"]
    done = orbitset(*classify, known)
    assert done.returncode == 0
    assert "no example of cat can be read, so no image is given that class" in done.stderr
    assert _only_json(orbitset(*classify, known, "--json"))["unknown"] == ["cat"]
    fails(orbitset(*classify, known / "cat"), 1, "no image could be read")
    fails(orbitset(*classify, tmp_path / "none"), 2, "there is no image, folder")
    fails(orbitset(*classify[:-1]), 2, "--examples")
    fails(
        orbitset(*classify, known, "--closed", "--reject", 1), 2, "contradict each other; give one"
    )
    for wrong in ("nan", "inf", "-1"):
        fails(orbitset(*classify, known, "--reject", wrong), 2, "give a squared distance")
    fails(orbitset(*classify, known, "--by", "median"), 2, "median")


def test_sheets_are_pages_of_their_own(orbitset, model_folder, photos, index, tmp_path):
    for command in (
        ["search", model_folder, index, photos / "ant"],
        ["dedupe", model_folder, photos],
        ["classify", model_folder, photos, "--examples", photos],
    ):
        page = tmp_path / "new" / f"{command[0]}.html"
        done = orbitset(*command, "--sheet", page, "--json")
        _only_json(done)
        assert f"sheet: {page}" in done.stderr
        text = page.read_text()
        assert text.startswith("<!doctype html>") and 'src="data:image/' in text
