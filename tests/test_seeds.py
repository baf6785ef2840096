import pytest
import torch

from orbitset.seeds import stable_seed, stream


def test_seeds_are_the_same_on_every_machine_and_in_every_version():
    assert stable_seed("orbits", 0) == 6252765962246414970
    assert stream("orbits", 0).initial_seed() == 6252765962246414970


@pytest.mark.parametrize(
    "other",
    [("batch", 0, 8), ("batch", 1, 7), ("other", 0, 7), ("batch", 0), ("batch", 7, 0)],
)
def test_other_parts_give_another_seed(other):
    assert stable_seed("batch", 0, 7) != stable_seed(*other)


def test_parts_are_told_apart_however_they_are_cut_or_written():
    seeds = [stable_seed(*parts) for parts in (("ab",), ("a", "b"), (1,), ("1",), (1, 1), (11,))]
    assert len(set(seeds)) == 6


def test_seeds_use_63_bits():
    seeds = [stable_seed("spread", n) for n in range(2000)]
    assert len(set(seeds)) == 2000
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


def test_equal_parts_give_equal_streams_of_their_own():
    first, again = stream("x", 1), stream("x", 1)
    numbers = torch.rand(5, generator=first)
    assert torch.equal(numbers, torch.rand(5, generator=again))
    assert not torch.equal(numbers, torch.rand(5, generator=first))
    assert not torch.equal(numbers, torch.rand(5, generator=stream("x", 2)))


def test_streams_leave_the_global_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    torch.rand(5, generator=stream("x"))
    assert torch.equal(torch.rand(3), expected)
