from dataclasses import replace
from pathlib import Path

import pytest

from orbitset.datasets.table import ImageTable
from orbitset.errors import ConfigError
from orbitset.orbits.observed import ObservedConfig
from orbitset.recipes.described import described_exclusions, described_orbits
from orbitset.recipes.exclusions import excluded, neighbours


def found(values):
    """What is left out of a table of two things that have these values of a factor each."""
    columns = {"thing": ["x"] * len(values) + ["y"] * len(values), "factor": [*values, *values]}
    columns = {name: tuple(map(str, column)) for name, column in columns.items()}
    table = ImageTable.numbered(
        "t.csv", Path(), [str(at) for at in range(2 * len(values))], columns
    )
    return [str(exclusion) for exclusion in neighbours(table, ["thing"])]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (range(6), "factor:1step"),
        (range(0, 360, 36), "factor:1step:circular"),
        (range(-180, 180, 10), "factor:4steps:circular"),
        (range(0, 361, 10), "factor:4steps:circular"),
        (range(-90, 91, 15), "factor:1step"),
        (range(41), "factor:5steps"),
        ([22.5 * at for at in range(8)], "factor:1step"),
        (
            [f"{part}_{at:03}" for part in ("test", "train") for at in (1, 2, 5, 6, 9, 30)],
            "factor:1step",
        ),
    ],
)
def test_an_eighth_of_what_is_in_order_is_left_out(values, expected):
    assert found(values) == [expected]


@pytest.mark.parametrize(
    "values",
    [
        range(5),
        ["left", "front", "right", "up", "down", "back"],
        [at // 2 for at in range(12)],
        [f"Font-{name}" for name in "abcdefgh"],
        [348, 348, 348, 348, 348, 348, 300, 500],
        [*range(5), "front", "back", "top"],
    ],
)
def test_what_orders_nothing_leaves_out_nothing(values):
    assert found(values) == []


def test_measurements_that_no_two_things_share_are_no_order():
    values = [0.5, 1.25, 1.5, 2.75, 3.5, 4.25]
    measured = [str(value + 0.37 * thing) for thing in (1, 2) for value in values]
    columns = {"thing": ("x",) * 6 + ("y",) * 6, "sharpness": tuple(measured)}
    table = ImageTable.numbered("t", Path(), [str(at) for at in range(12)], columns)
    assert neighbours(table, ["thing"]) == []


def test_one_order_under_two_names_is_left_out_once():
    names = [f"r_{at}" for at in range(8)]
    columns = {
        "thing": ("x",) * 8 + ("y",) * 8,
        "view": (*names, *names),
        "frame": tuple(str(at) for at in (*range(8), *range(8))),
        "shot": tuple(str(at) for at in (*range(8), *range(7, -1, -1))),
    }
    table = ImageTable.numbered("t", Path(), [str(at) for at in range(16)], columns)
    assert [str(found) for found in neighbours(table, ["thing"])] == ["view:1step", "shot:1step"]
    assert [str(found) for found in neighbours(table, ["thing"], {"view", "shot"})] == [
        "frame:1step"
    ]


@pytest.mark.parametrize(
    ("exclude", "hint"),
    [
        (("light", "view:2steps"), "of the first: --exclude light,view:2steps:circular"),
        (("view:2steps:circular",), "(--exclude none keeps them)"),
        (("light",), "with the same light"),
    ],
)
def test_a_line_that_may_be_a_circle_is_printed_with_the_option_that_says_so(
    small_faces, exclude, hint
):
    config = small_faces()
    config = replace(config, evaluation=replace(config.evaluation, exclude=exclude))
    assert described_exclusions(config).endswith(hint)
    assert described_exclusions(config) in described_orbits(config)


def test_neighbours_that_are_misspelt_are_refused_with_how_they_are_written():
    columns = {"thing": ("x", "x"), "view": ("1", "2"), "at:x": ("1", "2")}
    table = ImageTable.numbered("t", Path(), ["0", "1"], columns)
    orbits = ObservedConfig(orbit=("thing",), label="thing")
    with pytest.raises(ConfigError, match="--exclude view:2stps is not understood; name a factor"):
        excluded(table, table, orbits, requested=["view:2stps"])
    assert excluded(table, table, orbits, requested=["at:x", "at:x:1step"]) == (
        "at:x",
        "at:x:1step",
    )
