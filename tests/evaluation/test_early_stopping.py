import numpy as np
import pytest
import torch

from orbitset.evaluation.early_stopping import OrbitHalves, orbit_splits, stop_early


def _orbits(num=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 12, (num,), generator=generator) * 1_000_003


def test_splits_never_share_an_orbit_and_are_halves_of_the_orbits():
    orbit = _orbits()
    splits = orbit_splits(orbit, splits=10, seed=3)
    for side in splits.is_validation_SN:
        validation, test = set(orbit[side].tolist()), set(orbit[~side].tolist())
        assert not validation & test
        assert validation | test == set(orbit.tolist())
        assert abs(len(validation) - len(test)) <= 1
    assert len({tuple(side.tolist()) for side in splits.is_validation_SN}) > 1


def test_splits_are_a_function_of_the_seed():
    orbit = _orbits()
    one, same, other = (orbit_splits(orbit, seed=seed).is_validation_SN for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_one_orbit_cannot_be_split():
    with pytest.raises(ValueError, match="at least two orbits"):
        orbit_splits(torch.zeros(5, dtype=torch.int64))


def test_scores_are_means_over_each_side_without_what_was_left_out():
    splits = OrbitHalves(torch.tensor([[True, True, False, False]]))
    right = torch.tensor([0.2, 0.4, 0.6, float("nan")], dtype=torch.float64)
    validation, test = splits.scores(right)
    assert validation == pytest.approx([0.3]) and test == pytest.approx([0.6])


def test_stopping_equals_a_loop():
    rng = np.random.default_rng(0)
    validation, test = rng.integers(0, 5, (7, 9)) / 5, rng.random((7, 9))
    found = stop_early(torch.tensor(validation), torch.tensor(test))
    for split in range(9):
        best = 0
        for evaluation in range(7):
            if validation[evaluation, split] > validation[best, split]:
                best = evaluation
        assert found.evaluation_S[split] == best
        assert found.score_S[split] == test[best, split]


def test_the_score_does_not_look_at_the_test_side_to_choose():
    validation = torch.tensor([[0.9], [0.1]])
    assert stop_early(validation, torch.tensor([[0.0], [1.0]])).score_S == [0.0]


@pytest.mark.parametrize(
    ("validation", "test", "word"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2), "evaluations, splits"),
        (torch.zeros(0, 3), torch.zeros(0, 3), "evaluations, splits"),
        (torch.tensor([[float("nan")]]), torch.zeros(1, 1), "NaN"),
    ],
)
def test_scores_that_cannot_be_chosen_from_are_refused(validation, test, word):
    with pytest.raises(ValueError, match=word):
        stop_early(validation, test)
