import pytest
import torch

from orbitset.errors import ConfigError
from orbitset.losses import (
    Mining,
    distance_matrix,
    mine,
    orbit_joint_loss,
    reconstruction_loss,
    triplet_loss,
)

TRIPLETS = tuple(torch.tensor(index) for index in ([0, 0, 1, 4], [1, 1, 0, 3], [2, 3, 4, 0]))
BY_HAND = (torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([2, 2]))


@pytest.fixture
def case(rng):
    """Codes, rectified and canonical images with k = 3 and d = 8."""
    shapes = (5, 3), (5, 2, 2, 2), (5, 2, 2, 2)
    return [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]


@pytest.fixture
def by_hand():
    """k = 2, d = 4; hinges 1 and 0 at margin 4; squared norms 4, 0 and 0."""
    rectified = torch.zeros(3, 1, 2, 2)
    rectified[0] = 1
    return torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]), rectified, torch.zeros(3, 1, 2, 2)


def rows(triplets):
    return list(zip(*(index.tolist() for index in triplets), strict=True))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reconstruction_loss_equals_the_oracle(slow_reconstruction, case, reduction):
    _, images, targets = case
    ours = reconstruction_loss(images, targets, reduction=reduction)
    torch.testing.assert_close(ours, slow_reconstruction(images, targets, reduction=reduction))


def test_reconstruction_loss_by_hand(by_hand):
    _, images, targets = by_hand
    assert reconstruction_loss(images, targets).item() == pytest.approx(4 / 3)
    assert reconstruction_loss(images, targets, reduction="sum").item() == 4


def test_reconstruction_loss_passes_gradcheck(case):
    parts = [part.requires_grad_() for part in case[1:]]
    assert torch.autograd.gradcheck(reconstruction_loss, parts)


def test_reconstruction_loss_has_finite_gradients_for_equal_images(case):
    images = case[1].requires_grad_()
    reconstruction_loss(images, images.detach().clone()).backward()
    assert torch.equal(images.grad, torch.zeros_like(images))


def test_reconstruction_loss_refuses_targets_of_another_shape():
    with pytest.raises(ValueError, match="give one target of the same size per image") as error:
        reconstruction_loss(torch.zeros(5, 1, 4, 4), torch.zeros(1, 1, 4, 4))
    assert "(5, 1, 4, 4)" in str(error.value)
    assert "(1, 1, 4, 4)" in str(error.value)


def test_a_misspelt_reduction_is_refused(by_hand):
    for weights in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0)):
        with pytest.raises(ConfigError, match="reduction is 'max'"):
            orbit_joint_loss(
                *by_hand,
                BY_HAND,
                margin=4.0,
                reduction="max",
                discriminate_weight=weights[0],
                rectify_weight=weights[1],
            )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scale", ["as-printed", "own-dimension"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 3.0), (2.0, 0.0), (0.0, 2.0)])
def test_joint_loss_equals_the_equation(
    slow_triplet_loss, slow_reconstruction, case, weights, scale, reduction
):
    codes, rectified, canonical = case
    l_t = slow_triplet_loss(codes, rows(TRIPLETS), margin=5.0, reduction=reduction)
    l_e = slow_reconstruction(rectified, canonical, reduction=reduction)
    over_t, over_e = (8, 3) if scale == "as-printed" else (3, 8)
    ours = orbit_joint_loss(
        *case,
        TRIPLETS,
        margin=5.0,
        discriminate_weight=weights[0],
        rectify_weight=weights[1],
        scale=scale,
        reduction=reduction,
    )
    assert l_t > 0
    torch.testing.assert_close(ours.discriminate, weights[0] / over_t * l_t)
    torch.testing.assert_close(ours.rectify, weights[1] / over_e * l_e)
    torch.testing.assert_close(ours.total, weights[0] / over_t * l_t + weights[1] / over_e * l_e)


@pytest.mark.parametrize(
    ("scale", "reduction", "wanted"),
    [
        ("as-printed", "mean", 1 / 4 * 1 / 3 + 1 / 2 * 4 / 3),
        ("as-printed", "sum", 1 / 4 * 1 + 1 / 2 * 4),
        ("own-dimension", "mean", 1 / 2 * 1 / 3 + 1 / 4 * 4 / 3),
        ("own-dimension", "sum", 1 / 2 * 1 + 1 / 4 * 4),
    ],
)
def test_joint_loss_by_hand(by_hand, scale, reduction, wanted):
    loss = orbit_joint_loss(*by_hand, BY_HAND, margin=4.0, scale=scale, reduction=reduction)
    assert loss.total.item() == pytest.approx(wanted)


def test_joint_loss_leaves_out_triplets_that_are_not_valid(by_hand):
    valid = torch.tensor([False, True])  # the hinge of 1 does not count, that of 0 does
    assert orbit_joint_loss(*by_hand, BY_HAND, margin=4.0, valid=valid).discriminate.item() == 0


@pytest.mark.parametrize("scale", ["as-printed", "own-dimension"])
def test_joint_loss_passes_gradcheck(case, scale):
    parts = [part.requires_grad_() for part in case]
    assert torch.autograd.gradcheck(
        lambda *p: orbit_joint_loss(*p, TRIPLETS, margin=5.0, scale=scale).total, parts
    )


def test_gradcheck_of_the_joint_loss_is_away_from_the_kink(case):
    hinges = [
        triplet_loss(case[0], triplet, margin=5.0 + shift, reduction="sum")
        for shift in (-1e-3, 0, 1e-3)
        for triplet in zip(*(index.split(1) for index in TRIPLETS), strict=True)
    ]
    active = (torch.stack(hinges) > 0).view(3, 4)
    assert (active == active[0]).all()
    assert 0 < active[0].sum() < 4


def test_joint_loss_without_triplets_is_the_rectify_term_and_carries_a_gradient(case):
    codes, none = case[0].requires_grad_(), torch.zeros(0, dtype=torch.int64)
    loss = orbit_joint_loss(*case, (none, none, none), margin=5.0)
    loss.total.backward()
    assert loss.discriminate.item() == 0
    assert torch.equal(loss.total, loss.rectify)
    assert torch.equal(codes.grad, torch.zeros_like(codes))


def test_joint_loss_ignores_batch_order(case):
    order = torch.tensor([3, 1, 4, 0, 2])
    place = order.argsort()
    permuted = orbit_joint_loss(
        *(part[order] for part in case), [place[index] for index in TRIPLETS], margin=5.0
    )
    torch.testing.assert_close(permuted, orbit_joint_loss(*case, TRIPLETS, margin=5.0))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_joint_loss_of_a_nan_is_nan(case, part):
    case[part][0] = torch.nan
    assert orbit_joint_loss(*case, TRIPLETS, margin=5.0).total.isnan()


@pytest.mark.parametrize("margin", [0.5, 5.0])
def test_triplets_may_be_mined_by_it(case, margin):
    mining = Mining(torch.tensor([0, 0, 1, 1, 1]), "hardest")
    mined = mine(distance_matrix(case[0]), mining.orbits, "hardest", margin=margin)
    ours = orbit_joint_loss(*case, mining, margin=margin, reduction="sum")
    torch.testing.assert_close(
        ours, orbit_joint_loss(*case, mined.compact(), margin=margin, reduction="sum")
    )
