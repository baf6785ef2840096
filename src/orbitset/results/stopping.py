"""Scores by early stopping, from the metrics of runs alone: (seeds, splits) for each method."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from orbitset.errors import RunError
from orbitset.evaluation.early_stopping import stop_early
from orbitset.protocols.contract import About
from orbitset.results.recorded import Training


@dataclass(frozen=True)
class Scores:
    """A measure on the test side of every split at the time chosen on the other side, for each seed."""

    score_SR: np.ndarray
    """(seeds, splits)"""
    epoch_SR: np.ndarray
    """When training was stopped for it"""
    repeated: Literal["splits", "seeds"] = "splits"
    """What a spread and a test are over"""

    @property
    def repeats(self) -> np.ndarray:
        return self.by_split if self.repeated == "splits" else self.by_seed

    @property
    def by_split(self) -> np.ndarray:
        means: np.ndarray = self.score_SR.mean(0)
        return means

    @property
    def by_seed(self) -> np.ndarray:
        means: np.ndarray = self.score_SR.mean(1)
        return means


def joined(parts: Sequence[Scores]) -> Scores:
    """The scores of one method on several splits of the data, each trained anew."""
    return Scores(
        np.concatenate([part.score_SR for part in parts], 1),
        np.concatenate([part.epoch_SR for part in parts], 1),
    )


def about(run: Training) -> About:
    """What a finished run says about the protocol that judged it."""
    try:
        return About.from_json(run.results["protocol"])
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{run / 'results.json'} is damaged: {error!r}") from None


def measures_of(run: Training) -> list[str]:
    """The measures that a run was scored by."""
    if not run.records:
        raise RunError(f"{run / 'metrics.jsonl'} is damaged: it has no records")
    return [
        name
        for name, value in run.records[-1].items()
        if name != "terms" and isinstance(value, dict) and "mean" in value
    ]


def scores_of(runs: Sequence[Training], measure: str, *, is_swapped: bool = False) -> Scores:
    """Scores of one configuration's runs, a seed each: by early stopping on every split, or at the end of
    training where there are no splits or the measure has no scores on their sides."""
    protocol = about(runs[0])
    is_own = measure in protocol.measures
    num_splits = _num_splits(runs[0], measure, is_own=is_own)
    if not num_splits and (protocol.fewest_splits < 2 or not is_own):
        return final_scores(runs, measure, is_bounded=is_own)
    return stopped_scores(
        runs, measure, num_splits, least=protocol.fewest_splits, is_swapped=is_swapped
    )


def _num_splits(run: Training, measure: str, *, is_own: bool) -> int:
    """How many splits a run was to be scored on: as its protocol was set, or else as its last record has."""
    evaluation = run.config.evaluation
    if is_own and evaluation is not None and evaluation.splits is not None:
        return int(evaluation.splits)
    record = run.records[-1].get(measure) if run.records else None
    return len(record.get("va", [])) if isinstance(record, dict) else 0


def final_scores(runs: Sequence[Training], measure: str, *, is_bounded: bool = True) -> Scores:
    """Scores at the end of training, where no part of the data was kept to choose a stopping time on."""
    scores, epochs = [], []
    for run in runs:
        try:
            end = run.records[-1]
            scores.append([float(end[measure]["mean"])])
            epochs.append([float(end["epoch"])])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{run / 'metrics.jsonl'} is damaged: {error!r}") from None
        if is_bounded:
            check_scores(scores[-1], run / "metrics.jsonl")
    return Scores(np.array(scores), np.array(epochs))


def check_scores(scores: Iterable[float], file: Path) -> None:
    """Every measure lies between 0 and 1, or is NaN where there was nothing to measure."""
    wrong = [score for score in scores if score < 0 or score > 1]
    if wrong:
        raise RunError(f"{file} is damaged: {wrong[0]:g} is no score, which lies between 0 and 1")


def stopped_scores(
    runs: Sequence[Training], measure: str, splits: int, *, least: int = 2, is_swapped: bool = False
) -> Scores:
    """Scores of one method's runs, a seed each. What there was before training is no stopping time.

    Swapped, the time is chosen on the test side and scored on the validation side.
    """
    scores, epochs = [], []
    chosen_on, scored_on = ("te", "va") if is_swapped else ("va", "te")
    for run in runs:
        records = [record for record in _records(run, measure, splits, least) if record["step"] > 0]
        try:
            sides = [
                torch.tensor([record[measure][side] for record in records], dtype=torch.float64)
                for side in (chosen_on, scored_on)
            ]
            stopped = stop_early(*sides)
            epochs.append([float(records[at]["epoch"]) for at in stopped.evaluation_S])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{run / 'metrics.jsonl'} is damaged: {error}") from None
        check_scores(torch.cat(sides).flatten().tolist(), run / "metrics.jsonl")
        scores.append(stopped.score_S)
    return Scores(np.array(scores), np.array(epochs))


def _records(run: Training, measure: str, splits: int, least: int) -> Sequence[dict[str, Any]]:
    """The run's records; refuses what has no scores of so many splits or more, or lost some of them."""
    name, records = run / "metrics.jsonl", run.records
    if not all(isinstance(record["step"], int) for record in records):
        raise RunError(f"{name} is damaged: a step is not a whole number")
    if any(not isinstance(record.get(measure), dict) for record in records):
        raise RunError(f"{name} has no {measure}, which needs images with labels")
    sides = [record[measure].get(side, []) for record in records for side in ("va", "te")]
    if splits < least or not any(sides):
        raise RunError(
            f"{run.path} was evaluated on {splits if splits < least else 0} splits; "
            "a test of significance needs at least two",
            hint="train it with --set evaluation.splits=10",
            is_usage=True,
        )
    if any(not isinstance(side, list) or len(side) != splits for side in sides):
        raise RunError(f"{name} is damaged: it does not have the scores of {splits} splits")
    return records
