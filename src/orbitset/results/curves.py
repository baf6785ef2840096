"""Measures against epochs, averaged over runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from orbitset.errors import RunError
from orbitset.results.recorded import Training

_SAME_TIME = 1.1
"""Evaluations are of one time if their epochs differ by less: those of two splits need not be equal."""


def mean_curve(
    runs: Sequence[Training], measures: Sequence[str] = ("accuracy",)
) -> list[dict[str, Any]]:
    """Epoch and measures at every evaluation, averaged over n runs; the s.d. is the mean of those over draws
    or, where a run has none of its own, over the runs."""
    curve = []
    recorded = {run: run.records for run in runs}
    if any(
        run.config.train.patience is not None for run in runs
    ):  # each may have ended at another time
        steps = set.intersection(*({record["step"] for record in run.records} for run in runs))
        recorded = {
            run: [record for record in run.records if record["step"] in steps] for run in runs
        }
    counts = {run: len(records) for run, records in recorded.items()}
    most = max(counts.values())
    if short := [f"{run / 'metrics.jsonl'} has {num}" for run, num in counts.items() if num < most]:
        raise RunError(
            f"evaluations are missing, or some are there twice: {', '.join(short)}, others have {most}"
        )
    try:
        for records in zip(*recorded.values(), strict=True):
            epochs = [float(record["epoch"]) for record in records]
            if max(epochs) > _SAME_TIME * min(epochs):
                raise ValueError(f"{min(epochs):g} and {max(epochs):g}")
            point: dict[str, Any] = {"epoch": float(np.mean(epochs))}
            for measure in measures:
                means = [record[measure]["mean"] for record in records]
                spreads = [record[measure]["sd"] for record in records]
                over_runs = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
                sd = over_runs if None in spreads else float(np.mean(spreads))
                point[measure] = {"mean": float(np.mean(means)), "sd": sd, "n": len(means)}
            curve.append(point)
    except (KeyError, TypeError, ValueError) as error:
        names = ", ".join(str(run / "metrics.jsonl") for run in runs)
        raise RunError(
            f"{names} are no seeds of one curve: epochs differ or are damaged, {error}"
        ) from None
    return curve
