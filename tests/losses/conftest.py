"""Slow and obvious references, as fixtures: with import-mode=importlib test files import no neighbours."""

import pytest
import torch


def slow_mine(distance_NN, orbit_N, variant, *, margin, max_members=None, draw_NK=None):
    """Every variant as loops over anchors and positives: a list of (anchor, positive, negative)."""
    distances = distance_NN.numpy()  # numpy's scalars round as the matrix's dtype does
    orbits, rows = orbit_N.tolist(), range(len(orbit_N))
    triplets = []
    for a in rows:
        positives = [p for p in rows if orbits[p] == orbits[a] and p != a]
        negatives = [n for n in rows if orbits[n] != orbits[a]]
        if not positives or not negatives:
            continue
        if variant == "batch-hard":  # max and min give the first of equals
            farthest = max(positives, key=lambda p, a=a: distances[a, p])
            nearest = min(negatives, key=lambda n, a=a: distances[a, n])
            triplets.append((a, farthest, nearest))
            continue
        for place, p in enumerate(positives[: max_members - 1 if max_members else None]):
            draw = None if draw_NK is None else draw_NK[a, place].numpy()
            chosen = _slow_negatives(distances[a], p, negatives, variant, margin, draw)
            triplets += [(a, p, n) for n in chosen]
    return triplets


def _slow_negatives(distances, p, negatives, variant, margin, draw):
    nearest_first = sorted(negatives, key=lambda n: distances[n])  # stable: ties by index
    farther = [n for n in nearest_first if distances[n] > distances[p]]
    limit = distances.dtype.type(margin)
    semihard = [n for n in farther if distances[n] - distances[p] <= limit]
    match variant:
        case "semihard-else-farthest":
            return farther[:1] or [max(negatives, key=lambda n: distances[n])]
        case "semihard-nearest":
            return semihard[:1]
        case "semihard-random":
            return [semihard[int(draw * draw.dtype.type(len(semihard)))]] if semihard else []
        case "hardest":
            return nearest_first[:1]
        case "semihard":
            return sorted(semihard)
        case "all":
            return negatives


def slow_triplet_loss(codes, triplets, *, margin, reduction="mean"):
    """The mean hinge of each anchor's triplets, 0 for an anchor without; then over all anchors."""
    by_anchor = []
    for anchor in range(len(codes)):
        hinges = [
            max(
                codes.new_zeros(()),
                margin + squared(codes[a], codes[p]) - squared(codes[a], codes[n]),
            )
            for a, p, n in triplets
            if a == anchor
        ]
        by_anchor.append(sum(hinges) / len(hinges) if hinges else codes.new_zeros(()))
    return sum(by_anchor) / (len(codes) if reduction == "mean" else 1)


def squared(a, b):
    return sum((x - y) ** 2 for x, y in zip(a.flatten(), b.flatten(), strict=True))


def slow_reconstruction(images, targets, *, reduction="mean"):
    norms = [squared(image, target) for image, target in zip(images, targets, strict=True)]
    return sum(norms) / (len(norms) if reduction == "mean" else 1)


@pytest.fixture(scope="session", name="slow_mine")
def _slow_mine():
    return slow_mine


@pytest.fixture(scope="session", name="slow_triplet_loss")
def _slow_triplet_loss():
    return slow_triplet_loss


@pytest.fixture(scope="session", name="slow_reconstruction")
def _slow_reconstruction():
    return slow_reconstruction


@pytest.fixture
def rng():
    """A generator that starts every test in the same place."""
    return torch.Generator().manual_seed(0)
