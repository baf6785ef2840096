import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orbitset.orbits.passes import EqualPasses, ProportionalPasses

sizes = st.lists(st.integers(1, 40), min_size=2, max_size=30).map(torch.tensor)


def proportional(size_N, members=4, orbits=2, seed=0):
    return ProportionalPasses(size_N, members_per_batch=members, orbits_per_batch=orbits, seed=seed)


def visits(passes, num):
    visited = [passes.visited(number) for number in range(passes.count)]
    return torch.cat(visited).bincount(minlength=num)


@given(st.integers(1, 60), st.integers(1, 60))
def test_equal_stretches_share_all_members_and_differ_by_one(members, per_batch):
    passes = EqualPasses(3, members, min(per_batch, members))
    widths = [passes.width(number) for number in range(passes.count)]
    assert sum(widths) == members
    assert max(widths) - min(widths) <= 1
    assert max(widths) == passes.widest
    if 1 < per_batch <= members:
        assert min(widths) >= 2
        assert all(width < 2 * per_batch for width in widths)


@pytest.mark.parametrize(
    ("members", "per_batch", "widths"),
    [
        (7, 4, [3, 4]),
        (9, 5, [4, 5]),
        (11, 4, [3, 4, 4]),
        (5, 4, [5]),
        (33, 4, [4, 4, 4, 4, 4, 4, 4, 5]),
        (3, 2, [3]),
        (3, 1, [1, 1, 1]),
        (1, 3, [1]),
    ],
)
def test_equal_stretches_are_as_near_to_what_was_asked_for_as_can_be(members, per_batch, widths):
    passes = EqualPasses(2, members, per_batch)
    assert [passes.width(number) for number in range(passes.count)] == widths


@given(sizes, st.integers(1, 8), st.integers(1, 5), st.integers(0, 3))
def test_each_orbit_is_visited_in_proportion_to_its_size(size_N, members, orbits, seed):
    passes = proportional(size_N, members, min(orbits, len(size_N)), seed)
    wanted = (size_N / members).round().long().clamp(min=1).clamp(max=passes.count)
    assert visits(passes, len(size_N)).tolist() == wanted.tolist()


@given(sizes, st.integers(1, 8), st.integers(0, 3))
def test_visits_of_an_orbit_use_one_stretch_of_slots_after_the_other(size_N, members, seed):
    passes = proportional(size_N, members, 2, seed)
    used = {orbit: [] for orbit in range(len(size_N))}
    for number in range(passes.count):
        orbit_P = passes.visited(number)
        for orbit, slots in zip(
            orbit_P.tolist(), passes.slots(number, orbit_P).tolist(), strict=True
        ):
            used[orbit] += slots
    assert all(slots == list(range(len(slots))) for slots in used.values())


def test_one_large_orbit_does_not_leave_passes_without_others():
    size_N = torch.tensor([10_000] + [8] * 40)
    passes = proportional(size_N, members=4, orbits=8)
    assert min(passes.num_visited(number) for number in range(passes.count)) >= 4
    assert (
        passes.count == 11
    )  # 11 * 8 orbits are the 11 visits of the large one and 80 of the others


def test_visits_are_spread_over_the_round():
    passes = proportional(torch.tensor([8] * 50 + [80] * 50), members=4, orbits=2)
    counts = [passes.num_visited(number) for number in range(passes.count)]
    assert passes.count == 20
    assert max(counts) - min(counts) <= 16  # of 55 on average: 5 large ones fewer would be chance


def test_the_seed_alone_decides():
    a, b, c = (proportional(torch.arange(1, 30), seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a.visited(n), b.visited(n)) for n in range(a.count))
    assert not all(torch.equal(a.visited(n), c.visited(n)) for n in range(a.count))
