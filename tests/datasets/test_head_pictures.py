from dataclasses import replace

import pytest
import torch

from orbitset.datasets.head_people import draw_head
from orbitset.datasets.head_pictures import EXTENT, LIGHTS, picture

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def head():
    plain = draw_head(seed=0, person=0, session=0)
    straight = {"yaw": 0.0, "pitch": 0.0, "roll": 0.0, "glasses": 0.0}
    straight |= {"freckles": -1.0, "hair_tone": 0.03}
    return replace(plain, traits=plain.traits | straight, moles=(), waves=())


def look(head, *, degrees=(0.0,), lights=(7,), size_px=24, shift=(0.0, 0.0)):
    shifts = [shift] * len(degrees)
    return picture(head, degrees=degrees, shifts=shifts, lights=lights, size_px=size_px, device=CPU)


def test_there_is_a_picture_for_each_view_and_light(head):
    assert look(head, degrees=(0.0, 30.0), lights=(0, 7, 12)).shape == (2, 3, 24, 24)


def test_a_straight_plain_head_is_symmetric(head):
    frontal = look(head, lights=(0, 7))
    assert (frontal - frontal.flip(-1)).abs().max() < 0.05
    turned = look(head, degrees=(-45.0, 45.0), lights=(0,))
    assert (turned[0] - turned[1].flip(-1)).abs().max() < 0.05


def test_opposite_lights_give_mirror_images(head):
    left, right = look(head, lights=(2, 12))[0]
    assert LIGHTS[2].right == -LIGHTS[12].right
    assert (left - right.flip(-1)).abs().max() < 0.05


def test_flashes_cast_shadows_and_the_bright_room_casts_none(head):
    """In the light from the left only what faces right lies in the dark."""
    room, left = look(head, lights=(0, 2), size_px=32)[0]
    right_cheek, left_cheek = (slice(14, 20), slice(18, 21)), (slice(14, 20), slice(11, 14))
    assert left[left_cheek].mean() > 3 * left[right_cheek].mean()
    assert 0.8 < room[left_cheek].mean() / room[right_cheek].mean() < 1.25


def test_the_chin_shades_the_neck_in_light_from_above(head):
    front, above = look(head, lights=(7, 16), size_px=32)[0]
    neck = (slice(26, 28), slice(14, 18))
    assert above[neck].mean() < 0.5 * front[neck].mean()


def test_a_shift_moves_the_picture(head):
    pixel = EXTENT / 24
    still = look(head, lights=(0,))[0, 0]
    moved = look(head, lights=(0,), shift=(pixel, 0.0))[0, 0]
    assert (moved[:, 2:-3] - still[:, 3:-2]).abs().mean() < 0.01


def test_glasses_change_the_eyes_only(head):
    with_glasses = replace(head, traits=head.traits | {"glasses": 1.0, "frame_tone": 0.04})
    change = (look(with_glasses, size_px=32) - look(head, size_px=32))[0, 0].abs()
    assert change[11:16].amax() > 0.1
    assert change[:8].amax() == 0 and change[19:].amax() == 0


def test_the_background_is_dark_and_even(head):
    for light in look(head, lights=(0, 7, 1))[0]:
        corner = light[:3, :3]
        assert corner.max() < 0.08 and corner.max() - corner.min() < 1e-6
