"""Losses with kernels of our own held to the CPU's; run with -m gpu where there is a GPU."""

import pytest
import torch
import torch.nn.functional as F

from orbitset.cuda import exemplar
from orbitset.cuda.nvrtc import are_available
from orbitset.losses import (
    Mining,
    distance_matrix,
    exemplar_loss,
    mine,
    reconstruction_loss,
    triplet_loss,
)
from orbitset.losses.every_triplet import every_triplet_terms
from orbitset.losses.triplet import mined_terms

pytestmark = pytest.mark.gpu


def _batch(kind, num):
    generator = torch.Generator().manual_seed(num)
    codes = torch.randn(num, 24, generator=generator)
    orbits = torch.randint(0, 9, (num,), generator=generator)
    if kind == "ties":
        codes = codes.round()
    if kind == "one orbit":
        orbits = torch.zeros_like(orbits)
    if kind == "singletons":
        orbits = torch.arange(num)
    if kind == "duplicates":
        codes[num // 2 :] = codes[: num - num // 2].clone()
    return codes, orbits


@pytest.mark.parametrize("variant", ["semihard-else-farthest", "semihard-nearest", "hardest"])
@pytest.mark.parametrize("kind", ["random", "ties", "one orbit", "singletons", "duplicates"])
@pytest.mark.parametrize("num", [2, 33, 300])
def test_mined_triplets_loss_and_gradient_are_the_cpus(variant, kind, num):
    assert are_available(torch.device("cuda", 0))
    codes, orbits = _batch(kind, num)
    distances = distance_matrix(codes)
    found = []
    for device in ("cpu", "cuda"):
        mined = mine(distances.to(device), orbits.to(device), variant, margin=12.0)
        leaf = codes.clone().to(device).requires_grad_()
        loss = triplet_loss(leaf, mined.triplets, margin=12.0, valid=mined.valid)
        loss.backward()
        found.append((mined.compact(), loss, leaf.grad))
    (triplets, loss, grad), (gpu_triplets, gpu_loss, gpu_grad) = found
    for ours, theirs in zip(gpu_triplets, triplets, strict=True):
        assert torch.equal(ours.cpu(), theirs)
    torch.testing.assert_close(gpu_loss.cpu(), loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gpu_grad.cpu(), grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["random", "ties", "one orbit", "singletons", "duplicates"])
@pytest.mark.parametrize("num", [2, 33, 300, 2100])  # the last is too many for the kernel
@pytest.mark.parametrize("is_semihard", [False, True])
def test_the_loss_over_every_triplet_and_its_gradient_are_the_cpus(kind, num, is_semihard):
    codes, orbits = _batch(kind, num)
    found = []
    for device in ("cpu", "cuda"):
        leaf = codes.clone().to(device).requires_grad_()
        loss, active = every_triplet_terms(
            leaf, orbits.to(device), margin=12.5, is_semihard=is_semihard
        )
        loss.backward()
        found.append((loss.detach().cpu(), active.cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mining", ["semihard-else-farthest", "all"])
def test_the_triplet_gradient_is_the_same_every_time(mining):
    codes, orbits = (part.cuda() for part in _batch("random", 300))
    found = []
    for _ in range(3):
        leaf = codes.clone().requires_grad_()
        loss, _ = mined_terms(leaf, Mining(orbits, mining), margin=12.0)
        loss.backward()
        found.append((loss, leaf.grad))
    for loss, grad in found[1:]:
        assert torch.equal(loss, found[0][0]) and torch.equal(grad, found[0][1])


@pytest.mark.parametrize("mining", ["semihard-else-farthest", "all"])
def test_a_code_that_is_not_finite_makes_the_loss_so(mining):
    codes, orbits = (part.cuda() for part in _batch("random", 33))
    codes[3, 5] = float("nan")
    assert mined_terms(codes, Mining(orbits, mining), margin=12.0)[0].isnan()


def test_squared_errors_and_their_gradient_are_the_cpus():
    torch.manual_seed(0)
    images, targets = torch.rand(5, 1, 9, 9), torch.rand(5, 1, 9, 9)
    leaf, gpu_leaf = (images.clone().to(d).requires_grad_() for d in ("cpu", "cuda"))
    loss = reconstruction_loss(leaf, targets)
    gpu_loss = reconstruction_loss(gpu_leaf, targets.cuda())
    (3 * loss).backward()
    (3 * gpu_loss).backward()
    torch.testing.assert_close(gpu_loss.cpu(), loss)
    torch.testing.assert_close(gpu_leaf.grad.cpu(), leaf.grad)


@pytest.mark.parametrize("chunk_bytes", [2**30, 4 * 50 * 4])
def test_the_exemplar_loss_on_a_gpu_is_close_to_float32(monkeypatch, chunk_bytes):
    torch.manual_seed(0)
    codes, weight, bias = torch.randn(17, 8), torch.randn(50, 8), torch.randn(50)
    orbit = torch.randint(0, 50, (17,))
    on_cpu, on_gpu = (
        [part.clone().to(device).requires_grad_() for part in (codes, weight, bias)]
        for device in ("cpu", "cuda")
    )
    expected = F.cross_entropy(F.linear(*on_cpu), orbit)
    a, b, c = on_gpu
    monkeypatch.setattr(exemplar, "CHUNK_BYTES", chunk_bytes)
    found = exemplar_loss(a, orbit.cuda(), b, c)
    expected.backward()
    found.backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-3, atol=2e-3)
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        error = (ours.grad.cpu() - theirs.grad).norm() / theirs.grad.norm()
        assert error < 5e-3


@pytest.mark.parametrize("size", [1, 130, 1100])  # the last takes two blocks for each code
def test_few_triplets_pull_at_codes_of_any_size(size):
    torch.manual_seed(0)
    codes, orbits = torch.randn(37, size), torch.arange(37) // 4
    grads = []
    for device in ("cpu", "cuda"):
        leaf = codes.clone().to(device).requires_grad_()
        loss, _ = mined_terms(leaf, Mining(orbits.to(device)), margin=3.0 * size)
        loss.backward()
        grads.append(leaf.grad.cpu())
    assert grads[0].norm() > 0
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num", [1, 7, 300])
def test_distances_on_a_gpu_are_never_negative_and_zero_to_themselves(num):
    torch.manual_seed(0)
    codes = 100 + torch.randn(num, 20).cuda()
    codes[num // 2] = codes[0]
    truth = torch.cdist(codes.double(), codes.double()).square()
    with torch.no_grad():
        found = distance_matrix(codes)
        codes[num - 1, 3] = float("nan")
        lost = distance_matrix(codes)
    assert (found >= 0).all() and (found.diagonal() == 0).all()
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-3)
    assert lost[num - 1, : num - 1].isnan().all()


def test_distances_on_a_gpu_can_be_derived():
    leaf = torch.randn(5, 3, device="cuda", requires_grad=True)
    distance_matrix(leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.norm() > 0


@pytest.mark.parametrize("many", [1, 200])
def test_a_code_that_is_not_finite_gets_such_a_gradient(many):
    """With few triplets and with many, which are derived in other ways."""
    codes = torch.randn(9, 16, device="cuda")
    codes[2, 5] = float("nan")
    leaf = codes.requires_grad_()
    triplets = tuple(torch.tensor([row] * many, device="cuda") for row in (0, 2, 4))
    triplet_loss(leaf, triplets, margin=5.0).backward()
    assert leaf.grad[0].isnan().any() and leaf.grad[2].isnan().any()
