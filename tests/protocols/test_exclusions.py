import itertools

import pytest
import torch

from orbitset.datasets.observed import ObservedImages
from orbitset.errors import ConfigError, DataError
from orbitset.protocols.exclusions import Exclusion, left_out_in_words


def images(columns):
    num = len(next(iter(columns.values())))
    return ObservedImages.of(torch.zeros(num, 1, 2, 2, dtype=torch.uint8), columns)


def left_out(text, columns):
    """The pairs of rows that it leaves out, of all images of one label."""
    exclusion, observed = Exclusion.parse(text), images(columns)
    factors = {**observed.factors, **exclusion.numbers(observed, "thing")}
    holds = exclusion.rule.holds(factors, factors) & (factors["thing"][:, None] == factors["thing"])
    return {(i, j) for i, j in holds.nonzero().tolist() if i < j}


@pytest.mark.parametrize(
    "text",
    ["light", "view:3", "view:2.5:360", "angle:30:circular", "view:1step", "a:b:2steps:circular"],
)
def test_settings_are_written_as_they_are_read(text):
    assert str(Exclusion.parse(text)) == text
    assert str(Exclusion.parse("view:1steps")) == "view:1step"


def test_columns_may_have_colons_of_their_own():
    assert Exclusion.parse("camera:left") == Exclusion("camera:left")


@pytest.mark.parametrize(
    ("text", "message"),
    [("view:0", "leaves out nothing"), ("view:2steps:360", "write view:2steps:circular")],
)
def test_what_says_nothing_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        Exclusion.parse(text)


def test_neighbours_are_of_one_label_and_one_series():
    names = [f"{film}_{at:03}" for film in ("a", "b") for at in (0, 40, 80, 200)]
    columns = {"thing": ["x"] * 8 + ["y"] * 8, "frame": names * 2}
    near = {(0, 1), (1, 2), (4, 5), (5, 6), (8, 9), (9, 10), (12, 13), (13, 14)}
    assert left_out("frame:41", columns) == near
    assert left_out("frame:40", columns) == set()
    assert left_out("frame:1step", columns) == near | {(2, 3), (6, 7), (10, 11), (14, 15)}


def test_the_last_step_of_a_circle_is_followed_by_the_first_in_each_series():
    angles = [["0", "90", "180", "270"], ["0", "60", "120", "180", "240", "300"]]
    columns = {"thing": ["x"] * 4 + ["y"] * 6, "angle": [*angles[0], *angles[1]]}
    ring = [(0, 1), (1, 2), (2, 3), (0, 3)]
    ring += [(4, 5), (5, 6), (6, 7), (7, 8), (8, 9), (4, 9)]
    assert left_out("angle:1step:circular", columns) == set(ring)
    assert left_out("angle:1step", columns) == set(ring) - {(0, 3), (4, 9)}
    assert left_out("angle:61:360", columns) == set(ring[4:])


@pytest.mark.parametrize("last", [340, 350, 360])
def test_a_circle_begins_anew_after_its_last_number(last):
    values = [str(angle) for angle in range(0, last + 1, 10)]
    near = left_out("angle:15:circular", {"thing": ["x"] * len(values), "angle": values})
    assert (0, len(values) - 1) in near and (0, 2) not in near


@pytest.mark.parametrize("text", ["shot:2steps", "shot:1step:circular"])
def test_steps_equal_a_loop_over_the_images_of_a_label(text):
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 12, (40,), generator=generator).tolist()
    things = torch.randint(0, 3, (40,), generator=generator).tolist()
    columns = {"thing": [str(thing) for thing in things], "shot": [str(n) for n in numbers]}
    expected = set()
    for i, j in itertools.combinations(range(40), 2):
        if things[i] == things[j]:
            places = sorted(
                {n for n, thing in zip(numbers, things, strict=True) if thing == things[i]}
            )
            steps = abs(places.index(numbers[i]) - places.index(numbers[j]))
            steps = min(steps, len(places) - steps) if "circular" in text else steps
            if steps <= int(text[5]):
                expected.add((i, j))
    assert left_out(text, columns) == expected


def test_what_has_no_numbers_has_no_neighbours():
    with pytest.raises(DataError, match="no value of pose is a number"):
        left_out("pose:1step", {"thing": ["x", "x"], "pose": ["left", "right"]})


def test_what_is_left_out_is_said():
    assert left_out_in_words(["axis", "view:1step:circular"]) == (
        "with the same axis, or up to 1 step away in view (circular)"
    )
    assert left_out_in_words(["angle:30:360"]) == "nearer than 30 in angle (period 360)"
