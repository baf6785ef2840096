"""Held to the triplets listed one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitset.losses import distance_matrix, mine, triplet_loss
from orbitset.losses import every_triplet as module
from orbitset.losses.every_triplet import every_triplet_terms

ORBITS = torch.tensor([3, 1, 3, -2, 1, 3, 2**40, 1])


def listed(codes, orbits, margin, variant="all"):
    """The same by mining all triplets, and by adding up their hinges."""
    triplets = mine(distance_matrix(codes.detach()), orbits, variant, margin=margin).compact()
    distances = distance_matrix(codes.detach())
    hinges = distances[triplets.anchor, triplets.positive] + margin
    is_active = hinges > distances[triplets.anchor, triplets.negative]
    active = is_active.double().mean().item() if len(is_active) else 0.0
    return triplet_loss(codes, triplets, margin=margin, reduction="sum"), active


@st.composite
def batches(draw):
    """Random, tied, identical codes; one orbit, singletons, orbits of many sizes."""
    num = draw(st.integers(1, 14))
    kind = draw(st.sampled_from(["random", "tied", "identical"]))
    orbits = draw(st.lists(st.integers(0, draw(st.integers(0, 13))), min_size=num, max_size=num))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    codes = torch.randn(num, 3, generator=generator, dtype=torch.float64)
    if kind == "tied":
        codes = codes.round()
    if kind == "identical":
        codes = codes[:1].expand(num, 3).clone()
    return codes, torch.tensor(orbits), draw(st.sampled_from([0.25, 1.5, 40.0]))


@settings(deadline=None, derandomize=True)
@given(batch=batches(), variant=st.sampled_from(["all", "semihard"]))
def test_loss_active_share_and_gradient_are_those_of_listed_triplets(batch, variant):
    codes, orbits, margin = batch
    ours, theirs = codes.clone().requires_grad_(), codes.clone().requires_grad_()
    is_semihard = variant == "semihard"
    loss, active = every_triplet_terms(ours, orbits, margin=margin, is_semihard=is_semihard)
    wanted, wanted_active = listed(theirs, orbits, margin, variant)
    (loss + 0 * ours.sum()).backward()
    (wanted + 0 * theirs.sum()).backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9)
    assert active.item() == pytest.approx(wanted_active)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(batch=batches())
def test_rows_taken_in_parts_change_nothing(batch):
    codes, orbits, margin = batch
    whole = every_triplet_terms(codes, orbits, margin=margin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SORTED", 3 * len(codes))
        patch.setattr(module, "_SCANNED", 3 * len(codes))
        torch.testing.assert_close(every_triplet_terms(codes, orbits, margin=margin), whole)


@settings(deadline=None, derandomize=True)
@given(batch=batches(), is_semihard=st.booleans())
def test_sorting_gives_what_scanning_gives(batch, is_semihard):
    codes, orbits, margin = batch
    scanned, sorted_ = codes.clone().requires_grad_(), codes.clone().requires_grad_()
    first = every_triplet_terms(scanned, orbits, margin=margin, is_semihard=is_semihard)
    first[0].backward()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SCAN_LIMIT", -1)
        second = every_triplet_terms(sorted_, orbits, margin=margin, is_semihard=is_semihard)
        second[0].backward()
    torch.testing.assert_close((*second, sorted_.grad), (*first, scanned.grad))


def test_gradient_passes_gradcheck_away_from_the_kink(rng):
    codes = torch.randn(8, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    _, active = every_triplet_terms(codes, ORBITS, margin=1.0)
    assert 0 < active < 1
    assert torch.autograd.gradcheck(
        lambda c: every_triplet_terms(c, ORBITS, margin=1.0)[0], (codes,)
    )


def test_float32_codes_a_thousandth_of_their_length_apart_are_told_apart(rng):
    near = torch.randn(1, 256, generator=rng) + 1e-3 * torch.randn(6, 256, generator=rng)
    orbits = torch.tensor([0, 0, 1, 1, 2, 2])
    loss, _ = every_triplet_terms(near, orbits, margin=1e-4)
    wanted, _ = listed(near.double(), orbits, 1e-4)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert loss.dtype == torch.float32


def test_more_triplets_than_could_be_listed(rng):
    """Two orbits of 512: 268 million triplets, which as indices would be 6 GB."""
    codes = torch.randn(1024, 4, generator=rng, requires_grad=True)
    loss, active = every_triplet_terms(codes, torch.arange(1024) % 2, margin=1.0)
    loss.backward()
    assert loss > 0 and 0 < active < 1


@pytest.mark.parametrize("limit", [24, -1], ids=["scanned", "sorted"])
def test_a_negative_exactly_at_the_margin_counts_and_pulls_at_nothing(monkeypatch, limit):
    """Anchor 0 has ap = 1 and an = 2.25 and 4 = ap + margin; anchor 1 has no semi-hard negative."""
    monkeypatch.setattr(module, "SCAN_LIMIT", limit)
    codes = torch.tensor([[0.0], [1.0], [1.5], [2.0]], requires_grad=True)
    orbits = torch.tensor([0, 0, 1, 2])
    loss, active = every_triplet_terms(codes, orbits, margin=3.0, is_semihard=True)
    loss.backward()
    assert (loss.item(), active.item()) == (1.75 / 2, 0.5)
    # half of the hinge 1 - 2.25 + 3: d/dc of (c1 - c0)^2 - (c2 - c0)^2, halved
    assert codes.grad.flatten().tolist() == [0.5, 1.0, -1.5, 0.0]
