import pytest
import torch

from orbitset.evaluation import invariance
from orbitset.evaluation.invariance import invariance_curve


def slow_curve(codes, orbits, epsilons):
    """(invariance, selectivity, pairs within, pairs across) by a loop over all unordered pairs."""
    codes, orbits = codes.double().tolist(), orbits.tolist()
    within, across = [], []
    for i in range(len(codes)):
        for j in range(i):
            distance = sum((a - b) ** 2 for a, b in zip(codes[i], codes[j], strict=True))
            (within if orbits[i] == orbits[j] else across).append(distance)
    return (
        [sum(d <= e for d in within) / len(within) if within else torch.nan for e in epsilons],
        [sum(d > e for d in across) / len(across) if across else torch.nan for e in epsilons],
        len(within),
        len(across),
    )


def assert_equals_the_loop(codes, orbits, epsilons):
    curve = invariance_curve(codes, orbits, torch.tensor(epsilons))
    within, across, num_within, num_across = slow_curve(codes, orbits, epsilons)
    assert curve.invariance.tolist() == pytest.approx(within, nan_ok=True)
    assert curve.selectivity.tolist() == pytest.approx(across, nan_ok=True)
    assert (curve.num_within, curve.num_across) == (num_within, num_across)


def random_codes(num=30, dim=4, seed=0):
    return torch.randn(num, dim, generator=torch.Generator().manual_seed(seed))


def whole_codes(num=30, dim=3, seed=0):
    return torch.randint(-2, 3, (num, dim), generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_curve_equals_the_loop(seed):
    orbits = torch.randint(0, 6, (30,), generator=torch.Generator().manual_seed(seed))
    assert_equals_the_loop(random_codes(seed=seed), orbits, [0.1, 1.0, 4.0, 9.0, 100.0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pairs_at_epsilon_count_as_reached(seed):
    orbits = torch.arange(30) % 7
    assert_equals_the_loop(whole_codes(seed=seed), orbits, [float(e) for e in range(12)])


def test_epsilons_may_come_in_any_order_and_twice():
    epsilons = [4.0, 0.0, 9.0, 4.0, -1.0, 2.0]
    assert_equals_the_loop(whole_codes(), torch.arange(30) % 7, epsilons)
    curve = invariance_curve(whole_codes(), torch.arange(30) % 7, torch.tensor(epsilons))
    assert curve.epsilons.tolist() == epsilons


def test_orbit_ids_may_be_any_numbers():
    ids = torch.tensor([2**40, -5, 7])[torch.arange(30) % 3]
    assert_equals_the_loop(whole_codes(), ids, [1.0, 3.0])


def test_known_answer_by_hand():
    codes = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
    curve = invariance_curve(codes, torch.tensor([0, 0, 1, 1]), torch.tensor([25.0, 24.9, 85.0]))
    assert curve.invariance.tolist() == [0.5, 0.0, 1.0]
    assert curve.selectivity.tolist() == [0.5 - 0.25 + 0.0, 0.5, 0.25]


def test_a_single_orbit_has_no_selectivity():
    assert_equals_the_loop(whole_codes(), torch.zeros(30, dtype=torch.int64), [1.0, 5.0])
    curve = invariance_curve(whole_codes(), torch.zeros(30), torch.tensor([1.0]))
    assert curve.selectivity.isnan().all()


def test_orbits_of_one_member_have_no_invariance():
    assert_equals_the_loop(whole_codes(), torch.arange(30), [1.0, 5.0])
    curve = invariance_curve(whole_codes(), torch.arange(30), torch.tensor([1.0]))
    assert curve.invariance.isnan().all()


def test_without_pairs_everything_is_nan():
    curve = invariance_curve(torch.zeros(1, 3), torch.zeros(1), torch.tensor([1.0, 2.0]))
    assert curve.invariance.isnan().all() and curve.selectivity.isnan().all()
    assert (curve.num_within, curve.num_across) == (0, 0)


def test_an_embedding_that_fulfils_the_definition_has_both_1():
    codes = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    curve = invariance_curve(codes, torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, 80.0]))
    assert curve.invariance.tolist() == curve.selectivity.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("size", [1, 500, 5000, 50_000])
def test_chunks_make_no_difference(monkeypatch, size):
    epsilons, orbits = torch.linspace(0, 12, 25), torch.arange(30) % 7
    whole = invariance_curve(whole_codes(), orbits, epsilons)
    monkeypatch.setattr(invariance, "_BLOCK_BYTES", size)
    chunked = invariance_curve(whole_codes(), orbits, epsilons)
    assert torch.equal(chunked.invariance, whole.invariance)
    assert torch.equal(chunked.selectivity, whole.selectivity)


def test_order_of_codes_makes_no_difference():
    codes, orbits, epsilons = whole_codes(), torch.arange(30) % 7, torch.linspace(0, 12, 25)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    first = invariance_curve(codes, orbits, epsilons)
    second = invariance_curve(codes[order], orbits[order], epsilons)
    assert torch.equal(first.invariance, second.invariance)
    assert torch.equal(first.selectivity, second.selectivity)


def test_close_codes_far_from_the_origin_keep_their_distances():
    codes = torch.tensor([[1000.0], [1000.0 + 2**-10], [1001.0]])
    curve = invariance_curve(codes, torch.tensor([0, 0, 1]), torch.tensor([2.0**-20, 2.0**-21]))
    assert curve.invariance.tolist() == [1.0, 0.0]


def test_fractions_are_float64():
    curve = invariance_curve(random_codes(), torch.arange(30) % 7, torch.tensor([1.0]))
    assert curve.invariance.dtype == curve.selectivity.dtype == torch.float64


def test_orbit_ids_of_another_length_are_refused():
    with pytest.raises(ValueError, match="one label per code"):
        invariance_curve(torch.zeros(3, 2), torch.zeros(4), torch.tensor([1.0]))


def test_equal_codes_are_within_epsilon_0():
    codes = random_codes(8, 64).repeat(4, 1)
    curve = invariance_curve(codes, torch.arange(32) % 8, torch.tensor([0.0]))
    assert curve.invariance.tolist() == [1.0]
