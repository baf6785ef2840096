"""Rows of figures as tables; every table says what was repeated and how often."""

import csv
import io
import itertools
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orbitset.files import write_atomically
from orbitset.run_folder import without_nan

METRIC_NAMES = {
    "accuracy": "one-shot accuracy",
    "auc": "verification AUC",
    "top1": "top-1 retrieval",
    "top5": "precision among the nearest five",
    "map": "mean average precision",
    "eer": "equal error rate",
    "nmi": "k-means NMI",
    "ari": "k-means ARI",
    "invariance": "invariance at ε = α",
    "selectivity": "selectivity at ε = α",
}
_SUFFIXES = {
    "_validation": ", on validation images",
    "_swapped": ", sides swapped",
    "_stopped": ", stopped early on validation images",
    "_cosine": ", cosine",
}
_KEYS = ("method", "metric", "mean", "sd", "n", "repeated", "seeds", "paper", "p_corrected")
_BASELINES = {"pixels": 0, "untrained": 1, "begun with": 1}
"""In the order they are shown, before the methods"""
_HEADLINE_METRICS = ("accuracy", "auc", "top1")
_WIDTH = 80
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"${character}$" for character in "<>|"}
    | {character: f"{{{character}}}" for character in "[*"}  # after a line's end they are arguments
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "–": "--", "ε": r"$\varepsilon$", "α": r"$\alpha$", "\n": " "}
)


def ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Baselines first, then the methods as they came, one metric after the other."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    return sorted(rows, key=lambda r: (metrics.index(r["metric"]), _BASELINES.get(r["method"], 2)))


def metric_name(metric: str) -> str:
    """
    >>> metric_name("accuracy_validation")
    'one-shot accuracy, on validation images'
    """
    for suffix, words in _SUFFIXES.items():
        if metric.endswith(suffix):
            return metric_name(metric.removesuffix(suffix)) + words
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def format_value(row: Mapping[str, Any]) -> str:
    """
    >>> format_value({"mean": 0.6612, "sd": 0.027}), format_value({"mean": 0.5, "sd": None})
    ('0.661 ± 0.027', '0.500')
    """
    mean, sd = _number(row["mean"], ".3f"), _number(row["sd"], ".3f")
    return mean if "–" in (mean, sd) else f"{mean} ± {sd}"


def format_interval(low: float | None, high: float | None) -> str:
    """Nothing where there is none.

    >>> format_interval(0.25, 0.5), format_interval(None, None)
    ('0.250 – 0.500', '')
    """
    return "" if low is None or high is None else f"{low:.3f} – {high:.3f}"


def format_repeats(row: Mapping[str, Any]) -> str:
    """
    >>> format_repeats({"n": 100, "repeated": "draws", "seeds": 1})
    '100 draws, 1 seed'
    """
    seeds = f"{row['seeds']} seed{'s' if row['seeds'] != 1 else ''}"
    is_said = row["n"] == 1 or row["repeated"] == "seeds"
    return seeds if is_said else f"{row['n']} {row['repeated']}, {seeds}"


def format_p(p: float | None) -> str:
    """
    >>> format_p(0.000123), format_p(None)
    ('0.00012', '')
    """
    number = _number(p, ".2g")
    return "" if number == "–" else number


def format_paper(row: Mapping[str, Any]) -> str:
    """
    >>> format_paper({"paper": 0.66, "paper_sd": 0.027}), format_paper({"paper": 0.66})
    ('0.66 ± 0.027', '0.66')
    """
    if row["paper"] is None:
        return ""
    sd = row.get("paper_sd")
    return f"{row['paper']:.2f}" + ("" if sd is None else f" ± {sd:.3f}")


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """A plain table for a terminal, one block per metric, no wider than a narrow window."""
    blocks = {
        metric: [(row["method"], _figures(row)) for row in block]
        for metric, block in _by_metric(rows)
    }
    marks = [textwrap.fill(mark, _WIDTH) for mark in (*_about_p(rows), *_marks(rows))]
    return "\n\n".join([_aligned(blocks), *marks])


def pixels_do_as_well(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """At what raw pixels are as good as the trained codes or better, in words; None if at nothing.

    >>> print(pixels_do_as_well([
    ...     {"method": "pixels", "metric": "top1", "mean": 0.71},
    ...     {"method": "OJ", "metric": "top1", "mean": 0.69},
    ... ]))
    raw pixels do as well: top-1 retrieval 0.710, OJ 0.690
    """
    pixels = {row["metric"]: row["mean"] for row in rows if row["method"] == "pixels"}
    found = []
    for row in rows:
        metric, mean = row["metric"], row["mean"]
        if (
            row["method"] in _BASELINES
            or metric.removesuffix("_validation") not in _HEADLINE_METRICS
        ):
            continue
        if mean is not None and pixels.get(metric) is not None and mean <= pixels[metric]:
            found.append(f"{metric_name(metric)} {pixels[metric]:.3f}, {row['method']} {mean:.3f}")
    return f"raw pixels do as well: {'; '.join(found)}" if found else None


def text_tests(tests: Sequence[Mapping[str, Any]], rows: Sequence[dict[str, Any]]) -> str:
    """One method's paired tests against others for a terminal: the mean difference and each test's p.

    Beside stands where each method's own score lies by its seeds (95 %), of which a test over splits knows
    nothing.
    """
    names = list(dict.fromkeys(test["test"] for test in tests))
    has_seeds = any(row["seeds"] > 1 for row in rows)
    over_seeds = f"{'score over seeds':>18}" if has_seeds else ""
    head = "difference" + "".join(f"{name:>12}" for name in names) + over_seeds
    blocks: dict[str, list[tuple[str, str]]] = {}
    for metric, block in _by_metric(rows):
        blocks[metric] = [("", head)]
        for row in block:
            found = [t for t in tests if (t["metric"], t["against"]) == (metric, row["method"])]
            if not found and not has_seeds:
                continue
            difference = f"{found[0]['difference']:+.3f}" if found else ""
            cells = f"{difference:>10}"
            for name in names:
                p = [_number(t["p_corrected"], ".2g") for t in found if t["test"] == name]
                cells += f"{''.join(p):>12}"
            if has_seeds:
                interval = format_interval(row.get("seeds_low"), row.get("seeds_high"))
                cells += f"{interval or '–':>18}"
            blocks[metric].append((row["method"], cells))
    return _aligned(blocks)


def tests_heading(tests: Sequence[Mapping[str, Any]]) -> str:
    """Which way the differences go, and what p was corrected for.

    >>> test = {"method": "OJ", "repeats": 10, "repeated": "splits", "correction": "bonferroni x 3"}
    >>> tests_heading([test])
    'OJ minus each other, paired over 10 splits; p corrected, bonferroni x 3'
    """
    first = tests[0]
    how = "p as it is" if first["correction"] == "none" else f"p corrected, {first['correction']}"
    over = f"{first['repeats']} {first['repeated']}"
    return f"{first['method']} minus each other, paired over {over}; {how}"


def markdown_table(rows: Sequence[dict[str, Any]]) -> str:
    """Tables for a text such as a README, one per metric."""
    parts = []
    for metric, block in _by_metric(rows):
        head, *body = _cells(block)
        lines = [f"| {' | '.join(map(_markdown, cells))} |" for cells in (head, *body)]
        lines.insert(1, "|" + " --- |" * len(head))
        marks = [part for mark in _marks(block) for part in ("", _markdown(mark))]
        parts.append("\n".join([f"**{_markdown(metric_name(metric))}**", "", *lines, *marks]))
    return "\n\n".join(parts)


def latex_table(rows: Sequence[dict[str, Any]]) -> str:
    """Tables for an article that loads booktabs, one per metric."""
    parts = []
    for metric, block in _by_metric(rows):
        repeats = "; ".join(dict.fromkeys(format_repeats(row) for row in block))
        caption = f"{metric_name(metric)}: mean ± s.d., repeated: {repeats}."
        caption = " ".join([caption, *_marks(block)])
        head, *body = (" & ".join(cell.translate(_LATEX) for cell in row) for row in _cells(block))
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption.translate(_LATEX)}}}",
            rf"\begin{{tabular}}{{{'l' * (head.count(' & ') + 1)}}}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
            *(rf"{line} \\" for line in body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def csv_table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per row with everything in it, for other programs: what is missing is left empty."""
    columns = dict.fromkeys((*_KEYS, *(key for row in rows for key in row)))
    return _csv(list(columns), ordered(rows))


def _csv(columns: list[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(without_nan(list(rows)))
    return text.getvalue().removesuffix("\n")


def write_tables(
    folder: Path, rows: Sequence[dict[str, Any]], tests: Sequence[Mapping[str, Any]] = ()
) -> None:
    """The same rows as results.md, results.tex, results.csv and results.json; tests as tests.csv."""
    if tests:
        write_atomically(folder / "tests.csv", f"{_csv(list(tests[0]), tests)}\n".encode())
    as_json = json.dumps({"rows": without_nan(rows)}, indent=2, allow_nan=False)
    for suffix, text in (
        ("md", markdown_table(rows)),
        ("tex", latex_table(rows)),
        ("csv", csv_table(rows)),
        ("json", as_json),
    ):
        write_atomically(folder / f"results.{suffix}", f"{text}\n".encode())


def _about_p(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which of several tests the p beside a score is of.

    >>> _about_p([{"p_corrected": 0.01, "test": "paired-t", "correction": "bonferroni x 3"}])
    ['p: paired-t, bonferroni x 3']
    """
    tested = [row for row in rows if row.get("p_corrected") is not None and row.get("test")]
    return list(dict.fromkeys(f"p: {row['test']}, {row['correction']}" for row in tested))


def _marks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """That figures come from something cut down travels with them."""
    return list(dict.fromkeys(row["cut_down"] for row in rows if row.get("cut_down")))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or math.isnan(value) else format(value, form)


def _by_metric(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for metric, block in itertools.groupby(ordered(rows), lambda row: row["metric"]):
        yield metric, list(block)


def _figures(row: Mapping[str, Any]) -> str:
    """A row of the text table, but for the method's name."""
    said = f"{format_value(row):<14} {format_repeats(row)}"
    for name, text in (("paper", format_paper(row)), ("p", format_p(row.get("p_corrected")))):
        said += f"  {name} {text}" if text else ""
    return said


def _aligned(blocks: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Names and what is said of them in two columns; a name too long for it has a line of its own."""
    pairs = [pair for block in blocks.values() for pair in block]
    room = _WIDTH - 4 - max((len(said) for _, said in pairs), default=0)
    width = max([10, *(len(name) + 1 for name, _ in pairs if len(name) <= room)])
    lines = []
    for metric, block in blocks.items():
        lines += ["", metric_name(metric)]
        for name, said in block:
            if len(name) >= width:
                lines += textwrap.wrap(name, _WIDTH, initial_indent="  ", subsequent_indent="  ")
                name = ""
            lines.append(f"  {name:<{width}} {said}".rstrip())
    return "\n".join(lines[1:])


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The head and the rows of one metric; the paper's figures and p only where there are any."""
    with_paper = any(row["paper"] is not None for row in rows)
    with_p = any(row.get("p_corrected") is not None for row in rows)
    with_seeds = any(row.get("seeds_low") is not None for row in rows)
    tests = dict.fromkeys(
        ", ".join(filter(None, (row["test"], row.get("correction"))))
        for row in rows
        if row.get("test") is not None
    )
    head = ["method", "mean ± s.d.", "repeated"]
    head += ["95 %, seeds"] * with_seeds
    head += ["paper"] * with_paper + [", ".join(["p", *tests])] * with_p
    lines = [head]
    for row in rows:
        line = [row["method"], format_value(row), format_repeats(row)]
        interval = format_interval(row.get("seeds_low"), row.get("seeds_high"))
        line += [interval or "–"] * with_seeds
        line += [format_paper(row) or "–"] * with_paper
        line += [_number(row.get("p_corrected"), ".2g")] * with_p
        lines.append(line)
    return lines


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text).replace("\n", " ")
