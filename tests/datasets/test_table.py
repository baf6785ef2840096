from pathlib import Path

import pytest

from orbitset.datasets.table import ImageTable, Problem, named, orbit_problems
from orbitset.errors import ConfigError, DataError


def some_table():
    """Two orbits of two views, one of a single view, and one without its front."""
    columns = {
        "person": ("ann", "ann", "bob", "bob", "eve", "kim", "kim"),
        "view": ("front", "left", "left", "front", "front", "left", "right"),
    }
    paths = tuple(f"{number}.png" for number in range(7))
    return ImageTable("faces.csv", Path("root"), paths, columns, tuple(range(2, 9)))


def test_stopping_names_every_problem_and_how_to_go_on():
    problems = [Problem(5, "3.png does not exist"), Problem(2, "0.png is empty")]
    with pytest.raises(DataError) as caught:
        some_table().without(problems, "stop")
    assert caught.value.message == (
        "faces.csv has 2 problems: row 2: 0.png is empty; row 5: 3.png does not exist"
    )
    assert "--on-problem skip" in caught.value.hint


def test_skipping_leaves_the_rows_out_and_keeps_the_list():
    left = some_table().without([Problem(3, "bad"), Problem(6, "bad too")], "skip")
    assert left.paths == ("0.png", "2.png", "3.png", "5.png", "6.png")
    assert left.columns["person"] == ("ann", "bob", "bob", "kim", "kim")
    assert left.rows == (2, 4, 5, 7, 8)
    again = left.without([Problem(8, "worse")], "skip")
    assert [problem.row for problem in again.left_out] == [3, 6, 8]


def test_boxes_go_with_their_rows():
    boxes = tuple((0.0, 0.0, float(at + 1), 1.0) for at in range(7))
    table = some_table()
    table = ImageTable(table.source, table.root, table.paths, table.columns, table.rows, boxes)
    assert table.without([Problem(2, "bad")], "skip").boxes == boxes[1:]


def test_nothing_left_is_an_error():
    problems = [Problem(row, "bad") for row in range(2, 9)]
    with pytest.raises(DataError, match="nothing is left of faces.csv"):
        some_table().without(problems, "skip")


def test_many_problems_are_counted():
    problems = [Problem(row, "bad") for row in range(2, 20)]
    with pytest.raises(DataError, match="18 problems: row 2: bad.*; and 10 more"):
        some_table().without(problems, "stop")


def test_orbits_that_cannot_be_learned_from_are_named():
    problems = orbit_problems(some_table(), ["person"], ("view", "front"))
    assert [str(problem) for problem in problems] == [
        "row 6: its orbit (person eve) has 1 member, 2 are needed",
        "row 7 and 1 more: its orbit (person kim) has no member with view front",
    ]
    left = some_table().without(problems, "skip")
    assert set(left.columns["person"]) == {"ann", "bob"}


def test_many_orbits_that_are_left_out_for_one_reason_are_one_clause():
    few = [
        Problem(row, f"its orbit (thing t{row}) has 1 member, 2 are needed") for row in (3, 7, 9)
    ]
    assert named([Problem(2, "a.png does not exist"), *few]) == (
        "row 2: a.png does not exist; 3 rows of 3 orbits, each of which has 1 member, 2 are needed "
        "(the first: row 3, thing t3)"
    )
    assert named(few[:2]) == f"{few[0]}; {few[1]}"


def test_an_orbit_with_two_targets_is_named():
    table = some_table()
    problems = orbit_problems(table, ["view"], ("view", "front"))
    assert "has view front in rows 2 and 5 and 6" in str(problems[0])


def test_single_members_are_kept_if_asked_for():
    assert orbit_problems(some_table(), ["person"], min_members=1) == []


def test_rows_are_chosen_by_value_and_unknown_ones_named():
    assert some_table().where("person", ["ann", "eve"]).rows == (2, 3, 6)
    with pytest.raises(ConfigError, match="did you mean ann"):
        some_table().where("person", ["anna"])
    with pytest.raises(DataError, match="has no factor light; it has person, view"):
        some_table().where("light", ["1"])


def test_what_was_left_out_before_is_named_too():
    left = some_table().without([Problem(2, "is missing")], "skip")
    rest = [Problem(row, "is alone") for row in left.rows]
    with pytest.raises(DataError, match="is missing.*is alone"):
        left.without(rest, "skip")
