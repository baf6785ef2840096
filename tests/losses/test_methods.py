import dataclasses
from typing import get_args

import pytest
import torch
from built_losses import built_loss

from orbitset.errors import ConfigError
from orbitset.losses import (
    Autoencoder,
    Exemplar,
    OrbitJoint,
    SupervisedTriplet,
    as_objective,
    distance_matrix,
    exemplar_loss,
)
from orbitset.losses.mining import Variant
from orbitset.orbits.batches import Batch

VARIANTS = get_args(Variant)
ORBITS = torch.tensor([0, 0, 2, 2, 2, 1, 3, 3])
LABELS = torch.tensor([5, 5, 5, 5, 5, 6, 6, 6])
NUM_PIXELS, CODE_SIZE = 8, 3


@pytest.fixture
def codes(rng):
    return torch.randn(8, CODE_SIZE, generator=rng, dtype=torch.float64)


@pytest.fixture
def rectified(rng):
    return torch.randn(8, 2, 2, 2, generator=rng, dtype=torch.float64)


@pytest.fixture
def batch(rng):
    images, canonical = torch.rand(2, 8, 2, 2, 2, generator=rng, dtype=torch.float64)
    return Batch(images, ORBITS, canonical, LABELS, max_members=3)


def permuted(batch, order):
    parts = (batch.images, batch.orbits, batch.canonical, batch.labels)
    return Batch(*(part[order] for part in parts), max_members=batch.max_members)


@pytest.fixture
def slow_hinge(slow_mine, slow_triplet_loss):
    def slow_hinge(codes, groups, loss):
        triplets = slow_mine(distance_matrix(codes), groups, loss.mining, margin=loss.margin)
        return slow_triplet_loss(codes, triplets, margin=loss.margin, reduction=loss.reduction)

    return slow_hinge


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scale", ["as-printed", "own-dimension"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 3.0)])
def test_orbit_joint_equals_the_equation(
    slow_hinge, slow_reconstruction, codes, batch, rectified, weights, scale, reduction
):
    loss = OrbitJoint(
        margin=1.0,
        discriminate_weight=weights[0],
        rectify_weight=weights[1],
        scale=scale,
        reduction=reduction,
    )
    over_t, over_e = (NUM_PIXELS, CODE_SIZE) if scale == "as-printed" else (CODE_SIZE, NUM_PIXELS)
    l_t = weights[0] / over_t * slow_hinge(codes, ORBITS, loss)
    l_e = slow_reconstruction(rectified, batch.canonical, reduction=reduction)
    terms = loss(codes, batch, rectified)
    torch.testing.assert_close(terms["discriminate"], l_t)
    torch.testing.assert_close(terms["rectify"], weights[1] / over_e * l_e)
    torch.testing.assert_close(terms["loss"], l_t + weights[1] / over_e * l_e)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("scale", "over"), [("as-printed", 8), ("own-dimension", 3)])
def test_orbit_triplet_is_the_discriminate_term_alone(
    slow_hinge, codes, batch, scale, over, reduction
):
    loss = OrbitJoint(margin=1.0, rectify_weight=0, scale=scale, reduction=reduction)
    terms = loss(codes, batch, None)
    assert not loss.uses_rectified
    assert terms.keys() == {"loss", "discriminate", "active"}
    torch.testing.assert_close(terms["loss"], slow_hinge(codes, ORBITS, loss) / over)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("scale", "over"), [("as-printed", 3), ("own-dimension", 8)])
def test_orbit_encode_is_the_rectify_term_alone(
    slow_reconstruction, codes, batch, rectified, scale, over, reduction
):
    loss = OrbitJoint(discriminate_weight=0, scale=scale, reduction=reduction)
    terms = loss(codes, batch, rectified)
    assert loss.uses_rectified
    assert terms.keys() == {"loss", "rectify"}
    slow = slow_reconstruction(rectified, batch.canonical, reduction=reduction)
    torch.testing.assert_close(terms["loss"], slow / over)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "semihard-random"])
def test_orbit_triplet_equals_the_oracle_with_every_mining(slow_hinge, codes, batch, variant):
    loss = OrbitJoint(margin=1.0, rectify_weight=0, mining=variant)
    slow = slow_hinge(codes, ORBITS, loss) / NUM_PIXELS
    torch.testing.assert_close(loss(codes, batch, None)["loss"], slow)
    assert slow > 0


def test_orbit_joint_by_hand():
    codes, orbits = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
    rectified, canonical = torch.zeros(2, 3, 1, 2, 2)
    rectified[0] = 1
    terms = OrbitJoint(margin=4.0)(
        codes, Batch(canonical, orbits, canonical, None, max_members=2), rectified
    )
    # Hinges 1 and 0 for three anchors over d = 4; a squared norm of 4 for three images over k = 2.
    assert terms["discriminate"].item() == pytest.approx(1 / 12)
    assert terms["rectify"].item() == pytest.approx(2 / 3)
    assert terms["loss"].item() == pytest.approx(0.75)
    assert terms["active"].item() == 0.5


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "semihard-random"])
def test_active_is_the_fraction_of_mined_triplets_inside_the_margin(
    slow_mine, codes, batch, variant
):
    distances = distance_matrix(codes)
    triplets = slow_mine(distances, ORBITS, variant, margin=1.0)
    inside = [distances[a, p] - distances[a, n] + 1.0 > 0 for a, p, n in triplets]
    active = OrbitJoint(margin=1.0, rectify_weight=0, mining=variant)(codes, batch, None)["active"]
    assert active.item() == pytest.approx(sum(inside).item() / len(inside))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_supervised_triplet_takes_classes_for_orbits(slow_hinge, codes, batch, reduction):
    loss = SupervisedTriplet(margin=1.0, reduction=reduction)
    terms = loss(codes, batch, None)
    torch.testing.assert_close(terms["loss"], slow_hinge(codes, LABELS, loss))
    torch.testing.assert_close(terms["discriminate"], terms["loss"])
    assert not loss.uses_rectified


def test_supervised_triplet_uses_classes_larger_than_any_orbit(slow_hinge, codes, batch):
    labels = torch.tensor([1, 1, 1, 1, 1, 1, 1, 2])  # seven in a class, max_members is 3
    loss = SupervisedTriplet(margin=1.0, mining="all")
    only = Batch(batch.images, ORBITS, batch.canonical, labels, max_members=3)
    torch.testing.assert_close(loss(codes, only, None)["loss"], slow_hinge(codes, labels, loss))


def test_exemplar_is_a_softmax_over_its_own_classifier(codes, batch):
    loss = Exemplar(code_size=CODE_SIZE, num_orbits=4).double()
    terms = loss(codes, batch, None)
    classifier = loss.classifier
    wanted = exemplar_loss(codes, ORBITS, classifier.weight, classifier.bias)
    torch.testing.assert_close(terms["loss"], wanted)
    terms["loss"].backward()
    assert classifier.weight.shape == (4, CODE_SIZE)
    assert classifier.weight.grad.abs().sum() > 0
    assert not loss.uses_rectified


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_autoencoder_compares_with_the_input(
    slow_reconstruction, codes, batch, rectified, reduction
):
    loss = Autoencoder(reduction=reduction)
    slow = slow_reconstruction(rectified, batch.images, reduction=reduction)
    torch.testing.assert_close(loss(codes, batch, rectified)["loss"], slow)
    assert loss.uses_rectified


@pytest.fixture(params=["OJ", "OJ-sum", "OT", "OE", "ST", "EX", "AE"])
def method(request, rng):
    name, _, reduction = request.param.partition("-")
    settings = {"reduction": reduction or "mean"} if name != "EX" else {}
    settings |= {"margin": 1.0} if name in ("OJ", "OT", "ST") else {}
    loss = built_loss(name, code_size=CODE_SIZE, num_orbits=4, **settings).double()
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return loss


def test_every_method_ignores_batch_order(method, codes, batch, rectified):
    order = torch.tensor([6, 2, 7, 0, 4, 5, 1, 3])
    given = rectified if method.uses_rectified else None
    moved = given[order] if method.uses_rectified else None
    ours = method(codes[order], permuted(batch, order), moved)
    torch.testing.assert_close(dict(ours), dict(method(codes, batch, given)))


def test_every_method_passes_gradcheck(method, codes, batch, rectified):
    given = [codes.requires_grad_()] + [rectified.requires_grad_()] * method.uses_rectified

    def loss(codes, rectified=None):
        total = method(codes, batch, rectified)["loss"]
        return total + 0 * codes.sum()  # AE and OE do not look at the codes

    assert torch.autograd.gradcheck(loss, given)


def test_every_method_has_finite_gradients_for_identical_codes(method, batch, rectified):
    codes = torch.full((8, CODE_SIZE), 0.4, dtype=torch.float64, requires_grad=True)
    images = batch.canonical.clone().requires_grad_()
    terms = method(codes, batch, images if method.uses_rectified else None)
    (terms["loss"] + 0 * codes.sum()).backward()
    assert terms["loss"].isfinite()
    assert codes.grad.isfinite().all()


@pytest.mark.parametrize("loss", [OrbitJoint(rectify_weight=0), SupervisedTriplet()])
@pytest.mark.parametrize("groups", [[0] * 8, list(range(8))], ids=["one group", "singletons"])
def test_a_batch_without_triplets_gives_zero_with_a_gradient(loss, groups, codes, batch):
    groups = torch.tensor(groups)
    alone = Batch(batch.images, groups, batch.canonical, groups, max_members=8)
    terms = loss(codes.requires_grad_(), alone, None)
    terms["loss"].backward()
    assert terms["loss"].item() == terms["active"].item() == 0
    assert torch.equal(codes.grad, torch.zeros_like(codes))


@pytest.mark.parametrize("row", [0, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_nan_code_gives_a_nan_loss(codes, batch, variant, row):
    """Row 5 is alone in its orbit: no anchor, but not to be passed over either."""
    codes[row] = torch.nan
    loss = OrbitJoint(margin=1.0, rectify_weight=0, mining=variant)
    assert loss(codes, batch, None)["loss"].isnan()


@pytest.mark.parametrize("name", ["OJ", "OE", "AE"])
def test_a_nan_pixel_gives_a_nan_loss(name, codes, batch, rectified):
    rectified[3, 0, 1, 1] = torch.nan
    loss = built_loss(name, code_size=CODE_SIZE, num_orbits=4)
    assert loss(codes, batch, rectified)["loss"].isnan()


def test_supervised_triplet_without_labels_is_refused(codes, batch):
    unlabelled = Batch(batch.images, ORBITS, batch.canonical, None, max_members=3)
    with pytest.raises(
        ConfigError, match="ST learns from class labels, and these images have none"
    ):
        SupervisedTriplet()(codes, unlabelled, None)


def test_orbit_joint_with_both_weights_zero_is_refused():
    with pytest.raises(ConfigError, match="both weights are 0; give at least one"):
        OrbitJoint(discriminate_weight=0, rectify_weight=0)


@pytest.mark.parametrize("build", [OrbitJoint, SupervisedTriplet])
def test_an_unknown_mining_is_refused_with_the_nearest_name(build):
    with pytest.raises(ConfigError, match="mining is 'hardst'") as error:
        build(mining="hardst")
    assert error.value.hint == "did you mean hardest?"


def test_rectified_images_of_another_shape_are_refused(codes, batch, rectified):
    with pytest.raises(ValueError, match="give one target of the same size per image"):
        OrbitJoint()(codes, batch, rectified[..., :1])


def test_a_function_of_three_is_an_objective_that_decodes(codes, batch, rectified):
    @as_objective
    def difference(codes, batch, rectified):
        return {"loss": codes.sum() - batch.images.sum() - rectified.sum()}

    terms = difference(codes, batch, rectified)
    assert isinstance(difference, torch.nn.Module) and difference.uses_rectified is True
    expected = codes.sum() - batch.images.sum() - rectified.sum()
    torch.testing.assert_close(terms["loss"], expected)


def test_a_function_of_two_gives_the_loss_itself(codes, batch):
    spread = as_objective(lambda codes, batch, *, power=2: (codes**power).sum())
    assert spread.uses_rectified is False
    torch.testing.assert_close(spread(codes, batch, None)["loss"], codes.square().sum())
    assert as_objective(spread) is spread


def test_random_mining_depends_on_the_batch_seed_alone(codes, batch):
    loss = OrbitJoint(margin=9.0, rectify_weight=0, mining="semihard-random")
    seeded = [dataclasses.replace(batch, seed=seed) for seed in (1, 1, 2, 3, 4)]
    first, again, *others = (loss(codes, b, None)["loss"].item() for b in seeded)
    assert first == again
    assert any(other != first for other in others)


def test_rectify_term_without_rectified_images_is_refused(codes, batch):
    with pytest.raises(ValueError, match="needs the rectified images"):
        OrbitJoint()(codes, batch, None)


@pytest.mark.parametrize("option", [{"reduction": "none"}, {"scale": "printed"}])
def test_misspelt_options_are_refused(codes, batch, rectified, option):
    with pytest.raises(ConfigError, match="choose"):
        OrbitJoint(**option)(codes, batch, rectified)


@pytest.mark.parametrize("name", ["OJ", "OE", "EX", "AE"])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, -1, -1, -7], [-1] * 8], ids=["some", "none"])
def test_classes_count_for_images_that_have_one(codes, batch, rectified, name, labels):
    labels = torch.tensor(labels)
    seen = dataclasses.replace(batch, labels=labels)
    sizes = {"code_size": CODE_SIZE, "num_orbits": 4}
    torch.manual_seed(0)
    loss = built_loss(name, num_classes=3, classify_weight=0.7, **sizes).double()
    given = rectified if loss.uses_rectified else None
    terms = loss(codes.requires_grad_(), seen, given)
    alone = loss.objective(codes, seen, given)["loss"]
    errors = [
        -loss.classifier(codes[at]).log_softmax(0)[label]
        for at, label in enumerate(labels.tolist())
        if label >= 0
    ]
    wanted = 0.7 * torch.stack(errors).mean() if errors else torch.zeros((), dtype=torch.float64)
    torch.testing.assert_close(terms["classes"], wanted)
    torch.testing.assert_close(terms["loss"], alone + wanted)
    terms["loss"].backward()
    assert loss.classifier.weight.grad.isfinite().all()
    assert bool(loss.classifier.weight.grad.any()) == bool(errors)
    right = [loss.classifier(codes[at]).argmax() == label for at, label in enumerate(labels)]
    assert terms["right"].item() == pytest.approx(sum(right) / max(1, len(errors)))


def test_classes_need_labels(codes, batch):
    sizes = {"code_size": CODE_SIZE, "num_orbits": 4, "num_classes": 2}
    loss = built_loss("OT", classify_weight=1.0, **sizes).double()
    with pytest.raises(ConfigError, match="these images have none"):
        loss(codes, dataclasses.replace(batch, labels=None), None)
