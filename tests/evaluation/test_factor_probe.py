"""How well a linear probe finds a factor."""

import torch

from orbitset.evaluation.factor_probe import probe_factor

THING = torch.arange(20).repeat_interleave(6)
VALUE = torch.arange(3).repeat(40)


def test_a_factor_that_codes_hold_is_found_in_other_things():
    codes = torch.randn(120, 8)
    codes[:, :3] += 20 * torch.eye(3)[VALUE]
    assert probe_factor(codes, VALUE, THING) == 1.0


def test_a_factor_that_codes_do_not_hold_is_found_by_chance_only():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(120, 8, generator=generator)
    assert abs(probe_factor(codes, VALUE, THING) - 1 / 3) < 0.15


def test_what_codes_know_of_single_things_does_not_help():
    codes = torch.zeros(120, 120)
    codes[range(120), range(120)] = 1.0
    assert abs(probe_factor(codes, VALUE, THING) - 1 / 3) < 0.15


def test_long_codes_are_probed_by_their_principal_components():
    codes = torch.randn(120, 8)
    codes[:, :3] += 20 * torch.eye(3)[VALUE]
    assert probe_factor(codes @ torch.randn(8, 2_000), VALUE, THING) == 1.0


def test_where_half_of_the_things_has_one_value_that_is_guessed():
    codes, value_N = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
    assert probe_factor(codes, value_N, value_N) == 0.0
