"""The figure of retrieval: which queries it shows."""

import numpy as np
import pytest

from orbitset.report.figures import image_rows
from orbitset.report.pictures import _answers_of, _retrieval_rows

NAMES = ("canonical", "query", "nearest", "rectified")


def _arrays(hits, seed, mistakes=0):
    """Images that say where they come from: of query number n all four are told by n."""
    found = {"is_hit": np.array(hits)}
    for kind, name in enumerate(NAMES):
        images = np.zeros((len(hits), 1, 2, 2), np.uint8) + 10 * kind
        images += np.arange(len(hits), dtype=np.uint8)[:, None, None, None]
        found[name] = images + (100 * seed if name in ("nearest", "rectified") else 0)
        if mistakes:
            found[f"mistake_{name}"] = np.full((mistakes, 1, 2, 2), 200 + kind, np.uint8)
    return found


def _numbers(images):
    return [None if image is None else int(image.max()) for image in images]


def test_mistakes_of_each_are_shown_from_the_random_queries():
    oj = _arrays([True, True, False, True, False], 0)
    ex = _arrays([True, False, True, True, False], 1)
    rows, hits = _retrieval_rows(oj, ex)
    shown = {name: _numbers(images) for name, images in rows}
    assert shown["query"] == [10, 13, 11, 12, 14]
    assert shown["EX's top-1"] == [120, 123, 121, 122, 124]
    assert hits["OJ's top-1"] == [True, True, True, False, False]
    assert hits["EX's top-1"] == [True, True, False, True, False]


def test_a_method_that_is_right_throughout_is_shown_with_a_mistake_from_all_queries():
    oj, ex = _arrays([True] * 3, 0, mistakes=2), _arrays([True, False, True], 1, mistakes=2)
    rows, hits = _retrieval_rows(oj, ex)
    shown = {name: _numbers(images) for name, images in rows}
    assert shown["query"] == [10, 12, 11, 201, 201]
    assert shown["OJ's top-1"] == [20, 22, 21, 202, 202]
    assert shown["EX's top-1"] == [120, 122, 121, None, None]
    assert hits["OJ's top-1"] == [True, True, True, False, False]
    assert hits["EX's top-1"] == [True, True, False, None, None]
    figure = image_rows(rows, hits)
    assert len(figure.axes[0].images) == 5 * 5 - 2


def test_of_ex_nothing_is_decoded():
    oj, ex = _arrays([True, False], 0), _arrays([True, True], 1, mistakes=1)
    rows, hits = _retrieval_rows(oj, ex)
    shown = {name: _numbers(images) for name, images in rows}
    assert shown["rectified"] == [30, 31, None] and shown["OJ's top-1"] == [20, 21, None]
    assert hits["EX's top-1"] == [True, True, False]


@pytest.mark.parametrize("hits", [[True, True, False, True], [True] * 4])
@pytest.mark.parametrize("is_old", [False, True])
def test_oj_alone_shows_right_ones_and_then_mistakes(hits, is_old):
    rows, marks = _answers_of(_arrays(hits, 0, mistakes=0 if is_old else 2))
    shown = {name: _numbers(images) for name, images in rows}
    among = [10 + at for at, hit in enumerate(hits) if not hit]
    wrong = among if is_old else [201, 201]
    assert shown["query"] == [10 + at for at, hit in enumerate(hits) if hit] + wrong
    assert marks["OJ's top-1"] == [True] * sum(hits) + [False] * len(wrong)


def test_records_of_other_queries_are_not_mixed():
    oj, ex = _arrays([True, True], 0), _arrays([True, True], 1)
    ex["query"] = ex["query"] + 5
    with pytest.raises(ValueError, match="different queries"):
        _retrieval_rows(oj, ex)
