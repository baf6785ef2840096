"""Rows of figures as tables; every table says what was repeated and how often."""

from collections.abc import Sequence
from typing import Any

METRIC_NAMES = {
    "accuracy": "one-shot accuracy",
    "accuracy_cosine": "one-shot accuracy, cosine",
    "invariance": "invariance at ε = α",
    "selectivity": "selectivity at ε = α",
}


def ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Baselines first, then the methods as they came, one metric after the other."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    first = {"pixels": 0, "untrained": 1}
    return sorted(rows, key=lambda r: (metrics.index(r["metric"]), first.get(r["method"], 2)))


def metric_name(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def format_value(row: dict[str, Any]) -> str:
    """
    >>> format_value({"mean": 0.6612, "sd": 0.027}), format_value({"mean": 0.5, "sd": None})
    ('0.661 ± 0.027', '0.500')
    """
    spread = "" if row["sd"] is None else f" ± {row['sd']:.3f}"
    return "–" if row["mean"] is None else f"{row['mean']:.3f}{spread}"


def format_repeats(row: dict[str, Any]) -> str:
    """
    >>> format_repeats({"n": 100, "repeated": "draws", "seeds": 1})
    '100 draws, 1 seed'
    """
    seeds = f"{row['seeds']} seed{'s' if row['seeds'] != 1 else ''}"
    return f"{row['n']} {row['repeated']}, {seeds}" if row["n"] > 1 else seeds


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """A plain table for a terminal, one block per metric, no wider than a narrow window."""
    lines = []
    metric = None
    for row in ordered(rows):
        if row["metric"] != metric:
            metric = row["metric"]
            lines += ["", metric_name(metric)]
        paper = "" if row["paper"] is None else f"  paper {row['paper']:.2f}"
        value = format_value(row)
        lines.append(f"  {row['method']:<10} {value:<14} {format_repeats(row)}{paper}")
    return "\n".join(lines[1:])
