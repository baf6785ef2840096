import pytest
import torch

from orbitset.datasets.head_people import draw_head
from orbitset.datasets.head_shapes import (
    clothes_distance,
    hair_distance,
    scene_distance,
    skin_distance,
)

HEADS = [draw_head(seed=0, person=person, session=0) for person in range(6)]
HAIRY = [head for head in HEADS if not head["bald"]]


def points(*places):
    x, y, z = torch.tensor(places, dtype=torch.float32).T
    return x, y, z


def scattered(num):
    places = torch.rand(num, 3, generator=torch.Generator().manual_seed(0)) * 3 - 1.5
    return places[:, 0], places[:, 1], places[:, 2]


@pytest.mark.parametrize("head", HEADS)
def test_the_middle_of_the_head_is_inside_and_the_air_before_it_outside(head):
    inside = points((0.0, 0.3, 0.0), (0.0, -0.5, 0.3), (0.0, -1.4, -0.3))
    outside = points((0.0, 0.0, 1.4), (1.3, 0.2, 0.0), (0.0, 1.5, 0.0), (0.0, 0.2, -1.4))
    assert (skin_distance(inside, head) < 0).all()
    assert (skin_distance(outside, head) > 0.1).all()
    assert (clothes_distance(outside) > 0.1).all()


@pytest.mark.parametrize("head", HEADS)
def test_left_and_right_are_alike(head):
    x, y, z = scattered(500)
    assert torch.equal(scene_distance((x, y, z), head), scene_distance((-x, y, z), head))


@pytest.mark.parametrize("head", HEADS)
def test_the_nose_stands_out_from_the_face(head):
    def front(y):
        z = torch.linspace(0, 1.5, 1501)
        line = (torch.zeros_like(z), torch.full_like(z, y * head["height"]), z)
        return float(z[(skin_distance(line, head) < 0).nonzero().max()])

    nose = front(head["nose_y"])
    assert nose == pytest.approx(head["nose_out"] * head["depth"], abs=0.02)
    assert nose > front(0.05) + 0.08
    assert nose > front(head["mouth_y"] + 0.15) + 0.05


@pytest.mark.parametrize("head", HAIRY)
def test_hair_covers_the_crown_and_not_the_face(head):
    crown = points((0.0, 1.3, 0.0), (0.0, 0.4, -1.1))
    face = points((0.0, -0.1, 1.0), (0.3, -0.4, 0.8), (0.0, 0.2, 1.0))
    assert (hair_distance(crown, head) < skin_distance(crown, head)).all()
    assert (hair_distance(face, head) > skin_distance(face, head)).all()


@pytest.mark.parametrize("head", HEADS)
def test_distances_hardly_anywhere_grow_twice_as_fast_as_the_way_walked(head):
    """A ray that walks by them comes nearer with every step, even where it oversteps."""
    x, y, z = scattered(4000)
    step = 0.01
    before = scene_distance((x, y, z), head)
    for dx, dy, dz in ((step, 0, 0), (0, step, 0), (0, 0, step)):
        change = (scene_distance((x + dx, y + dy, z + dz), head) - before).abs() / step
        assert change[(before > 0) & (before < 0.5)].quantile(0.99) < 2
