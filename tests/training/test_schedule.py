import pytest

from orbitset.training.schedule import learning_rate


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rate_rises_to_the_peak_and_never_exceeds_it(schedule):
    rates = [
        learning_rate(s, peak=0.1, total_steps=100, warmup_steps=10, schedule=schedule)
        for s in range(100)
    ]
    assert rates[:10] == pytest.approx([0.01 * (i + 1) for i in range(10)])
    assert max(rates) == pytest.approx(0.1)
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))


def test_cosine_is_half_way_down_in_the_middle():
    rate = learning_rate(55, peak=2.0, total_steps=100, warmup_steps=10, schedule="cosine")
    assert rate == pytest.approx(1.0)


def test_constant_stays_at_the_peak_without_warmup():
    rate = learning_rate(0, peak=2.0, total_steps=1, warmup_steps=0, schedule="constant")
    assert rate == 2.0
