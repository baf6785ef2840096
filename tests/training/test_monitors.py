import pytest
import torch

from orbitset.errors import TrainingError
from orbitset.training.monitors import Monitor, code_spread, effective_rank


def test_monitor_names_the_first_bad_step_and_the_part_rather_than_the_sum():
    monitor = Monitor()
    for value in (1.0, float("nan"), float("inf")):
        terms = {"loss": torch.tensor(value), "rectify": torch.tensor(value)}
        monitor.watch(terms)
        monitor.count(torch.randn(4, 3))
    with pytest.raises(TrainingError, match="'rectify' was not finite at step 1"):
        monitor.check()


def test_monitor_means_and_flush():
    monitor = Monitor()
    for value in (1.0, 3.0):
        monitor.watch({"loss": torch.tensor(value)})
        monitor.count(torch.randn(4, 3))
    assert monitor.flush()["loss"] == 2.0
    assert monitor.flush() == {}


def test_monitor_goes_on_from_its_state_bit_for_bit():
    whole, first = Monitor(), Monitor()
    values = torch.rand(10).tolist()
    for monitor, part in ((whole, values), (first, values[:4])):
        _watch(monitor, part)
    second = Monitor(*first.state)
    _watch(second, values[4:])
    assert second.means() == whole.means()


def test_monitor_counts_bad_steps_from_where_it_went_on():
    monitor = Monitor(step=40)
    _watch(monitor, [1.0, float("nan")])
    with pytest.raises(TrainingError, match="at step 41"):
        monitor.check()


def test_terms_are_told_by_their_names_and_must_stay_the_same():
    monitor = Monitor()
    monitor.watch({"loss": torch.tensor(1.0), "a": torch.tensor(2.0)})
    monitor.watch({"a": torch.tensor(2.0), "loss": torch.tensor(1.0)})
    assert monitor.state[0] == {"loss": 2.0, "a": 4.0}
    with pytest.raises(ValueError, match="the same ones at every step"):
        monitor.watch({"loss": torch.tensor(1.0)})


def _watch(monitor, values):
    for value in values:
        monitor.watch({"loss": torch.tensor(value)})
        monitor.count(torch.ones(2, 2))


def test_code_spread_is_small_for_nearly_equal_codes_far_from_the_origin():
    codes = 100 + 0.01 * torch.randn(64, 8)
    assert code_spread(codes) < 1e-6


def test_batch_norm_hides_a_collapse_from_the_spread_but_not_from_the_rank():
    on_a_line = torch.randn(64, 1) * torch.randn(8)
    normed = torch.nn.functional.batch_norm(on_a_line * 1e-3, None, None, training=True)
    monitor = Monitor()
    monitor.watch({"loss": torch.tensor(0.0)})
    monitor.count(normed)
    means = monitor.flush()
    assert means["spread"] > 0.9
    assert means["rank"] < 1.1


def test_effective_rank_counts_directions():
    codes = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([codes, torch.zeros(2000, 5)], 1)
    assert effective_rank(padded) == pytest.approx(3, rel=0.02)
    assert effective_rank(padded[:7]) < 3.001
