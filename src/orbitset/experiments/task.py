"""The paper's one-shot task on computed orbits: what is encoded, and how it is scored.

Labelled sets are drawn first, one transformed validation image per class, so that only the images that
were drawn need encoding. Queries are transformed test images, chosen once.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orbitset.errors import DataError
from orbitset.evaluation.invariance import InvarianceCurve, invariance_curve
from orbitset.evaluation.labelled import Labelled, Metric, draw_labelled_sets
from orbitset.evaluation.one_shot import knn_accuracy
from orbitset.evaluation.results import Accuracy
from orbitset.losses.distances import distance_matrix
from orbitset.orbits.computed import AffineOrbits
from orbitset.precision import Precision, in_bfloat16
from orbitset.seeds import stream

_ENCODE_BATCH = 500
_MOST_SHOWN = 2_000
"""Images among which one is to be found"""
_CURVE_ORBITS, _CURVE_MEMBERS = 150, 8

Encode = Callable[[Tensor], Tensor]


class OneShotTask:
    """Validation and test orbits with the draws fixed by a seed; scores any function from images to codes."""

    def __init__(
        self,
        validation: AffineOrbits,
        test: AffineOrbits,
        *,
        test_images: int,
        draws: int,
        seed: int,
        shots: int = 1,
    ) -> None:
        if validation.labels_N is None or test.labels_N is None:
            raise DataError("one-shot evaluation needs class labels, and these images have none")
        missing = set(test.labels_N.tolist()) - set(validation.labels_N.tolist())
        if missing:
            raise DataError(
                f"classes {sorted(missing)[:5]} of the test images have no validation image to label",
                hint="give every class at least three images",
            )
        self.validation, self.test = validation, test
        self.query_orbit, self.query_member = _choose(test, test_images, seed)
        members = validation.num_members
        pool_labels = validation.labels_N.repeat_interleave(members)
        sets = draw_labelled_sets(pool_labels.cpu(), shots=shots, draws=draws, seed=seed)
        drawn, places = sets.unique(return_inverse=True)
        drawn = drawn.to(validation.device)
        self.labelled_sets = places.view(sets.shape).to(validation.device)
        self.gallery_orbit, self.gallery_member = drawn // members, drawn % members

    def scores(
        self, encode: Encode, metrics: tuple[Metric, ...] = ("euclidean", "cosine")
    ) -> dict[Metric, Accuracy]:
        """Accuracy for each metric, from one encoding."""
        return self.scores_of(self.encode_queries(encode), encode, metrics)

    def scores_of(
        self, queries: Labelled, encode: Encode, metrics: tuple[Metric, ...]
    ) -> dict[Metric, Accuracy]:
        """The same for queries that have been encoded already."""
        gallery = self.encode_gallery(encode)
        return {
            metric: knn_accuracy(gallery, queries, metric=metric, labelled_sets=self.labelled_sets)
            for metric in metrics
        }

    def encode_gallery(self, encode: Encode) -> Labelled:
        codes = encode_members(encode, self.validation, self.gallery_orbit, self.gallery_member)
        assert self.validation.labels_N is not None
        return Labelled(codes, self.validation.labels_N[self.gallery_orbit])

    def encode_queries(self, encode: Encode, limit: int | None = None) -> Labelled:
        orbit, member = self.query_orbit[:limit], self.query_member[:limit]
        codes = encode_members(encode, self.test, orbit, member)
        assert self.test.labels_N is not None
        return Labelled(codes, self.test.labels_N[orbit])


class FindingTask:
    """Images without labels: each is to be found by a changed one of it, among all or a few thousand."""

    def __init__(self, orbits: AffineOrbits, *, queries: int, seed: int) -> None:
        self.orbits, self.num_shown = orbits, min(len(orbits), _MOST_SHOWN)
        orbit, member = _choose(orbits, len(orbits) * orbits.num_members, seed)
        asked = ((member > 0) & (orbit < self.num_shown)).nonzero().squeeze(1)[:queries]
        self.query_orbit, self.query_member = orbit[asked], member[asked]

    def score(self, encode: Encode) -> float:
        """The share of queries whose nearest canonical image is their own."""
        every = torch.arange(self.num_shown, device=self.orbits.device)
        gallery = encode_members(encode, self.orbits, every, torch.zeros_like(every)).double()
        right = 0
        for orbit, member in zip(
            self.query_orbit.split(_ENCODE_BATCH),
            self.query_member.split(_ENCODE_BATCH),
            strict=True,
        ):
            codes = encode(self.orbits.members(orbit, member))
            nearest = distance_matrix(codes.double(), gallery).argmin(1)
            right += int((nearest == orbit).sum())
        return right / max(1, len(self.query_orbit))


def orbit_curve(
    encode: Encode, orbits: AffineOrbits, epsilons: Tensor | None = None
) -> InvarianceCurve:
    """Invariance and selectivity on a few members of the first orbits.

    Without epsilons, over a sweep that reaches from far below to above the usual distance.
    """
    num_orbits = min(_CURVE_ORBITS, len(orbits))
    num_members = min(_CURVE_MEMBERS, orbits.num_members)
    orbit = torch.arange(num_orbits, device=orbits.device).repeat_interleave(num_members)
    member = torch.arange(num_members, device=orbits.device).repeat(num_orbits)
    codes = encode_members(encode, orbits, orbit, member)
    if epsilons is None:
        usual = 2 * codes.double().var(0).sum()  # the mean squared distance of two random codes
        exponents = torch.linspace(-3, 1, 161, dtype=torch.float64, device=codes.device)
        epsilons = usual.clamp(min=1e-12) * 10**exponents
    return invariance_curve(codes, orbit, epsilons)


def encode_members(
    encode: Encode, orbits: AffineOrbits, orbit_N: Tensor, member_N: Tensor
) -> Tensor:
    """Codes of the chosen members, made and encoded a few hundred at a time."""
    codes = [
        encode(orbits.members(orbit, member))
        for orbit, member in zip(
            orbit_N.split(_ENCODE_BATCH), member_N.split(_ENCODE_BATCH), strict=True
        )
    ]
    return torch.cat(codes)


def encoding_with(model: nn.Module, *, precision: Precision = "float32") -> Encode:
    """The model's encoder as a function for evaluation, without gradients."""
    device = next(model.parameters()).device
    use_bfloat16 = in_bfloat16(precision, device)

    @torch.inference_mode()
    def encode(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=use_bfloat16):
            codes: Tensor = model.encode(images)  # type: ignore[operator]
        return codes

    return encode


def raw_pixels(images: Tensor) -> Tensor:
    """The encoding that does nothing."""
    return images.flatten(1)


def _choose(orbits: AffineOrbits, num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Different members of random orbits, all of them if fewer."""
    total = len(orbits) * orbits.num_members
    rows = torch.randperm(total, generator=stream("queries", seed))[:num].to(orbits.device)
    return rows // orbits.num_members, rows % orbits.num_members
