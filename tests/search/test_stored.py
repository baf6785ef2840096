import builtins
import io
from contextlib import contextmanager

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_python

from orbitset.errors import OrbitsetError
from orbitset.search import distances, stored
from orbitset.search.stored import StoredCodes

KINDS = ("flat", "ivf", "hnsw")


def _codes(num, seed, kind="random", dim=4):
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((num, dim))
    if kind == "tied":
        codes = rng.integers(-1, 2, (num, dim))
    if kind == "near":  # products in float32 put them in another order
        codes = 100 + 0.1 * codes
    if kind == "same":
        codes = np.ones((num, dim))
    if kind == "tiny":
        codes = 1e-30 * codes
    if kind == "huge":
        codes = 1e14 * codes
    return codes.astype(np.float32)


def _by_loop(query, codes, k, dead=()):
    distance = np.square(query.astype(np.float64) - codes.astype(np.float64)).sum(1)
    rows = sorted(set(range(len(codes))) - set(dead), key=lambda row: (distance[row], row))[:k]
    return rows, distance[rows]


def _read(kind, size, trained_on, content):
    return StoredCodes.read(kind, size, trained_on, io.BytesIO(content).read, len(content))


def _filled(kind, codes):
    made = StoredCodes(kind, codes.shape[1])
    made.add(codes)
    made.fit_lists()
    return made


def _small_lists(monkeypatch, *, train_from=20, rows_per_list=5):
    monkeypatch.setattr(stored, "_TRAIN_FROM", train_from)
    monkeypatch.setattr(stored, "_ROWS_PER_LIST", rows_per_list)


@contextmanager
def _by_products(is_wanted):
    """FAISS from products of matrices, as it does for many queries; how many depends on its version."""
    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = 1 if is_wanted else before
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before


def _check(made, queries, codes, k, dead=()):
    dead = np.array(sorted(dead), np.int64)
    rows, distances = made.nearest(queries, k, dead)
    for q, query in enumerate(queries):
        wanted_rows, wanted = _by_loop(query, codes, k, dead.tolist())
        assert rows[q].tolist() == wanted_rows
        assert distances[q] == pytest.approx(wanted, rel=1e-12)


@settings(deadline=None)
@given(
    num=st.integers(1, 60), queries=st.sampled_from([1, 30]), seed=st.integers(0, 99), k=st.integers(1, 9),
    kind=st.sampled_from(["random", "tied", "near", "same", "tiny", "huge"]),
    more=st.sampled_from([0, 2, 32]), dead=st.sets(st.integers(0, 59)), chunk=st.sampled_from([64, 2**25]),
    by_products=st.booleans(),
)  # fmt: skip
def test_a_flat_index_equals_a_loop(num, queries, seed, k, kind, more, dead, chunk, by_products):
    codes = _codes(num + queries, seed, kind)
    codes, query = codes[:num], codes[num:]
    dead = {row for row in dead if row < num - 1}
    with pytest.MonkeyPatch.context() as patch, _by_products(by_products):
        patch.setattr(stored, "_MORE", more)
        patch.setattr(distances, "CHUNK_BYTES", chunk)
        _check(_filled("flat", codes), query, codes, min(k, num - len(dead)), dead)


@pytest.mark.parametrize("more", [0, 3])
def test_what_rounding_hides_is_found(monkeypatch, more):
    monkeypatch.setattr(stored, "_MORE", more)
    codes = _codes(330, 0, "near")
    with _by_products(True):
        _check(_filled("flat", codes[:300]), codes[300:], codes[:300], 3)


@pytest.mark.parametrize("kind", KINDS)
def test_all_are_found_when_all_are_asked_for(monkeypatch, kind):
    _small_lists(monkeypatch)
    codes = _codes(80, 3, "tied")
    made = _filled(kind, codes)
    _check(made, codes[:5], codes, 80)
    _check(made, codes[:5], codes, 60, dead=range(20, 40))


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_the_fast_kinds_find_nearly_all(monkeypatch, kind):
    _small_lists(monkeypatch, rows_per_list=39)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 8))
    codes = (centres[np.arange(3000) % 40] + 0.3 * rng.standard_normal((3000, 8))).astype(
        np.float32
    )
    dead = np.arange(0, 900)
    made = _filled(kind, codes)
    rows, distances = made.nearest(codes[:100], 10, dead)
    hits = 0
    for q in range(100):
        wanted, _ = _by_loop(codes[q], codes, 10, dead.tolist())
        hits += len(set(wanted) & set(rows[q].tolist()))
        exact = np.square(codes[q].astype(np.float64) - codes[rows[q]]).sum(1)
        assert distances[q] == pytest.approx(exact) and (np.diff(distances[q]) >= 0).all()
    assert hits > 950 and not set(rows.ravel().tolist()) & set(dead.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_taken_out_are_gone_and_the_others_move_up(monkeypatch, kind):
    _small_lists(monkeypatch)
    codes = _codes(60, 1)
    made = _filled(kind, codes)
    made.take_out(np.array([40, 0, 7]))
    left = np.delete(codes, [0, 7, 40], 0)
    assert len(made) == 57 and np.array_equal(made.of(np.arange(57)), left)
    made.add(codes[:3])
    left = np.concatenate([left, codes[:3]])
    _check(made, codes[:4], left, 60)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_and_goes_on(monkeypatch, kind):
    _small_lists(monkeypatch)
    codes = _codes(60, 1)
    made = _filled(kind, codes)
    file = io.BytesIO()
    made.write(file.write)
    read = _read(kind, 4, made.trained_on, file.getvalue())
    read.add(codes[:5])
    assert np.array_equal(read.of(np.arange(65)), np.concatenate([codes, codes[:5]]))
    for cut in (0, 20, len(file.getvalue()) - 1):
        with pytest.raises(ValueError):
            _read(kind, 4, made.trained_on, file.getvalue()[:cut])


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [
        ("hnsw", 4, "begin with b'IxF2', as those of no hnsw index"),
        ("flat", 5, "IndexFlatL2 of 4 entries"),
    ],
)
def test_another_index_is_refused(kind, size, words):
    file = io.BytesIO()
    _filled("flat", _codes(3, 0)).write(file.write)
    with pytest.raises(ValueError, match=words):
        _read(kind, size, None, file.getvalue())


def test_faiss_is_not_asked_for_an_index_of_a_kind_that_is_never_written(monkeypatch):
    """Files that were made for it have made its readers write past the end of memory."""

    def fail(*_):
        pytest.fail("read")

    _small_lists(monkeypatch)
    made = _filled("ivf", _codes(60, 1))
    file = io.BytesIO()
    made.write(file.write)
    around_others = bytearray(file.getvalue())
    around_others[53:57] = b"IxPq"
    many_lists = bytearray(file.getvalue())
    many_lists[37:45] = (2**33).to_bytes(8, "little")
    product = faiss.serialize_index(faiss.IndexPQ(4, 2, 4)).tobytes()
    monkeypatch.setattr(faiss, "read_index", fail)
    for kind in KINDS:
        trained_on = made.trained_on if kind == "ivf" else None
        with pytest.raises(ValueError, match="begin with b'IxPq', as those of no"):
            _read(kind, 4, trained_on, product)
    with pytest.raises(ValueError, match="centres of its lists begin with b'IxPq'"):
        _read("ivf", 4, made.trained_on, bytes(around_others))
    with pytest.raises(ValueError, match="more lists than it is long"):
        _read("ivf", 4, made.trained_on, bytes(many_lists))


def test_lists_that_do_not_hold_every_row_once_are_refused(monkeypatch):
    _small_lists(monkeypatch)
    made = _filled("ivf", _codes(60, 1))
    lists = made._faiss.invlists
    number = next(at for at in range(made._faiss.nlist) if lists.list_size(at))
    ids = faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))
    for row in (60, -1, (ids[0] + 1) % 60):
        ids[0] = row
        file = io.BytesIO()
        made.write(file.write)
        with pytest.raises(ValueError, match="its lists do not hold every row once"):
            _read("ivf", 4, made.trained_on, file.getvalue())


def test_a_vector_that_is_longer_than_the_file_is_not_made(monkeypatch):
    file = io.BytesIO()
    _filled("flat", _codes(3, 0)).write(file.write)
    content = bytearray(file.getvalue())
    at = content.index((12).to_bytes(8, "little"), 30)  # entries of 3 codes
    for rows in (2**33, 2**20):
        content[8:16] = rows.to_bytes(8, "little")
        content[at : at + 8] = (4 * rows).to_bytes(8, "little")
        with pytest.raises(ValueError, match="byte|limit|size"):
            _read("flat", 4, None, bytes(content))


def test_lists_are_made_when_there_are_enough_rows_and_anew_when_there_are_many_more(monkeypatch):
    _small_lists(monkeypatch)
    made = StoredCodes("ivf", 4)
    made.add(_codes(19, 0))
    made.fit_lists()
    assert made.is_exact and made.trained_on is None
    made.add(_codes(1, 1))
    made.fit_lists()
    assert not made.is_exact and made.trained_on == 20
    made.add(_codes(179, 2))
    made.fit_lists()
    assert made.trained_on == 20
    made.add(_codes(1, 3))
    made.fit_lists()
    assert made.trained_on == 200


def test_lists_are_the_same_every_time(monkeypatch):
    _small_lists(monkeypatch)
    written = []
    for _ in range(2):
        file = io.BytesIO()
        _filled("ivf", _codes(100, 0)).write(file.write)
        written.append(file.getvalue())
    assert written[0] == written[1]


def test_without_faiss_an_error_says_how_to_get_it(monkeypatch):
    load = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "faiss":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OrbitsetError, match=r"not installed \(pip install faiss-cpu\)"):
        StoredCodes("flat", 4)


def test_other_libraries_may_have_changed_faiss():
    """A process of its own: what they change stays changed."""
    code = f"""
import faiss.contrib.torch_utils
import numpy as np
from orbitset.search.stored import StoredCodes
for kind in {KINDS}:
    codes = StoredCodes(kind, 3)
    codes.add(np.arange(60, dtype=np.float32).reshape(20, 3))
    codes.take_out(np.array([4]))
    codes.fit_lists()
    rows, near = codes.nearest(np.float32([[0, 1, 2]]), 2, np.array([], np.int64))
    assert rows.tolist() == [[0, 1]] and near.tolist() == [[0, 27]], (kind, rows, near)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
