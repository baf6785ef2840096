"""Rows of scores as tables; every table says what was repeated and how often."""

import csv
import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orbitset.files import write_atomically
from orbitset.protocols.contract import MEASURES
from orbitset.results.significance import is_significant
from orbitset.run_folder import without_nan

_Row = Mapping[str, Any]
_Words = Mapping[str, str]
"""Measures in the words of a protocol"""
_SUFFIXES = {
    "_validation": ", on validation images",
    "_swapped": ", sides swapped",
    "_stopped": ", at the evaluation that was best on validation images in this measure",
    "_cosine": ", cosine",
}
_TEST_NAMES = {
    "corrected-t": "corrected resampled t-test",
    "paired-t": "paired t-test",
    "wilcoxon": "Wilcoxon signed-rank test",
}
_KEYS = ("method", "metric", "mean", "sd", "n", "repeated", "seeds", "paper", "p_corrected")
BASELINES = {"pixels": 0, "untrained": 1, "begun with": 1, "frozen": 1}
"""In the order they are shown, before the methods"""
_FOR_NOTHING = {
    "pixels": "raw pixels are",
    "untrained": "the untrained network is",
    "frozen": "the frozen network is",
    "begun with": "the model it began with is",
}
"""What training has to beat"""
_HEADLINE_METRICS = ("accuracy", "auc", "top1")
_WIDTH = 80
_SMALLEST_P = 1e-6
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"${character}$" for character in "<>|"}
    | {character: f"{{{character}}}" for character in "[*"}  # after a line's end they are arguments
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "–": "--", "ε": r"$\varepsilon$", "α": r"$\alpha$", "\n": " "}
)


class Bold(str):
    """A cell in bold."""

    is_bold = True


def ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Baselines first, then the methods as they came, one metric after the other."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    return sorted(rows, key=lambda r: (metrics.index(r["metric"]), BASELINES.get(r["method"], 2)))


def metric_name(metric: str, words: _Words = MEASURES) -> str:
    """The measure in the words of its protocol.

    >>> metric_name("accuracy_validation")
    'one-shot accuracy, on validation images'
    """
    words = {**MEASURES, **words}
    if metric in words:
        return words[metric]
    for suffix, how in _SUFFIXES.items():
        if metric.endswith(suffix):
            return metric_name(metric.removesuffix(suffix), words) + how
    return metric.replace("_", " ")


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def name_test(test: str) -> str:
    """The usual name of a test.

    >>> name_test("paired-t")
    'paired t-test'
    """
    return _TEST_NAMES.get(test, test)


def name_correction(correction: str | None) -> str:
    """
    >>> name_correction("bonferroni x 3"), name_correction("none")
    ('Bonferroni-corrected for 3 comparisons', 'not corrected')
    """
    how, _, count = (correction or "none").partition(" x ")
    if how == "none":
        return "not corrected"
    return f"{how.capitalize()}-corrected for {count} comparison{'s' if count != '1' else ''}"


def about_p(rows: Sequence[_Row]) -> list[str]:
    """Which test the p beside the scores is of.

    >>> about_p([{"p_corrected": 0.01, "test": "paired-t", "correction": "bonferroni x 3"}])
    ['p: paired t-test, Bonferroni-corrected for 3 comparisons; p < 0.05 is bold.']
    """
    tested = [row for row in rows if row.get("p_corrected") is not None and row.get("test")]
    texts = (f"p: {name_test(r['test'])}, {name_correction(r.get('correction'))}" for r in tested)
    return [f"{text}; p < 0.05 is bold." for text in dict.fromkeys(texts)]


def format_value(row: _Row) -> str:
    """
    >>> format_value({"mean": 0.6612, "sd": 0.027}), format_value({"mean": 0.5, "sd": None})
    ('0.661 ± 0.027', '0.500')
    """
    mean, sd = (_number(row[name], ".3f") for name in ("mean", "sd"))
    return f"{mean} ± {sd}" if mean and sd else mean or "–"


def format_interval(low: float | None, high: float | None) -> str:
    """
    >>> format_interval(0.25, 0.5), format_interval(None, None)
    ('0.250 – 0.500', '')
    """
    return "" if low is None or high is None else f"{low:.3f} – {high:.3f}"


def format_difference(mean: float, interval: _Row) -> str:
    """
    >>> format_difference(-0.02, {"low": -0.05, "high": 0.01})
    '−0.020 (−0.050 to +0.010)'
    """
    text = f"{mean:+.3f} ({interval['low']:+.3f} to {interval['high']:+.3f})"
    return text.replace("-", "−")


def format_repeats(row: _Row) -> str:
    """
    >>> format_repeats({"n": 100, "repeated": "draws", "seeds": 1})
    '100 draws, 1 seed'
    """
    seeds = f"{row['seeds']} seed{'s' if row['seeds'] != 1 else ''}"
    is_named = row["n"] == 1 or row["repeated"] == "seeds"
    return seeds if is_named else f"{row['n']} {row['repeated']}, {seeds}"


def format_p(p: float | None) -> str:
    """In bold if it is below 0.05; nothing if there is none.

    >>> format_p(0.000123), format_p(2e-9), format_p(None)
    ('0.00012', '< 1e-6', '')
    """
    if p is None or math.isnan(p):
        return ""
    text = "< 1e-6" if p < _SMALLEST_P else f"{p:.2g}"
    return Bold(text) if is_significant(p) else text


def format_paper(row: _Row) -> str:
    """
    >>> format_paper({"paper": 0.66, "paper_sd": 0.027}), format_paper({"paper": 0.66})
    ('0.66 ± 0.027', '0.66')
    """
    if row["paper"] is None:
        return ""
    sd = row.get("paper_sd")
    return f"{row['paper']:.2f}" + ("" if sd is None else f" ± {sd:.3f}")


def score_cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of one metric, without columns that have nothing in them. Beside intervals over
    seeds, those over draws are left out."""
    has_seeds = any(row.get("seeds_low") is not None for row in rows)
    columns = {
        "method": [row["method"] for row in rows],
        "mean ± s.d.": [format_value(row) for row in rows],
        "2.5 – 97.5 %": [
            "" if has_seeds else format_interval(row.get("low"), row.get("high")) for row in rows
        ],
        "paper": [format_paper(row) for row in rows],
        "p": [format_p(row.get("p_corrected")) for row in rows],
        "95 % over seeds": [
            format_interval(row.get("seeds_low"), row.get("seeds_high")) for row in rows
        ],
        "stopped at epoch": [_number(row.get("epoch"), ".2g") for row in rows],
        "repeated": [format_repeats(row) for row in rows],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


def text_table(rows: Sequence[dict[str, Any]], words: _Words = MEASURES) -> str:
    """A plain table for a terminal, one block per metric, no wider than a narrow window."""
    blocks = {
        metric: [(row["method"], _figures(row)) for row in block]
        for metric, block in _by_metric(rows)
    }
    texts = [text.replace("is bold", "is marked *") for text in about_p(rows)]
    marks = [textwrap.fill(mark, _WIDTH) for mark in (*texts, *_marks(rows))]
    return "\n\n".join([_aligned(blocks, words), *marks])


def compared_with_baselines(rows: Sequence[_Row], tested_on: str | None = None) -> str | None:
    """Each measure of the trained codes beside that of raw pixels and of the network they began with, and who
    is better, in words; None if the codes are better in all. `tested_on` says on how many images.

    >>> print(compared_with_baselines([
    ...     {"method": "pixels", "metric": "top1", "mean": 0.71},
    ...     {"method": "OJ", "metric": "top1", "mean": 0.69},
    ... ], "54 test images"))
    raw pixels are better in top-1 retrieval (OJ 0.690, raw pixels 0.710); on 54 test images
    """
    sentences = sum((_compared(rows, *baseline) for baseline in _FOR_NOTHING.items()), [])
    on = [f"on {tested_on}"] if tested_on else []
    return "; ".join([*sentences, *on]) if sentences else None


def _compared(rows: Sequence[_Row], baseline: str, name: str) -> list[str]:
    """Who is better in which measures; nothing if the baseline is worse in all."""
    scores = {row["metric"]: row["mean"] for row in rows if row["method"] == baseline}
    parts: dict[str, list[str]] = {}
    for row in rows:
        before, after = scores.get(row["metric"]), row["mean"]
        is_headline = row["metric"].removesuffix("_validation") in _HEADLINE_METRICS
        if row["method"] in BASELINES or not is_headline or before is None or after is None:
            continue
        if not (math.isfinite(before) and math.isfinite(after)):
            continue
        brief = name.rpartition(" ")[0].removeprefix("the ")
        who = f"{row['method']} is better in" if after > before else f"{name} better in"
        who = f"{name} as good in" if after == before else who
        numbers = f"({row['method']} {after:.3f}, {brief} {before:.3f})"
        parts.setdefault(who, []).append(f"{metric_name(row['metric'])} {numbers}")
    if not any(who.startswith(name) for who in parts):
        return []
    return [f"{who} {', '.join(texts)}" for who, texts in sorted(parts.items(), reverse=True)]


def text_tests(
    tests: Sequence[_Row], rows: Sequence[dict[str, Any]], words: _Words = MEASURES
) -> str:
    """One method's paired tests against others for a terminal: the mean difference and each test's p.

    Beside them is the interval of each method's own score over its seeds (95 %), of which a test over splits
    knows nothing.
    """
    names = list(dict.fromkeys(test["test"] for test in tests))
    has_seeds = any(row["seeds"] > 1 for row in rows)
    head = "difference" + "".join(f"{name:>12}" for name in names)
    head += f"{'score over seeds':>18}" * has_seeds
    blocks: dict[str, list[tuple[str, str]]] = {}
    for metric, block in _by_metric(rows):
        blocks[metric] = [("", head)]
        for row in block:
            pair = (metric, row["method"])
            own = {t["test"]: t for t in tests if (t["metric"], t["against"]) == pair}
            if not own and not has_seeds:
                continue
            difference = f"{next(iter(own.values()))['difference']:+.3f}" if own else ""
            cells = f"{difference:>10}"
            for name in names:
                cells += f"{format_p(own[name]['p_corrected']) if name in own else '':>12}"
            interval = format_interval(row.get("seeds_low"), row.get("seeds_high")) or "–"
            blocks[metric].append((row["method"], cells + f"{interval:>18}" * has_seeds))
    return _aligned(blocks, words)


def tests_heading(tests: Sequence[_Row]) -> str:
    r"""Which way the differences go, and what p was corrected for.

    >>> test = {"method": "OJ", "repeats": 10, "repeated": "splits", "correction": "bonferroni x 3"}
    >>> tests_heading([test])
    'OJ minus each other, paired over 10 splits.\np: Bonferroni-corrected for 3 comparisons.'
    """
    first = tests[0]
    over = f"{first['repeats']} {first['repeated']}"
    how = name_correction(first["correction"])
    return f"{first['method']} minus each other, paired over {over}.\np: {how}."


def markdown_table(rows: Sequence[dict[str, Any]], words: _Words = MEASURES) -> str:
    """Tables for a text such as a README, one per metric."""
    parts = []
    for metric, block in _by_metric(rows):
        head, body = score_cells(block)
        lines = [f"| {' | '.join(map(_markdown, cells))} |" for cells in (head, *body)]
        lines.insert(1, "|" + " --- |" * len(head))
        for note in (*about_p(block), *_marks(block)):
            lines += ["", _markdown(note)]
        title = f"**{_markdown(metric_name(metric, words))}**"
        parts.append("\n".join([title, "", *lines]))
    return "\n\n".join(parts)


def latex_table(rows: Sequence[dict[str, Any]], words: _Words = MEASURES) -> str:
    """Tables for an article that loads booktabs, one per metric."""
    parts = []
    for metric, block in _by_metric(rows):
        repeats = "; ".join(dict.fromkeys(format_repeats(row) for row in block))
        caption = f"{metric_name(metric, words)}: mean ± s.d., repeated: {repeats}."
        caption = " ".join([caption, *about_p(block), *_marks(block)])
        head, body = score_cells(block)
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption.translate(_LATEX)}}}",
            rf"\begin{{tabular}}{{{'l' * len(head)}}}",
            r"\toprule",
            rf"{' & '.join(map(_latex, head))} \\",
            r"\midrule",
            *(rf"{' & '.join(map(_latex, cells))} \\" for cells in body),
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


def _csv(columns: list[str], rows: Sequence[_Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(without_nan(list(rows)))
    return text.getvalue().removesuffix("\n")


def write_tables(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    tests: Sequence[_Row] = (),
    words: _Words = MEASURES,
) -> None:
    """The rows as results.md and results.csv, tests as tests.csv."""
    texts = {"results.md": markdown_table(rows, words), "results.csv": csv_table(rows)}
    if tests:
        texts["tests.csv"] = _csv(list(tests[0]), tests)
    for name, text in texts.items():
        write_atomically(folder / name, f"{text}\n".encode())


def _marks(rows: Sequence[_Row]) -> list[str]:
    """That scores come from something cut down travels with them."""
    return list(dict.fromkeys(row["cut_down"] for row in rows if row.get("cut_down")))


def _number(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, form)


def _by_metric(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for metric, block in itertools.groupby(ordered(rows), lambda row: row["metric"]):
        yield metric, list(block)


def _figures(row: _Row) -> str:
    """A row of the text table, but for the method's name."""
    text = f"{format_value(row):<14} {format_repeats(row)}"
    paper, p = format_paper(row), format_p(row.get("p_corrected"))
    text += f"  paper {paper}" if paper else ""
    return text + (f"  p {p}{' *' if isinstance(p, Bold) else ''}" if p else "")


def _aligned(blocks: Mapping[str, Sequence[tuple[str, str]]], words: _Words) -> str:
    """Names and texts in two columns; a name too long for its column has a line of its own."""
    pairs = [pair for block in blocks.values() for pair in block]
    room = _WIDTH - 4 - max((len(text) for _, text in pairs), default=0)
    width = max([10, *(len(name) + 1 for name, _ in pairs if len(name) <= room)])
    lines = []
    for metric, block in blocks.items():
        lines += ["", metric_name(metric, words)]
        for name, text in block:
            if len(name) >= width:
                lines += textwrap.wrap(name, _WIDTH, initial_indent="  ", subsequent_indent="  ")
                name = ""
            lines.append(f"  {name:<{width}} {text}".rstrip())
    return "\n".join(lines[1:])


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*_<|\[\]])", r"\\\1", text or "–").replace("\n", " ")
    return f"**{escaped}**" if isinstance(text, Bold) else escaped


def _latex(text: str) -> str:
    escaped = (text or "–").translate(_LATEX)
    return rf"\textbf{{{escaped}}}" if isinstance(text, Bold) else escaped
