"""Factors that codes are to ignore (`orbits.ignore`): what tells their values apart is projected out.

Training itself is as without them. Whenever codes are scored, and once more at the end, the directions are
found in the codes of training images and projected out.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from orbitset.datasets.observed import ObservedImages
from orbitset.encoders import Encoder
from orbitset.encoders.erasing import erase, put_back, telling_directions
from orbitset.errors import DataError, check_choice, count_of
from orbitset.evaluation.factor_probe import probe_factor
from orbitset.evaluation.score import Score
from orbitset.protocols.contract import Encode
from orbitset.protocols.images import ComputedImages, ObservedSplit
from orbitset.seeds import stream

_MOST_TRAINED, _MOST_PROBED = 4_096, 2_048
"""Images in whose codes the directions are found, and a probe looks for a factor, at most"""


def ignoring_of(images: ComputedImages | ObservedSplit) -> "Ignoring | None":
    """What makes codes of these images ignore factors, if their configuration names some."""
    if not isinstance(images, ObservedSplit) or not images.config.ignore:
        return None
    return Ignoring(images)


class Ignoring:
    """Makes a network ignore factors, and measures how well a linear probe finds them in its codes."""

    def __init__(self, images: ObservedSplit) -> None:
        self.images, self.factors = images, images.config.ignore
        for factor in self.factors:
            _check(images.train, factor, images.label)
        self.trained = _some(images.train, _MOST_TRAINED)
        test = images.sides["te"]
        self.tested = _some(test, _MOST_PROBED)
        self.probed = [factor for factor in self.factors if len(test.factors[factor].unique()) > 1]
        """The factors that vary among held-out images, so that a probe can look for them"""

    @property
    def measures(self) -> dict[str, str]:
        """Its measures in words."""
        return {
            f"probe_{factor}": f"linear probe of {factor}, chance {_chance(self.tested.factors[factor]):.3f}"
            for factor in self.probed
        }

    def erase(self, network: Encoder, encode: Encode) -> dict[str, int]:
        """Project out of the network's codes what tells values of the factors apart, one factor after
        another. Gives the number of directions of each."""
        counts = {}
        for factor in self.factors:
            codes = self.images.encode(encode, self.trained)
            value_N = self.trained.known(factor).to(codes.codes.device)
            directions_DR = telling_directions(codes.codes, value_N, codes.labels)
            erase(network, directions_DR)
            counts[factor] = directions_DR.shape[1]
        return counts

    @contextmanager
    def erased(self, network: Encoder, encode: Encode) -> Iterator[None]:
        """A context in which the network ignores the factors."""
        with put_back(network):
            self.erase(network, encode)
            yield

    def scores(self, encode: Encode) -> dict[str, Score]:
        """How well a linear probe finds each factor in codes of held-out images."""
        if not self.probed:
            return {}
        codes = self.images.encode(encode, self.tested)
        return {
            f"probe_{factor}": Score(
                mean=probe_factor(codes.codes, self.tested.factors[factor], codes.labels)
            )
            for factor in self.probed
        }


def described_counts(counts: Mapping[str, int]) -> str:
    """
    >>> described_counts({"light": 5, "session": 0})
    '5 for light; none for session, which does not change all things alike'
    """
    return "; ".join(
        f"{count} for {factor}"
        if count
        else f"none for {factor}, which does not change all things alike"
        for factor, count in counts.items()
    )


def _check(trained: ObservedImages, factor: str, label: str) -> None:
    """Refuse a factor that has nothing to ignore, or that says what an image shows."""
    check_choice("orbits.ignore", factor, trained.factors)
    value_N = trained.known(factor)
    values = value_N[value_N >= 0].unique()
    if len(values) < 2:
        raise DataError(
            f"the images that are trained on have {count_of(len(values), 'value')} of {factor}, so that "
            "nothing tells what it does to codes; leave it out of --ignore"
        )
    pairs = torch.stack([value_N, trained.factors[label].cpu()], 1)[value_N >= 0].unique(dim=0)
    if len(pairs) == len(values):
        raise DataError(
            f"every {factor} belongs to one {label} only: to ignore it is to ignore what is to be "
            "recognised; leave it out of --ignore"
        )


def _some(images: ObservedImages, most: int) -> ObservedImages:
    order = torch.randperm(len(images), generator=stream("ignored factors"))
    return images if len(images) <= most else images[order[:most].sort().values]


def _chance(value_N: Tensor) -> float:
    return float(value_N.bincount().max() / len(value_N))
