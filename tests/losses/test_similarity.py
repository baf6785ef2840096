import math

import pytest
import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss, SupConLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner

from orbitset.losses import info_nce_loss, multi_similarity_loss, prototype_loss, sigmoid_loss
from orbitset.losses.similarity import orbit_means, unit_codes

ORBITS = torch.tensor([0, 0, 2, 2, 2, 1, 3, 3])
"""That of row 5 is alone."""


@pytest.fixture
def codes(rng):
    return 3 * torch.randn(8, 5, generator=rng, dtype=torch.float64)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (a.norm() * b.norm())


def slow_info_nce(codes, orbits, temperature, memory=(), memory_orbits=()):
    everything = [*zip(codes, orbits.tolist(), strict=True)]
    remembered = [pair for pair in zip(memory, memory_orbits, strict=True) if pair[1] >= 0]
    errors = []
    for at, (anchor, orbit) in enumerate(everything):
        others = [pair for other, pair in enumerate(everything) if other != at] + remembered
        shares = [(cosine(anchor, code) / temperature).exp() for code, _ in others]
        own = [s for s, (_, other) in zip(shares, others, strict=True) if other == orbit]
        if own:
            errors.append(sum(-(share / sum(shares)).log() for share in own) / len(own))
    return sum(errors) / len(errors)


def slow_sigmoid(codes, orbits, temperature, bias):
    total = 0.0
    for i, anchor in enumerate(codes):
        for j, other in enumerate(codes):
            if i != j:
                sign = 1 if orbits[i] == orbits[j] else -1
                z = sign * (cosine(anchor, other) / temperature + bias)
                total = total + (1 + (-z).exp()).log()
    return total / len(codes)


def slow_multi_similarity(codes, orbits, alpha, beta, base, epsilon):
    total, one = 0.0, codes.new_ones(())
    for i, anchor in enumerate(codes):
        members, others = [], []
        for j, code in enumerate(codes):
            if i != j:
                (members if orbits[i] == orbits[j] else others).append(cosine(anchor, code))
        if members and others:
            pulled = [c for c in members if c - epsilon < max(others)]
            pushed = [c for c in others if c + epsilon > min(members)]
            total = total + sum(((-alpha * (c - base)).exp() for c in pulled), one).log() / alpha
            total = total + sum(((beta * (c - base)).exp() for c in pushed), one).log() / beta
    return total / len(codes)


def slow_prototype(codes, orbits, prototypes, known, temperature):
    errors = []
    for code, orbit in zip(codes, orbits.tolist(), strict=True):
        shares = {
            q: (cosine(code, p) / temperature).exp() for q, p in enumerate(prototypes) if known[q]
        }
        errors.append(-(shares[orbit] / sum(shares.values())).log())
    return sum(errors) / len(errors)


@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_info_nce_equals_slow_loops(codes, temperature):
    ours = info_nce_loss(codes, ORBITS, temperature=temperature)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, slow_info_nce(codes, ORBITS, temperature))


def test_a_memory_gives_positives_and_negatives(codes, rng):
    """Also a positive for row 5; of orbit -1 are places that are still empty."""
    memory = unit_codes(torch.randn(4, 5, generator=rng, dtype=torch.float64))
    orbits = torch.tensor([1, 0, -1, 7])
    ours = info_nce_loss(codes, ORBITS, temperature=0.2, memory=memory, memory_orbits=orbits)
    expected = slow_info_nce(codes, ORBITS, 0.2, memory, orbits.tolist())
    torch.testing.assert_close(ours, expected)
    nothing = torch.full((4,), -1)
    empty = info_nce_loss(codes, ORBITS, temperature=0.2, memory=memory, memory_orbits=nothing)
    torch.testing.assert_close(empty, info_nce_loss(codes, ORBITS, temperature=0.2))


@pytest.mark.parametrize("bias", [-5.0, 0.0, 1.5])
def test_the_sigmoid_loss_equals_slow_loops(codes, bias):
    ours = sigmoid_loss(codes, ORBITS, temperature=0.3, bias=bias)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, slow_sigmoid(codes, ORBITS, 0.3, bias))


def test_the_prototype_loss_equals_slow_loops(codes, rng):
    prototypes = unit_codes(torch.randn(6, 5, generator=rng, dtype=torch.float64))
    known = torch.tensor([True, True, True, True, False, True])
    ours = prototype_loss(codes, ORBITS, prototypes, known, temperature=0.1)
    expected = slow_prototype(codes, ORBITS, prototypes, known, 0.1)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("epsilon", [0.1, 0.8, -0.3])
def test_the_multi_similarity_loss_equals_slow_loops(codes, epsilon):
    numbers = {"alpha": 3.0, "beta": 20.0, "base": 0.4, "epsilon": epsilon}
    ours = multi_similarity_loss(codes, ORBITS, **numbers)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, slow_multi_similarity(codes, ORBITS, **numbers))


def test_the_multi_similarity_loss_is_that_of_pytorch_metric_learning_with_its_miner():
    torch.manual_seed(1)
    codes, orbits = torch.randn(60, 16), torch.randint(0, 20, (60,))
    ours, theirs = codes.clone().requires_grad_(), codes.clone().requires_grad_()
    loss = multi_similarity_loss(ours, orbits)
    pairs = MultiSimilarityMiner(epsilon=0.1)(theirs, orbits)
    reference = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(theirs, orbits, pairs)
    loss.backward()
    reference.backward()
    torch.testing.assert_close(loss, reference, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


def test_without_hard_pairs_the_multi_similarity_loss_is_silent():
    codes = torch.eye(2)[[0, 0, 1, 1]].requires_grad_()
    loss = multi_similarity_loss(codes, torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert loss.item() == 0 and not codes.grad.any()
    assert multi_similarity_loss(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)) == 0


@pytest.mark.parametrize("temperature", [0.07, 0.5])
@pytest.mark.parametrize("num", [8, 60])
def test_info_nce_is_the_supcon_loss_of_pytorch_metric_learning(temperature, num):
    torch.manual_seed(num)
    codes, orbits = torch.randn(num, 16), torch.randint(0, num // 3, (num,))
    ours, theirs = codes.clone().requires_grad_(), codes.clone().requires_grad_()
    loss = info_nce_loss(ours, orbits, temperature=temperature)
    reference = SupConLoss(temperature=temperature)(theirs, orbits)
    loss.backward()
    reference.backward()
    torch.testing.assert_close(loss, reference, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


def test_without_negatives_theirs_is_silent_and_ours_draws_members_evenly():
    """Their loss is 0 for a batch with one orbit; the equation's is not: here log 2 for each of three."""
    codes, orbits = torch.eye(3), torch.zeros(3, dtype=torch.int64)
    assert SupConLoss()(codes, orbits).item() == 0
    assert info_nce_loss(codes, orbits, temperature=0.1).item() == pytest.approx(math.log(2))


LOSSES = {
    "info_nce": lambda codes, orbits: info_nce_loss(codes, orbits, temperature=0.1),
    "sigmoid": lambda codes, orbits: sigmoid_loss(codes, orbits, temperature=0.1, bias=-5.0),
    "multi-similarity": multi_similarity_loss,
    "prototype": lambda codes, orbits: prototype_loss(
        codes,
        orbits,
        torch.linspace(-1, 1, 40).reshape(8, 5),
        torch.ones(8, dtype=torch.bool),
        temperature=0.1,
    ),
}


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


def test_gradients_are_right(loss, codes):
    assert torch.autograd.gradcheck(loss, (codes.requires_grad_(), ORBITS))


def test_the_length_of_codes_and_their_order_do_not_matter(loss, codes):
    expected = loss(codes, ORBITS)
    lengths = torch.arange(1, 9, dtype=torch.float64)[:, None]
    torch.testing.assert_close(loss(lengths * codes, ORBITS), expected)
    order = torch.tensor([6, 2, 7, 0, 4, 5, 1, 3])
    torch.testing.assert_close(loss(codes[order], ORBITS[order]), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(loss, codes, dtype):
    half = codes.to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss(half, ORBITS)
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, loss(half.float(), ORBITS), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(inside.double(), loss(half.double(), ORBITS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num", [1, 2, 8])
def test_a_batch_of_orbits_that_are_alone_gives_info_nce_nothing_to_learn(codes, num, dtype):
    codes = codes[:num].to(dtype).requires_grad_()
    loss = info_nce_loss(codes, torch.arange(num), temperature=0.01)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(codes.grad, torch.zeros_like(codes))


def test_an_orbit_that_is_alone_is_no_anchor_of_info_nce(codes):
    leaf = codes.requires_grad_()
    loss = info_nce_loss(leaf, ORBITS, temperature=0.1)
    loss.backward()
    assert loss.isfinite() and leaf.grad.isfinite().all()
    assert leaf.grad[5].any(), "but others are pushed from it"


def test_the_sigmoid_loss_pushes_an_orbit_that_is_alone_from_all_others(codes):
    leaf = codes.requires_grad_()
    loss = sigmoid_loss(leaf, torch.arange(8), temperature=0.1, bias=-1.0)
    loss.backward()
    assert loss > 0 and leaf.grad.isfinite().all() and leaf.grad.any()
    assert sigmoid_loss(codes[:1], ORBITS[:1], temperature=0.1, bias=-1.0).item() == 0


@pytest.mark.parametrize("value", [0.0, 0.4])
def test_gradients_are_finite_for_identical_codes(loss, value):
    codes = torch.full((8, 5), value, requires_grad=True)
    result = loss(codes, ORBITS)
    result.backward()
    assert result.isfinite() and codes.grad.isfinite().all()


@pytest.mark.parametrize("row", [0, 5])
def test_a_nan_code_gives_a_nan_loss(loss, codes, row):
    codes[row, 2] = torch.nan
    assert loss(codes, ORBITS).isnan()
    assert info_nce_loss(codes, torch.arange(8), temperature=0.1).isnan()


def test_the_mean_of_an_orbit_is_one_direction_in_all_its_rows(codes):
    unit = unit_codes(codes)
    means = orbit_means(unit, ORBITS)
    for row, orbit in enumerate(ORBITS):
        mean = unit[orbit == ORBITS].mean(0)
        torch.testing.assert_close(means[row], mean / mean.norm())
    assert torch.equal(means[2], means[3]) and torch.equal(means[3], means[4])
