import numpy as np
import pytest

from orbitset.errors import DataError
from orbitset.search import distances
from orbitset.search.distances import checked_codes, paired_distances, squared_distances


@pytest.mark.parametrize("chunk", [1, 100, 2**25])
def test_distances_are_those_of_a_loop(monkeypatch, chunk):
    monkeypatch.setattr(distances, "CHUNK_BYTES", chunk)
    rng = np.random.default_rng(0)
    query, code = (rng.standard_normal((n, 3)).astype(np.float32) for n in (4, 7))
    found = squared_distances(query, code)
    for q in range(4):
        for n in range(7):
            wanted = sum((float(a) - float(b)) ** 2 for a, b in zip(query[q], code[n], strict=True))
            assert found[q, n] == pytest.approx(wanted, rel=1e-12)
    assert paired_distances(query, code[:4]) == pytest.approx(found[:, :4].diagonal())


@pytest.mark.parametrize(
    ("wrong", "words"), [(np.nan, "no numbers"), (np.inf, "no numbers"), (1e20, "is longer than")]
)
def test_codes_that_cannot_be_compared_are_named(monkeypatch, wrong, words):
    codes = np.zeros((5, 2))
    codes[3, 1] = wrong
    for chunk in (1, 2**25):
        monkeypatch.setattr(distances, "CHUNK_BYTES", chunk)
        with pytest.raises(DataError, match=f"the code of d.* {words}"):
            checked_codes(codes, names="abcde")
        with pytest.raises(DataError, match=f"the code of row 3 .*{words}"):
            checked_codes(codes)


def test_what_float32_cannot_hold_is_no_number():
    with pytest.raises(DataError, match="no numbers"):
        checked_codes(np.array([[1e300]]))


@pytest.mark.parametrize("shape", [(3,), (3, 0), (3, 2, 2), ()])
def test_shapes_that_are_no_codes_are_refused(shape):
    with pytest.raises(ValueError, match="give one row per item"):
        checked_codes(np.zeros(shape))


def test_no_codes_are_codes_too():
    assert checked_codes(np.zeros((0, 3))).shape == (0, 3)
