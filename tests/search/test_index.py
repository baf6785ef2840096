import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitset.errors import ConfigError, DataError, RunError
from orbitset.search import folder as folders
from orbitset.search import index as indices
from orbitset.search import stored
from orbitset.search.folder import read_state, write_state
from orbitset.search.index import Added, Index, Removed

KINDS = ("flat", "ivf", "hnsw")
NAMES = [f"bilder/größe {i}.png" for i in range(40)]


def _codes(num=40, seed=0, size=3):
    return np.random.default_rng(seed).standard_normal((num, size)).astype(np.float32)


def _index(folder, kind="flat", num=40):
    index = Index.create(folder, model_id="one", code_size=3, kind=kind)
    index.add(NAMES[:num], _codes(num))
    return index


def _by_loop(items, query, k, without=None):
    """Names and distances; items as a dictionary in the order they were added."""
    distance = {
        name: float(np.square(query.astype(np.float64) - code.astype(np.float64)).sum())
        for name, code in items.items()
        if name != without
    }
    names = sorted(distance, key=lambda name: distance[name])[:k]
    return names, [distance[name] for name in names]


def _check(index, items, queries, k=5, exclude=None):
    assert index.names == list(items) and len(index) == len(items)
    assert all(name in index for name in items)
    codes = index._codes.of(np.array([index._row_of[name] for name in items], np.int64))
    assert np.array_equal(codes, np.array(list(items.values()), np.float32).reshape(-1, 3))
    if not items:
        with pytest.raises(DataError, match="is empty"):
            index.search(queries, k)
        return
    found = index.search(queries, k, exclude_self=exclude)
    for q, query in enumerate(queries):
        names, distances = _by_loop(items, query, k, exclude and exclude[q])
        assert found.names[q] == names
        assert found.distances[q, : len(names)] == pytest.approx(distances, rel=1e-12)
        assert np.isinf(found.distances[q, len(names) :]).all()


@pytest.fixture(autouse=True)
def small_lists(monkeypatch):
    """Lists of a few items, all of which are looked into, so that every kind is exact."""
    monkeypatch.setattr(stored, "_TRAIN_FROM", 10)
    monkeypatch.setattr(stored, "_ROWS_PER_LIST", 4)
    monkeypatch.setattr(stored, "_LOOK_INTO", 1)


_change = st.tuples(
    st.sampled_from(["add", "add", "remove", "reopen"]),
    st.lists(st.integers(0, 39), min_size=1, max_size=25, unique=True),
    st.booleans(),
)


@settings(deadline=None, max_examples=25)
@given(kind=st.sampled_from(KINDS), changes=st.lists(_change, max_size=6), seed=st.integers(0, 99))
def test_it_is_a_dictionary_that_finds_the_nearest(tmp_path_factory, kind, changes, seed):
    folder, rng = tmp_path_factory.mktemp("index"), np.random.default_rng(seed)
    index = Index.create(folder, model_id="one", code_size=3, kind=kind)
    items = {}
    for what, rows, is_tied in changes:
        names = [NAMES[row] for row in rows]
        there = [name for name in names if name in items]
        if what == "add":
            codes = rng.integers(-1, 2, (len(rows), 3)) if is_tied else rng.random((len(rows), 3))
            codes = codes.astype(np.float32)
            found = index.add(names, codes)
            assert found == Added(added=len(names) - len(there), replaced=len(there))
            for name in there:
                del items[name]
            items.update(zip(names, codes, strict=True))
        elif what == "remove":
            found = index.remove(names)
            assert found == Removed(len(there), [name for name in names if name not in items])
            for name in there:
                del items[name]
        else:
            index = Index.open(folder)
        _check(index, items, rng.integers(-1, 2, (3, 3)).astype(np.float32), k=len(items) or 1)
    _check(Index.open(folder), items, _codes(4), k=len(items) or 1, exclude=NAMES[:4])


@pytest.mark.parametrize("kind", KINDS)
def test_items_are_found_in_any_kind(tmp_path, kind):
    index = _index(tmp_path, kind)
    items = dict(zip(NAMES, _codes(), strict=True))
    _check(index, items, _codes(), exclude=NAMES)
    _check(Index.open(tmp_path, model_id="one"), items, _codes())
    opened = Index.open(tmp_path)
    assert (opened.kind, opened.code_size, opened.model_id) == (kind, 3, "one")


@pytest.mark.parametrize("kind", KINDS)
def test_removed_items_are_not_found_and_their_codes_go_by_and_by(tmp_path, kind):
    index = _index(tmp_path, kind)
    items = dict(zip(NAMES, _codes(), strict=True))
    for names in (NAMES[:5], NAMES[5:13], NAMES[13:20], NAMES[20:]):
        assert index.remove([*names, "nobody", *names]) == Removed(len(names), ["nobody"])
        for name in names:
            del items[name]
        _check(index, items, _codes(), k=9)
        _check(Index.open(tmp_path), items, _codes(), k=9)
        rows = read_state(tmp_path).names
        kept = rows.count(None)
        assert kept == 0 if kind == "flat" else kept <= len(rows) / 3
    index.add(NAMES[:2], _codes(2))
    _check(index, dict(zip(NAMES[:2], _codes(2), strict=True)), _codes())


def test_equally_near_items_come_in_the_order_they_were_added(tmp_path):
    index = Index.create(tmp_path, model_id="one", code_size=2)
    names = [f"{i:03d}" for i in range(300)]
    index.add(names[::-1], np.ones((300, 2), np.float32))
    assert index.search(np.zeros((25, 2)), 4).names == [["299", "298", "297", "296"]] * 25
    index.add(["298"], np.ones((1, 2)))
    assert index.search(np.ones((1, 2)), 300).names[0][-1] == "298"
    found = index.search(np.ones((1, 2)), 2, exclude_self=["299"])
    assert found.names == [["297", "296"]] and found.distances.tolist() == [[0.0, 0.0]]


def test_fewer_items_than_asked_for_are_all_found(tmp_path):
    index = _index(tmp_path, num=2)
    found = index.search(_codes(3), 9, exclude_self=[NAMES[0], "nobody", NAMES[1]])
    assert [len(names) for names in found.names] == [1, 2, 1]
    assert np.isinf(found.distances).tolist() == [[False, True], [False, False], [False, True]]
    only = Index.create(tmp_path / "only", model_id="one", code_size=3)
    only.add(["me"], _codes(1))
    found = only.search(_codes(1), 1, exclude_self=["me"])
    assert found.names == [[]] and found.distances.shape == (1, 0)


def test_no_queries_find_nothing(tmp_path):
    found = _index(tmp_path).search(np.zeros((0, 3)), 2)
    assert found.names == [] and len(found.distances) == 0


@pytest.mark.parametrize(
    "name", ["日本.png", "a\nb\u2028c", "\udcff\udc80.jpg", "", "null", "e\u0301", "é"]
)
def test_any_string_is_a_name(tmp_path, name):
    index = _index(tmp_path)
    index.add([name], _codes(1, seed=9))
    assert Index.open(tmp_path).search(_codes(1, seed=9), 1).names == [[name]]


def _without(codes, **places):
    codes[3, 1] = places["value"]
    return codes


@pytest.mark.parametrize(
    ("names", "codes", "kind", "words"),
    [
        (
            NAMES[:5],
            _without(_codes(5), value=np.nan),
            DataError,
            "the code of .* 3.png has entries",
        ),
        (NAMES[:5], _without(_codes(5), value=np.inf), DataError, "no numbers"),
        (NAMES[:5], _codes(5, size=4), ValueError, "codes have 4 entries; they must have 3"),
        (NAMES[:5], _codes(4), ValueError, "there are 5 names for 4 codes"),
        (["a", "b", "a"], _codes(3), ValueError, "a is named twice"),
        ("abc", _codes(3), ValueError, "sequence of strings"),
        ([1, 2, 3], _codes(3), ValueError, "sequence of strings"),
    ],
)
def test_wrong_items_change_nothing(tmp_path, names, codes, kind, words):
    index = _index(tmp_path, num=10)
    before = (tmp_path / "index.zip").read_bytes()
    with index.changes(), pytest.raises(kind, match=words):
        index.add(names, codes)
    assert (tmp_path / "index.zip").read_bytes() == before
    _check(index, dict(zip(NAMES[:10], _codes(10), strict=True)), _codes(2))


def test_wrong_questions_are_refused(tmp_path):
    index = _index(tmp_path)
    with pytest.raises(ValueError, match="k is 0"):
        index.search(_codes(1), 0)
    with pytest.raises(ValueError, match="must have 3"):
        index.search(_codes(1, size=2), 1)
    with pytest.raises(DataError, match="row 0"):
        index.search(np.full((1, 3), np.nan), 1)
    with pytest.raises(ValueError, match="2 names for 1 queries"):
        index.search(_codes(1), 1, exclude_self=["a", "b"])
    with pytest.raises(ValueError, match="sequence of strings"):
        index.remove("abc")


def test_another_models_index_is_refused(tmp_path):
    _index(tmp_path)
    with pytest.raises(RunError, match="made by another model: one, not two"):
        Index.open(tmp_path, model_id="two")


def test_nothing_is_overwritten_unless_asked(tmp_path):
    _index(tmp_path)
    with pytest.raises(RunError, match="already holds an index") as raised:
        Index.create(tmp_path, model_id="two", code_size=5)
    assert raised.value.exit_code == 2 and len(Index.open(tmp_path)) == 40
    Index.create(tmp_path, model_id="two", code_size=5, kind="hnsw", overwrite=True)
    opened = Index.open(tmp_path, model_id="two")
    assert (len(opened), opened.code_size, opened.kind) == (0, 5, "hnsw")


def test_a_damaged_index_can_be_overwritten(tmp_path):
    _index(tmp_path)
    (tmp_path / "index.zip").write_text("{")
    with pytest.raises(RunError, match="already holds an index"):
        Index.create(tmp_path, model_id="one", code_size=3)
    Index.create(tmp_path, model_id="one", code_size=3, overwrite=True)
    assert len(Index.open(tmp_path)) == 0 and sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        "index.zip",
    ]


@pytest.mark.parametrize("overwrite", [False, True])
def test_folders_of_others_are_refused(tmp_path, overwrite):
    (tmp_path / "index.zip").write_text("{}")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match="is not empty and holds no index"):
        Index.create(tmp_path, model_id="one", code_size=3, overwrite=overwrite)
    with pytest.raises(RunError, match="is a file"):
        Index.create(tmp_path / "thesis.tex", model_id="one", code_size=3, overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.zip", "thesis.tex"]


def test_what_a_killed_creation_left_is_no_obstacle(tmp_path):
    for name in (".lock", ".index.zip.77.part"):
        (tmp_path / name).touch()
    assert len(_index(tmp_path)) == 40
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "index.zip"]


def test_wrong_kinds_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="kind is 'flot'.*did you mean flat"):
        Index.create(tmp_path / "new", model_id="one", code_size=3, kind="flot")
    with pytest.raises(ValueError, match="code_size is 0"):
        Index.create(tmp_path / "new", model_id="one", code_size=0)
    assert not (tmp_path / "new").exists()


def test_two_writers_are_refused(tmp_path):
    one, other = _index(tmp_path), Index.open(tmp_path)
    with one.changes():
        with pytest.raises(RunError, match="another process is writing"):
            other.add(["new"], _codes(1))
        with pytest.raises(RunError, match="another process is writing"):
            Index.create(tmp_path, model_id="one", code_size=3, overwrite=True)
        one.add(["mine"], _codes(1))
    with pytest.raises(RunError, match="was changed since it was opened"):
        other.add(["new"], _codes(1))
    assert len(other) == 40 and other.search(_codes(1), 1).names == [[NAMES[0]]]
    assert Index.open(tmp_path).names == [*NAMES, "mine"]


@pytest.mark.parametrize("kind", KINDS)
def test_changes_are_written_once_and_searched_at_once(tmp_path, kind, monkeypatch):
    index = Index.create(tmp_path, model_id="one", code_size=3, kind=kind)
    items, written = {}, []
    monkeypatch.setattr(
        indices, "write_state", lambda *args: written.append(1) or write_state(*args)
    )
    with index.changes():
        for start in range(0, 40, 10):
            index.add(NAMES[start : start + 10], _codes()[start : start + 10])
            index.remove([NAMES[start]])
            items |= dict(
                zip(NAMES[start + 1 : start + 10], _codes()[start + 1 : start + 10], strict=True)
            )
            _check(index, items, _codes(3))
            assert len(Index.open(tmp_path)) == 0
    assert written == [1]
    _check(Index.open(tmp_path), items, _codes(3))


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_error_inside_changes_all_is_as_before(tmp_path, kind):
    index = _index(tmp_path, kind, num=30)
    items = dict(zip(NAMES[:30], _codes(30), strict=True))
    with pytest.raises(KeyboardInterrupt), index.changes():
        index.add(NAMES[20:], _codes(20))
        index.remove(NAMES[:20])
        raise KeyboardInterrupt
    _check(index, items, _codes(3))
    _check(Index.open(tmp_path), items, _codes(3))
    index.add(["next"], _codes(1))
    assert len(Index.open(tmp_path)) == 31


@pytest.mark.parametrize("broken", [(folders, "write_atomically"), (stored.StoredCodes, "write")])
def test_after_a_write_that_failed_all_is_as_before(tmp_path, monkeypatch, broken):
    def full(*_args):
        raise OSError(28, "No space left on device")

    index = _index(tmp_path, num=30)
    items = dict(zip(NAMES[:30], _codes(30), strict=True))
    with monkeypatch.context() as patch:
        patch.setattr(*broken, full)
        for change in (lambda: index.add(["new"], _codes(1)), lambda: index.remove(NAMES[:4])):
            with pytest.raises(OSError, match="No space"):
                change()
            _check(index, items, _codes(3))
            _check(Index.open(tmp_path), items, _codes(3))
    index.add(["new"], _codes(1))
    assert "new" in Index.open(tmp_path)


def test_nothing_to_change_writes_nothing(tmp_path):
    index = _index(tmp_path)
    before = (tmp_path / "index.zip").stat().st_mtime_ns
    assert index.remove(["nobody"]) == Removed(0, ["nobody"])
    assert index.add([], np.zeros((0, 3))) == Added(0, 0)
    assert (tmp_path / "index.zip").stat().st_mtime_ns == before


def test_a_folder_that_is_gone_is_told(tmp_path):
    index = _index(tmp_path / "index")
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    with pytest.raises(RunError, match="there is no index"):
        index.add(["new"], _codes(1))
    (tmp_path / "index" / ".lock").unlink()
    (tmp_path / "index").rmdir()
    with pytest.raises(RunError, match="any more"):
        index.add(["new"], _codes(1))


def test_a_folder_that_cannot_be_written_can_be_searched(tmp_path):
    _index(tmp_path)
    (tmp_path / ".lock").unlink()
    assert Index.open(tmp_path).search(_codes(1), 1).names == [[NAMES[0]]]
    assert not (tmp_path / ".lock").exists()
