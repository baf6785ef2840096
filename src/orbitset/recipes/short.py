"""What a short training chooses otherwise than a long one."""

from dataclasses import replace

from orbitset.datasets.source import TableSource
from orbitset.datasets.table import ImageTable
from orbitset.protocols.images import grouping
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.own_images import DEFAULT_METHOD

_ENOUGH_IMAGES = 20_000
"""Between the lengths that were measured, 6,000 and 60,000 images shown (docs/log.md)"""
_ENOUGH_MINUTES = 10.0
"""A time limit shorter than that may leave fewer"""


def trained_table(source: TableSource, config: Experiment) -> ImageTable:
    """The images that are trained on."""
    orbits, parts = config.observed, config.evaluation
    table = source.cropped(grouping(orbits).usable(source.table(orbits.factors)), orbits.crops)
    return table.where(parts.split_by, parts.train)


def why_short(source: TableSource, config: Experiment, minutes: float | None) -> str | None:
    """In words, why a training counts as short; None for a long one. `minutes` is its time limit."""
    if minutes is not None and minutes < _ENOUGH_MINUTES:
        return f"with a limit of {minutes:g} minutes"
    return why_few(config.train.epochs * len(trained_table(source, config)))


def why_few(num_images: float) -> str | None:
    """In words, that so many images shown are few; None if they are not."""
    return f"with only {num_images:,.0f} images shown" if num_images < _ENOUGH_IMAGES else None


def with_spread_codes(config: Experiment, short: str | None) -> tuple[Experiment, str | None]:
    """The experiment with codes that are spread over all directions from its first step, if it is short and
    begins with random weights, and why, in words. This was measured with the default method alone."""
    is_default = config.method == DEFAULT_METHOD and config.encoder.code_norm == "unit"
    if short is None or config.begins_useful or not is_default:
        return config, None
    spread = replace(config, encoder=replace(config.encoder, code_norm="sphere"))
    return spread, (
        f"codes are centred before they are normalised (sphere): {short} they would stay nearly alike "
        "(--set encoder.code_norm=unit leaves them)"
    )
