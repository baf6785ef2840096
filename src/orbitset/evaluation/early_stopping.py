"""Early stopping as in the paper: choose the checkpoint on one half of the test images, score on the other.

Images of one orbit lie on one side of a split. Each measure chooses its own checkpoint: the evaluation with
the best score on the validation side (VA) is scored by the same measure on the test side (TE).

Shapes: S splits, N images, E evaluations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from orbitset.seeds import stream


@dataclass(frozen=True)
class OrbitHalves:
    """Which images are on the validation side, (S, N) bool; the others are on the test side."""

    is_validation_SN: Tensor

    def __len__(self) -> int:
        return len(self.is_validation_SN)

    def scores(self, right_N: Tensor) -> tuple[list[float], list[float]]:
        """The mean over each split's validation and test side of a number per image; NaN is left out."""
        right = right_N.to(self.is_validation_SN.device)
        va, te = (
            [float(right[side_N].nanmean()) for side_N in sides]
            for sides in (self.is_validation_SN, ~self.is_validation_SN)
        )
        return va, te


def orbit_splits(orbits: Tensor, *, splits: int = 10, seed: int = 0) -> OrbitHalves:
    """Random halves of the orbits, `splits` times.

    >>> splits = orbit_splits(torch.tensor([7, 7, 8, 9, 9, 4]), splits=3)
    >>> len(splits), splits.is_validation_SN.shape
    (3, torch.Size([3, 6]))
    """
    place_N = orbits.unique(return_inverse=True)[1]
    num_orbits = int(place_N.max()) + 1 if len(orbits) else 0
    if splits < 1 or num_orbits < 2:
        raise ValueError(
            f"there are {num_orbits} orbits for {splits} splits; give at least two orbits and one split"
        )
    sides = []
    for split in range(splits):
        order = torch.randperm(num_orbits, generator=stream("va-te", seed, split))
        side = torch.zeros(num_orbits, dtype=torch.bool)
        side[order[: num_orbits // 2]] = True
        sides.append(side)
    return OrbitHalves(torch.stack(sides).to(orbits.device)[:, place_N])


@dataclass(frozen=True)
class Stopped:
    """For each split, the evaluation that was chosen and its score on the test side."""

    evaluation_S: list[int]
    score_S: list[float]


def stop_early(validation: Tensor, test: Tensor) -> Stopped:
    """Choose the best evaluation on the validation side, of equals the first; score it on the other.

    >>> stop_early(torch.tensor([[0.1], [0.5], [0.4]]), torch.tensor([[0.2], [0.3], [0.9]]))
    Stopped(evaluation_S=[1], score_S=[0.30000001192092896])
    """
    if validation.shape != test.shape or validation.ndim != 2 or 0 in validation.shape:
        raise ValueError(
            f"the scores have shapes {tuple(validation.shape)} and {tuple(test.shape)}; "
            "give (evaluations, splits) for both sides"
        )
    if not (validation.isfinite().all() and test.isfinite().all()):
        raise ValueError("a score is NaN or infinite; give finite scores")
    # argmax does not promise the first of equals
    is_best = validation == validation.max(0).values
    chosen_S = is_best.long().cumsum(0).eq(0).sum(0)
    return Stopped(chosen_S.tolist(), test.gather(0, chosen_S[None])[0].tolist())
