"""An index of images through links, other folders and errors."""

import contextlib
import os

import pytest
from PIL import Image

import orbitset
from orbitset.errors import ConfigError, DataError, RunError
from orbitset.search import Index
from orbitset.search.folder import locked
from orbitset.uses import add_to_index, embed, remove_from_index, search_index
from orbitset.uses import finding as findings
from orbitset.uses.finding import search_sheet


@pytest.fixture(scope="module")
def model(model_folder):
    return orbitset.load(model_folder)


@pytest.fixture
def index(model, photos, tmp_path):
    add_to_index(model, tmp_path / "index", [photos])
    return tmp_path / "index"


def _matches(answers):
    return [[match.path for match in answer.matches] for answer in answers]


def test_images_are_added_replaced_and_removed(model, photos, tmp_path):
    index = tmp_path / "index"
    first = add_to_index(model, index, [photos / "ant", photos / "bee" / "1.png"])
    assert (first.added, first.replaced, first.size) == (4, 0, 4)
    second = add_to_index(model, index, [photos])
    assert (second.added, second.replaced, second.size) == (5, 4, 9)
    assert remove_from_index(index, [photos / "ant" / "1.png", "gone.png"]) == (1, ["gone.png"], 8)
    assert remove_from_index(index, [photos / "bee", photos / "bee" / "1.png"]) == (3, [], 5)
    assert remove_from_index(index, [str(photos.parent / "phot")])[0] == 0
    assert remove_from_index(index, [photos]) == (5, [], 0)


def test_the_nearest_are_found_and_a_query_does_not_find_itself(model, photos, index):
    answers, problems = search_index(model, index, [photos / "ant" / "1.png"], k=2)
    assert _matches(answers) == [[str(photos / "ant" / name) for name in ("2.png", "10.jpg")]]
    assert not problems
    distances = [match.distance for match in answers[0].matches]
    assert 0 < distances[0] < distances[1] < 0.002
    everything, _ = search_index(model, index, [photos], k=100)
    assert all(len(answer.matches) == 8 for answer in everything)
    assert all(answer.query not in _matches([answer])[0] for answer in everything)


def test_names_do_not_depend_on_where_one_stands(model, photos, index, monkeypatch):
    monkeypatch.chdir(photos / "ant")
    assert add_to_index(model, index, ["1.png", "../bee/../ant/2.png"]).replaced == 2
    answers, _ = search_index(model, index, ["1.png"], k=1)
    assert answers[0].query == str(photos / "ant" / "1.png")
    assert _matches(answers) == [[str(photos / "ant" / "2.png")]]
    monkeypatch.chdir(photos)
    assert remove_from_index(index, ["ant/1.png", "bee/"])[::2] == (4, 5)


def test_links_to_folders_are_seen_through_and_links_to_images_are_items(model, photos, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "ants").symlink_to(photos / "ant")
    (mine / "same.png").symlink_to(photos / "ant" / "1.png")
    (mine / "round.png").symlink_to("round.png")
    done = add_to_index(model, tmp_path / "index", [mine, mine / "ants", photos / "ant"])
    assert done.added == 4 and len(done.problems) == 1
    answers, _ = search_index(model, tmp_path / "index", [mine / "ants" / "1.png"], k=9)
    assert len(answers[0].matches) == 3
    answers, _ = search_index(model, tmp_path / "index", [mine], k=9)
    assert all(len(answer.matches) == 3 for answer in answers)
    assert remove_from_index(tmp_path / "index", [mine / "same.png", mine / "ants"]) == (4, [], 0)


def test_images_that_are_gone_can_be_removed(model, tmp_path):
    Image.new("L", (16, 16)).save(tmp_path / "a.png")
    add_to_index(model, tmp_path / "index", [tmp_path / "a.png"])
    (tmp_path / "a.png").unlink()
    assert remove_from_index(tmp_path / "index", [tmp_path / "a.png"]) == (1, [], 0)


def test_an_index_of_another_model_is_refused(build_model, photos, index):
    with pytest.raises(RunError, match="was made by another model"):
        add_to_index(build_model(), index, [photos])
    with pytest.raises(RunError, match="was made by another model"):
        search_index(build_model(), index, [photos])


def test_an_index_that_is_empty_or_not_there_is_refused(model, photos, index, tmp_path):
    remove_from_index(index, [photos])
    with pytest.raises(DataError, match="is empty"):
        search_index(model, index, [photos])
    for call in (
        lambda: search_index(model, tmp_path / "none", [photos]),
        lambda: remove_from_index(tmp_path / "none", [photos]),
    ):
        with pytest.raises(RunError, match="there is no index"):
            call()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError])
def test_a_new_index_that_nothing_came_into_is_not_left_behind(model, tmp_path, photos, error):
    def stop(done, _):
        if done:
            raise KeyboardInterrupt

    (tmp_path / "zero.png").touch()
    images = [photos] if error is KeyboardInterrupt else [tmp_path / "zero.png"]
    (tmp_path / "mine").mkdir()
    for folder, is_left in ((tmp_path / "index", False), (tmp_path / "mine", True)):
        with pytest.raises(error):
            add_to_index(model, folder, images, on_progress=stop)
        assert folder.exists() == is_left
    assert os.listdir(tmp_path / "mine") == []


def test_a_new_index_that_another_process_writes_by_now_is_left_to_it(
    model, photos, tmp_path, monkeypatch
):
    with contextlib.ExitStack() as other:

        def taken(_, index, *__):
            other.enter_context(locked(index.folder))
            raise RunError("another process is writing")

        monkeypatch.setattr(findings, "_add", taken)
        with pytest.raises(RunError, match="another process is writing"):
            add_to_index(model, tmp_path / "index", [photos])
    assert len(Index.open(tmp_path / "index")) == 0


def test_an_index_that_was_there_stays_as_it_was_after_an_error(model, photos, index, monkeypatch):
    def stop(done, _):
        if done >= 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(findings, "_AT_ONCE", 2)
    monkeypatch.setattr("orbitset.uses.embedding._BATCH", 2)
    remove_from_index(index, [photos / "ant"])
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        add_to_index(model, index, [photos], on_progress=stop)
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before
    assert len(Index.open(index)) == 6


def test_a_folder_with_something_else_in_it_is_left_alone(model, photos, tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(RunError, match="is not empty and holds no index"):
        add_to_index(model, tmp_path, [photos])
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_another_kind_is_not_silently_ignored(model, photos, index, tmp_path):
    with pytest.raises(ConfigError, match="is of the kind flat, not hnsw"):
        add_to_index(model, index, [photos], kind="hnsw")
    assert add_to_index(model, index, [photos], kind="flat").replaced == 9
    add_to_index(model, tmp_path / "graph", [photos], kind="hnsw")
    assert Index.open(tmp_path / "graph").kind == "hnsw"
    answers, _ = search_index(model, tmp_path / "graph", [photos / "cat" / "1.png"], k=1)
    assert answers[0].matches[0].path.startswith(str(photos / "cat"))


def test_many_images_are_added_in_parts(model, photos, index, tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "_AT_ONCE", 2)
    monkeypatch.setattr("orbitset.uses.embedding._BATCH", 2)
    assert add_to_index(model, tmp_path / "parts", [photos]).added == 9
    opened = Index.open(tmp_path / "parts")
    assert opened.names == Index.open(index).names == list(embed(model, [photos]).paths)


def test_queries_that_cannot_be_read_are_named(model, photos, index, tmp_path):
    (tmp_path / "zero.png").touch()
    answers, problems = search_index(model, index, [tmp_path / "zero.png", photos / "ant"])
    assert len(answers) == 3
    assert [problem.reason for problem in problems] == [
        f"{tmp_path / 'zero.png'} is empty: it has 0 bytes"
    ]


def test_the_sheet_shows_queries_upright_and_what_they_found(model, photos, index):
    answers, _ = search_index(model, index, [photos / "ant" / "1.png"], k=2)
    page = search_sheet(model, answers)
    assert page.count("<img ") == 4
    assert "rectified" in page and "10.jpg" in page
