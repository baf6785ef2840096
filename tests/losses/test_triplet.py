from typing import get_args

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.reducers import MeanReducer

from orbitset.errors import ConfigError
from orbitset.losses import (
    Mining,
    TripletLoss,
    TripletMiner,
    Triplets,
    distance_matrix,
    mine,
    triplet_loss,
)
from orbitset.losses.mining import Variant
from orbitset.losses.triplet import mined_terms, triplet_terms

VARIANTS = get_args(Variant)
ORBITS = torch.tensor([3, 1, 3, -2, 1, 3, 2**40, 1])


@pytest.fixture
def codes(rng):
    return torch.randn(8, 3, generator=rng, dtype=torch.float64)


@pytest.fixture
def triplets(rng):
    """Uneven on purpose: rows repeat, and some rows are never an anchor."""
    anchor = torch.tensor([0, 0, 0, 1, 1, 4, 5, 5, 5, 5, 7, 0])
    positive, negative = torch.randint(8, (2, 12), generator=rng)
    return Triplets(anchor, positive, negative)


def rows(triplets):
    return list(zip(*(index.tolist() for index in triplets), strict=True))


def lp_distance():
    return LpDistance(normalize_embeddings=False, power=2)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("margin", [0.2, 1.0, 30.0])
def test_triplet_loss_equals_the_oracle(slow_triplet_loss, codes, triplets, margin, reduction):
    ours = triplet_loss(codes, triplets, margin=margin, reduction=reduction)
    slow = slow_triplet_loss(codes, rows(triplets), margin=margin, reduction=reduction)
    torch.testing.assert_close(ours, slow)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "semihard-random"])
def test_triplet_loss_object_equals_both_oracles(
    slow_mine, slow_triplet_loss, codes, variant, reduction
):
    chosen = slow_mine(distance_matrix(codes), ORBITS, variant, margin=1.0)
    slow = slow_triplet_loss(codes, chosen, margin=1.0, reduction=reduction)
    loss = TripletLoss(margin=1.0, mining=variant, reduction=reduction)
    torch.testing.assert_close(loss(codes, ORBITS), slow)
    assert slow > 0


@pytest.mark.parametrize(("reduction", "wanted"), [("mean", 0.25), ("sum", 0.75)])
def test_triplet_loss_by_hand(reduction, wanted):
    codes = torch.tensor([[0.0], [1.0], [1.5]])
    triplet = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
    assert triplet_loss(codes, triplet, margin=2.0, reduction=reduction).item() == wanted


def test_triplet_loss_averages_each_anchor_with_its_zeros_before_the_anchors():
    codes = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    anchor, positive = torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0])
    triplets = (anchor, positive, torch.tensor([2, 3, 2]))  # hinges 2, 0 and 5
    assert triplet_loss(codes, triplets, margin=5.0, reduction="sum").item() == 1 + 5


def test_triplet_loss_leaves_out_triplets_that_are_not_valid(codes, triplets):
    valid = torch.arange(12) % 3 != 0
    kept = tuple(index[valid] for index in triplets)
    ours = triplet_loss(codes, triplets, margin=5.0, valid=valid)
    torch.testing.assert_close(ours, triplet_loss(codes, kept, margin=5.0))
    assert ours != triplet_loss(codes, triplets, margin=5.0)


def test_a_nan_code_in_a_triplet_gives_a_nan_loss(codes, triplets):
    for row in triplets.negative.unique():
        broken = codes.index_fill(0, row, torch.nan)
        assert triplet_loss(broken, triplets, margin=1.0).isnan()


def test_triplet_loss_passes_gradcheck_away_from_the_kink(codes, triplets):
    anchor, positive, negative = triplets
    distances = distance_matrix(codes)
    hinges = 1.0 + distances[anchor, positive] - distances[anchor, negative]
    assert hinges.abs().min() > 1e-3
    assert 0 < (hinges > 0).sum() < len(hinges)
    codes.requires_grad_()
    assert torch.autograd.gradcheck(lambda c: triplet_loss(c, triplets, margin=1.0), (codes,))


@pytest.mark.parametrize("variant", VARIANTS)
def test_identical_codes_give_the_margin_or_nothing_and_finite_gradients(variant):
    codes = torch.full((8, 3), 0.7, requires_grad=True)
    loss = TripletLoss(margin=0.5, mining=variant)(codes, ORBITS)
    loss.backward()
    is_strict = variant in ("semihard", "semihard-nearest", "semihard-random")
    # Of the 8 anchors 6 have positives, and all distances are 0.
    assert loss.item() == pytest.approx(0 if is_strict else 0.5 * 6 / 8)
    assert codes.grad.isfinite().all()


@pytest.mark.parametrize("orbits", [[4] * 5, [1, 2, 3, 4, 5], [7]], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_without_triplets_gives_zero_with_a_gradient(variant, orbits, rng):
    codes = torch.randn(len(orbits), 3, generator=rng, requires_grad=True)
    loss = TripletLoss(mining=variant)(codes, torch.tensor(orbits))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(codes.grad, torch.zeros_like(codes))


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_empty_batch_gives_zero(variant):
    codes = torch.zeros(0, 3, requires_grad=True)
    assert TripletLoss(mining=variant)(codes, torch.zeros(0, dtype=torch.int64)).item() == 0


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "semihard-random"])
def test_triplet_loss_ignores_member_order(codes, variant):
    order = torch.tensor([6, 2, 7, 0, 4, 5, 1, 3])
    loss = TripletLoss(margin=1.0, mining=variant)
    torch.testing.assert_close(loss(codes[order], ORBITS[order]), loss(codes, ORBITS))


def test_triplet_loss_ignores_triplet_order(codes, triplets):
    backwards = tuple(index.flip(0) for index in triplets)
    torch.testing.assert_close(
        triplet_loss(codes, backwards, margin=1.0), triplet_loss(codes, triplets, margin=1.0)
    )


@pytest.mark.parametrize("row", [0, 3, 6, 7])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_nan_code_gives_a_nan_loss(codes, variant, row):
    """Rows 3 and 6 are singletons, which are no anchors: they must not vanish either."""
    codes[row, 1] = torch.nan
    assert TripletLoss(margin=1.0, mining=variant)(codes, ORBITS).isnan()


def test_triplet_loss_of_a_tight_pair_is_exact(rng):
    base = torch.randn(2, 256, generator=rng)
    codes = torch.cat([base, base[:1] + 1e-4 * torch.randn(1, 256, generator=rng)])
    triplet = (torch.tensor([0]), torch.tensor([2]), torch.tensor([0]))
    wanted = (codes[0].double() - codes[2].double()).square().sum().item()
    loss = triplet_loss(codes, triplet, margin=0.0, reduction="sum")
    assert loss.item() == pytest.approx(wanted, rel=1e-5)


def test_triplet_loss_object_uses_the_triplets_it_is_given(codes, triplets):
    ours = TripletLoss(margin=1.0)(codes, ORBITS, triplets)
    torch.testing.assert_close(ours, triplet_loss(codes, triplets, margin=1.0))
    assert ours != TripletLoss(margin=1.0)(codes, ORBITS)


@pytest.mark.parametrize("variant", ["semihard", "all", "hardest"])
def test_miner_gives_what_mine_gives(codes, variant):
    codes.requires_grad_()
    ours = TripletMiner(variant, margin=1.0)(codes, ORBITS)
    direct = mine(distance_matrix(codes.detach()), ORBITS, variant, margin=1.0).compact()
    assert rows(ours) == rows(direct) != []


def test_our_miner_fits_the_loss_of_pytorch_metric_learning(rng):
    codes, labels = torch.randn(12, 4, generator=rng), torch.arange(12) % 4
    triplets = TripletMiner("hardest", margin=0.5)(codes, labels)  # two for every anchor
    theirs = TripletMarginLoss(margin=0.5, distance=lp_distance(), reducer=MeanReducer())
    ours = TripletLoss(margin=0.5, mining="hardest")(codes, labels)
    torch.testing.assert_close(theirs(codes, labels, triplets), ours)
    assert ours > 0


@pytest.mark.parametrize("kind", ["all", "hard", "semihard", "easy"])
def test_the_miners_of_pytorch_metric_learning_fit_our_loss(slow_triplet_loss, codes, kind):
    triplets = TripletMarginMiner(margin=1.0, type_of_triplets=kind, distance=lp_distance())(
        codes, ORBITS
    )
    slow = slow_triplet_loss(codes, rows(triplets), margin=1.0)
    torch.testing.assert_close(TripletLoss(margin=1.0)(codes, ORBITS, triplets), slow)
    torch.testing.assert_close(triplet_loss(codes, triplets, margin=1.0), slow)
    assert len(triplets[0]) > 0


@pytest.mark.parametrize(
    "build", [lambda name: TripletLoss(mining=name), lambda name: TripletMiner(name)]
)
def test_an_unknown_variant_is_refused_when_the_object_is_made(build):
    with pytest.raises(ConfigError, match="mining is 'batchhard'") as error:
        build("batchhard")
    assert error.value.hint == "did you mean batch-hard?"


def test_float_orbit_ids_are_refused(codes):
    with pytest.raises(TypeError, match="orbit ids are integers"):
        TripletLoss()(codes, ORBITS.double())


def test_one_orbit_id_per_code_is_asked_for(codes):
    with pytest.raises(ValueError, match="pass an N x N matrix and N orbit ids"):
        TripletLoss()(codes, ORBITS[:5])


@pytest.mark.parametrize("variant", VARIANTS)
def test_orbit_ids_of_another_length_or_kind_are_refused(codes, variant):
    loss = TripletLoss(mining=variant)
    for wrong in (ORBITS[:6], ORBITS[:1], torch.cat([ORBITS, ORBITS])):
        with pytest.raises(ValueError, match="pass an N x N matrix and N orbit ids"):
            loss(codes, wrong)
    with pytest.raises(TypeError, match="orbit ids are integers"):
        loss(codes, ORBITS.double())


def test_random_mining_draws_anew_each_time(rng):
    codes = torch.randn(40, 3, generator=rng)
    loss = TripletLoss(margin=9.0, mining="semihard-random")
    found = {loss(codes, torch.arange(40) // 4).item() for _ in range(6)}
    assert len(found) > 1


@pytest.mark.parametrize("variant", ["semihard-else-farthest", "semihard-nearest", "hardest"])
def test_distances_of_mined_triplets_are_taken_in_float64(variant, rng):
    """Orbits of two places far from each other: in float32 the products drown what lies between codes."""
    places = torch.tensor([-1000.0, 1000.0]).repeat_interleave(32)[:, None]
    codes = places + torch.randn(64, 4, generator=rng)
    mining = Mining(torch.arange(64) // 4, variant)
    loss, active = mined_terms(codes, mining, margin=0.5)
    exact, exact_active = mined_terms(codes.double(), mining, margin=0.5)
    assert 0 < active == pytest.approx(exact_active.item())
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_triplets_at_the_margin_are_not_active():
    """Hinges 1, 0 and one that does not count."""
    codes = torch.tensor([[0.0], [1.0], [2.0]])
    triplets = tuple(torch.tensor(index) for index in ([0, 0, 1], [1, 1, 0], [2, 1, 2]))
    valid = torch.tensor([True, True, False])
    _, active = triplet_terms(codes, triplets, margin=3.0, valid=valid)
    assert active == 0.5


def test_random_mining_draws_by_the_seed(rng):
    codes, orbits = torch.randn(24, 3, generator=rng), torch.arange(24) // 4
    found = mined_terms(codes, Mining(orbits, "semihard-random", seed=7), margin=9.0)
    generator = torch.Generator().manual_seed(7)
    mined = mine(distance_matrix(codes), orbits, "semihard-random", margin=9.0, generator=generator)
    expected = triplet_terms(codes, mined.triplets, margin=9.0, valid=mined.valid)
    torch.testing.assert_close(found, expected)


def test_loss_and_miner_have_the_margin_of_facenet_by_default():
    assert TripletLoss().margin == TripletMiner().margin == 0.2
