from dataclasses import replace

import pytest
import torch

from orbitset.datasets.head_paint import paint
from orbitset.datasets.head_people import draw_head


@pytest.fixture
def head():
    plain = draw_head(seed=0, person=0, session=0)
    calm = {"blotch": 0.0, "freckles": -1.0, "beard": 0.0, "moustache": 0.0, "bald": 0.0}
    sizes = {"width": 1.0, "height": 1.0, "depth": 1.0, "smile": 0.0, "mouth_open": 0.0}
    return replace(plain, traits=plain.traits | calm | sizes | {"skin": 0.5}, moles=())


def tone(head, x, y, z=0.8):
    return float(paint(tuple(torch.tensor([part]) for part in (x, y, z)), head)[0])


def changed(head, **traits):
    return replace(head, traits=head.traits | traits)


def test_brows_lips_and_pupils_are_darker_than_skin(head):
    skin = tone(head, 0.3, -0.35)
    assert skin == pytest.approx(0.5, abs=0.02)
    brow_y = head["brow_y"] + 1.3 * head["brow_raise"] + 0.28 * head["brow_arch"]
    assert tone(head, head["brow_x"], brow_y) < 0.8 * skin
    assert tone(head, 0.1, head["mouth_y"] + 0.035) < 0.95 * skin
    assert tone(head, head["eye_x"], head["eye_y"]) < 0.1


def test_hair_and_clothes_have_their_own_tone(head):
    dark = changed(head, hair_tone=0.05, clothes=0.11, hair_long=0.0)
    assert tone(dark, 0.0, 1.25, 0.0) < 0.1
    assert tone(dark, 0.0, -1.75, 0.4) == pytest.approx(0.11)


def test_a_beard_darkens_the_jaw_and_not_the_cheek(head):
    bearded = changed(head, beard=0.5)
    assert tone(bearded, 0.2, -0.95, 0.6) < 0.7 * tone(head, 0.2, -0.95, 0.6)
    assert tone(bearded, 0.35, -0.2, 0.7) == tone(head, 0.35, -0.2, 0.7)


def test_a_mole_darkens_the_skin_where_it_is_and_on_one_side_only(head):
    with_mole = replace(head, moles=((0.3, -0.4, 0.03, 0.6),))
    assert tone(with_mole, 0.3, -0.4) < 0.6 * tone(head, 0.3, -0.4)
    assert tone(with_mole, -0.3, -0.4) == tone(head, -0.3, -0.4)


def test_tones_are_shares_of_light():
    places = torch.rand(3, 5000, generator=torch.Generator().manual_seed(0)) * 3 - 1.5
    for person in range(4):
        head = draw_head(seed=0, person=person, session=0)
        tone_M, gloss_M = paint((places[0], places[1], places[2]), head)
        assert tone_M.min() >= 0 and tone_M.max() <= 1
        assert gloss_M.min() >= -0.05 and gloss_M.max() <= 0.5
