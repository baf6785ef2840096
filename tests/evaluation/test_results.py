import statistics

import numpy as np
import pytest
import torch

from orbitset.evaluation.results import Accuracy

VALUES = [0.5, 0.25, 0.75, 1.0, 0.125, 0.625, 0.5]


def accuracy_of(values):
    return Accuracy(torch.tensor(values, dtype=torch.float64), torch.zeros(0))


def test_mean_and_deviation_are_those_of_the_draws():
    accuracy = accuracy_of(VALUES)
    assert accuracy.mean == pytest.approx(statistics.mean(VALUES))
    assert accuracy.sd == pytest.approx(statistics.stdev(VALUES))


@pytest.mark.parametrize("num", [2, 7, 100])
def test_the_interval_holds_the_middle_95_percent(num):
    values = np.random.default_rng(0).random(num)
    low, high = accuracy_of(values.tolist()).interval
    assert (low, high) == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])))


def test_a_single_draw_has_no_spread():
    accuracy = accuracy_of([0.5])
    assert (accuracy.mean, accuracy.sd, accuracy.interval) == (0.5, None, (0.5, 0.5))


def test_the_summary_says_what_was_repeated_and_how_often():
    accuracy = accuracy_of(VALUES)
    low, high = accuracy.interval
    assert accuracy.summary() == {
        "mean": accuracy.mean,
        "sd": accuracy.sd,
        "low": low,
        "high": high,
        "n": 7,
        "repeated": "draws",
    }
