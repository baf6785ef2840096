"""The one shape in which figures are given everywhere."""

from typing import Any


def row(method: str, metric: str, summary: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One line of a table of figures, in the one shape they all have: what is not known is None.

    `low` and `high` are percentiles over draws, `seeds_low` and `seeds_high` bound the mean over seeds,
    `epoch` is when training was stopped for it, `p_corrected` of a test of the reference against this.
    """
    unknown = (
        *("low", "high", "seeds_low", "seeds_high", "epoch"),
        *("paper", "paper_sd", "paper_p", "p_corrected", "test", "correction", "cut_down"),
    )
    return {
        "method": method,
        "metric": metric,
        **summary,
        "seeds": 1,
        **{name: None for name in unknown if name not in summary},
        **more,
    }


def criterion(record: dict[str, Any]) -> float:
    """By which the weights that are kept are chosen: how many validation images were found."""
    found: float = record["top1"]["va"][0]
    return found


def eligible(records: list[dict[str, Any]], *, is_begun: bool) -> list[dict[str, Any]]:
    """The evaluations that may be the best: the one before training only of a model that was begun with."""
    return records if is_begun else records[1:]


def best(records: list[dict[str, Any]], *, is_begun: bool) -> dict[str, Any]:
    """The evaluation after which most validation images were found, the first of several."""
    return max(eligible(records, is_begun=is_begun) or records, key=criterion)


def without_splits(summary: dict[str, Any]) -> dict[str, Any]:
    """What a record says of all test images, without the scores by split."""
    return {name: value for name, value in summary.items() if name not in ("va", "te")}
