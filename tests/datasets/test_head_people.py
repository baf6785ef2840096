import pytest

from orbitset.datasets.head_people import PERSON_TRAITS, SESSION_TRAITS, draw_head

OF_SESSIONS = {*SESSION_TRAITS, "mouth_open", "glasses", "hair_volume", "hair_curl"} | {
    "hair_long",
    "fringe",
}


def test_a_person_keeps_shape_and_paint_in_all_sessions():
    heads = [draw_head(seed=0, person=3, session=session) for session in range(4)]
    for name in heads[0].traits:
        if name not in OF_SESSIONS:
            assert len({head[name] for head in heads}) == 1, name
    assert len({(head.moles, head.waves) for head in heads}) == 1


@pytest.mark.parametrize("name", ["smile", "yaw", "exposure", "clothes"])
def test_sessions_differ(name):
    assert len({draw_head(seed=0, person=3, session=session)[name] for session in range(4)}) == 4


def test_people_and_seeds_differ_in_every_drawn_trait():
    one, other, elsewhere = (
        draw_head(seed=seed, person=person, session=0) for seed, person in ((0, 0), (0, 1), (1, 0))
    )
    for name in PERSON_TRAITS:
        if name not in ("skin", "hair_tone", "hair_volume", "hair_curl"):
            assert len({one[name], other[name], elsewhere[name]}) == 3, name


def test_drawing_again_gives_the_same_head():
    assert draw_head(seed=0, person=5, session=2) == draw_head(seed=0, person=5, session=2)


def test_traits_have_the_mean_and_spread_that_is_written_down():
    heads = [draw_head(seed=0, person=person, session=0) for person in range(300)]
    for name in ("nose_out", "jaw_width", "eye_x", "lip"):
        mean, spread = PERSON_TRAITS[name]
        values = [head[name] for head in heads]
        found = sum(values) / len(values)
        assert abs(found - mean) < 0.25 * spread
        variance = sum((value - found) ** 2 for value in values) / len(values)
        assert variance**0.5 == pytest.approx(spread, rel=0.15)
        assert all(abs(value - mean) <= 3 * spread for value in values)


def test_glasses_come_and_go_with_those_who_wear_them():
    heads = [draw_head(seed=0, person=person, session=1) for person in range(200)]
    wearers = [head["glasses"] for head in heads if head["wears_glasses"]]
    others = [head["glasses"] for head in heads if not head["wears_glasses"]]
    assert 0.6 < sum(wearers) / len(wearers) < 0.9
    assert 0 < sum(others) / len(others) < 0.15
