"""What a short training chooses otherwise than a long one."""

from dataclasses import replace

from orbitset.recipes.experiment import Experiment

ENOUGH_EPOCHS = 10.0
"""Between the lengths at which development sets lose by augmentation, at most 7.4 epochs, and gain, at least
14.5; the norm of codes was measured at the same lengths (docs/log.md)"""


def why_short(config: Experiment, *, has_time_limit: bool) -> str | None:
    """In words, why a training may show every image a few times only. A time limit may make any short."""
    if has_time_limit:
        return "a training with a time limit, which may be short,"
    epochs = config.train.epochs
    unit = "epoch" if epochs == 1 else "epochs"
    return f"a training of {epochs:.3g} {unit}" if epochs < ENOUGH_EPOCHS else None


def with_spread_codes(
    config: Experiment, *, has_time_limit: bool = False
) -> tuple[Experiment, str | None]:
    """The experiment with codes that are spread over all directions from its first step, if it is short and
    begins with random weights, and why, in words."""
    short = why_short(config, has_time_limit=has_time_limit)
    if short is None or config.begins_useful or config.encoder.code_norm != "unit":
        return config, None
    spread = replace(config, encoder=replace(config.encoder, code_norm="sphere"))
    return spread, (
        f"codes are seen from their mean: they begin in nearly one direction, and {short} has no time to "
        "spread them (--set encoder.code_norm=unit leaves them)"
    )
