"""The learning rate as a pure function of the step."""

import math
from typing import Literal, get_args

from orbitset.errors import check_choice

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int, *, peak: float, total_steps: int, warmup_steps: int, schedule: Schedule
) -> float:
    """Rise linearly to the peak over the warm-up, then stay, or fall to zero along a line or a cosine.

    >>> [round(learning_rate(s, peak=1.0, total_steps=6, warmup_steps=2, schedule="linear"), 2)
    ...  for s in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    check_choice("schedule", schedule, get_args(Schedule))
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    match schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - progress)
        case "cosine":
            return peak * (1 + math.cos(math.pi * progress)) / 2
