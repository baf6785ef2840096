import torch

from orbitset.evaluation.points import identities


def test_equal_codes_are_found_by_their_bits_and_zeros_of_either_sign_are_one():
    points = torch.tensor([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    assert identities(points).tolist() == [0, 1, 0, 1]


def test_a_hash_that_fails_is_noticed(monkeypatch):
    points = torch.randn(6, 3, dtype=torch.float64)[[0, 1, 2, 0, 1, 2]]
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.zeros(3, dtype=torch.int64))
    assert identities(points).tolist() == [0, 1, 2, 0, 1, 2]
