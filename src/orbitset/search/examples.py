"""Recognition from one or a few examples of each class.

The distance of a class is that of its nearest example, or of the mean of its examples. The nearest class is
the answer, unless it is too far away.

Shapes: N examples, Q queries, C classes in the order of their first example, D code entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from orbitset.errors import check_choice
from orbitset.search.distances import checked_codes, chunks, paired_distances, squared_distances

By = Literal["nearest", "mean"]

_ROUNDING = 1e-12
"""Distances whose relative difference is smaller count as equal"""


@dataclass(frozen=True)
class Recognised:
    """The answer for one query, with squared distances."""

    label: str | None
    """None if the nearest class is too far away"""
    nearest: str
    """The nearest class, however far away"""
    distance: float
    runner_up: str | None
    """The second nearest class; None if there is only one"""
    runner_up_distance: float | None


class Examples:
    """Codes with known labels."""

    def __init__(self, codes: np.ndarray, labels: Sequence[str], *, by: By = "nearest") -> None:
        check_choice("by", by, get_args(By))
        self.codes_ND = checked_codes(codes)
        if len(labels) != len(self.codes_ND):
            raise ValueError(f"there are {len(labels)} labels for {len(self.codes_ND)} examples")
        if not len(labels):
            raise ValueError("there are no examples; give at least one")
        self.by: By = by
        self.classes = list(dict.fromkeys(labels))
        number = {label: c for c, label in enumerate(self.classes)}
        self.class_N = np.array([number[label] for label in labels])
        self.count_C = np.bincount(self.class_N)
        self.sum_CD = np.zeros((len(self.classes), self.codes_ND.shape[1]))
        np.add.at(self.sum_CD, self.class_N, self.codes_ND.astype(np.float64))
        self.mean_CD = self.sum_CD / self.count_C[:, None]

    def __len__(self) -> int:
        return len(self.codes_ND)

    def classify(self, codes: np.ndarray, *, reject_above: float | None = None) -> list[Recognised]:
        """The class of each query, of equally near ones the first; none if it is beyond `reject_above`.

        >>> known = Examples(np.array([[0.0], [4.0]]), ["left", "right"])
        >>> [result.label for result in known.classify(np.array([[1.0], [9.0]]), reject_above=4)]
        ['left', None]
        """
        if reject_above is not None and not reject_above >= 0:
            raise ValueError(f"reject_above is {reject_above}; give a squared distance, at least 0")
        codes = checked_codes(codes, size=self.codes_ND.shape[1])
        return [
            self._recognised(distance_C, reject_above)
            for queries in chunks(len(codes), len(self))
            for distance_C in self._distances(codes[queries])
        ]

    def _recognised(self, distance_C: np.ndarray, reject_above: float | None) -> Recognised:
        first, *others = distance_C.argsort(kind="stable")[:2].tolist()
        distance = float(distance_C[first])
        is_accepted = reject_above is None or distance <= reject_above
        return Recognised(
            label=self.classes[first] if is_accepted else None,
            nearest=self.classes[first],
            distance=distance,
            runner_up=self.classes[others[0]] if others else None,
            runner_up_distance=float(distance_C[others[0]]) if others else None,
        )

    def _distances(self, codes_QD: np.ndarray) -> np.ndarray:
        """The distance of each query to each class, (Q, C)."""
        if self.by == "mean":
            return squared_distances(codes_QD, self.mean_CD)
        return _of_classes(squared_distances(codes_QD, self.codes_ND), self.class_N)


def _of_classes(distance_QN: np.ndarray, class_N: np.ndarray) -> np.ndarray:
    """The least distance to an example of each class, (Q, C)."""
    order = class_N.argsort(kind="stable")
    starts_C = np.flatnonzero(np.diff(class_N[order], prepend=-1))
    least_QC: np.ndarray = np.minimum.reduceat(distance_QN[:, order], starts_C, axis=1)
    return least_QC


def leave_one_out_threshold(examples: Examples) -> float | None:
    """Estimate `reject_above` from the examples alone.

    Each example is left out in turn. Its distance to the rest of its class should be accepted; that to the
    nearest other class should be rejected, as if its own class were unknown. The threshold is the middle
    of the gap between distances with the fewest errors, both error rates weighted equally; of equally good
    gaps the widest.

    None if fewer than two classes have two examples, or if no threshold is better than accepting everything.

    >>> codes = np.array([[0.0], [1.0], [5.0], [6.0]])
    >>> leave_one_out_threshold(Examples(codes, ["a", "a", "b", "b"]))
    8.5
    """
    count_C = examples.count_C
    if (count_C >= 2).sum() < 2:
        return None
    own_N, other_N = _left_out(examples)
    same = np.sort(own_N[count_C[examples.class_N] >= 2])
    other = np.sort(other_N)
    edges = np.unique(np.concatenate([same, other]))
    missed = 1 - np.searchsorted(same, edges, side="right") / len(same)
    mistaken = np.searchsorted(other, edges, side="right") / len(other)
    gap = np.diff(edges)
    longest = float(np.square(examples.codes_ND.astype(np.float64)).sum(1).max())
    is_gap = gap > _ROUNDING * edges[1:] + _ROUNDING**2 * longest
    error = np.where(is_gap, (missed + mistaken)[:-1] / 2, np.inf)
    least = error.min(initial=np.inf)
    if least >= 0.5 - _ROUNDING:
        return None
    best = int(np.where(error <= least + _ROUNDING, gap, -1.0).argmax())
    return float(edges[best] + gap[best] / 2)


def _left_out(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Distances of each example to the rest of its class, if there is any, and to the nearest other one."""
    own_N, other_N = np.empty(len(examples)), np.empty(len(examples))
    for rows in chunks(len(examples), len(examples)):
        class_Q, codes_QD = examples.class_N[rows], examples.codes_ND[rows]
        place_Q = np.arange(len(class_Q))
        if examples.by == "mean":
            count_Q = examples.count_C[class_Q]
            rest_QD = (examples.sum_CD[class_Q] - codes_QD) / np.maximum(count_Q - 1, 1)[:, None]
            own_N[rows] = paired_distances(rest_QD, codes_QD)
            distance_QC = squared_distances(codes_QD, examples.mean_CD)
        else:
            distance_QN = squared_distances(codes_QD, examples.codes_ND)
            distance_QN[place_Q, place_Q + rows.start] = np.inf
            distance_QC = _of_classes(distance_QN, examples.class_N)
            own_N[rows] = distance_QC[place_Q, class_Q]
        distance_QC[place_Q, class_Q] = np.inf
        other_N[rows] = distance_QC.min(1)
    return own_N, other_N
