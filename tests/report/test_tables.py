import csv
import io
import re

import pytest

from orbitset.report.tables import (
    Bold,
    compared_with_baselines,
    csv_table,
    format_p,
    format_value,
    latex_table,
    markdown_table,
    ordered,
    score_cells,
    text_table,
    text_tests,
    write_tables,
)

NAN = float("nan")


def _row(method, metric="accuracy", **more):
    base = {"mean": 0.5, "sd": 0.1, "n": 100, "repeated": "draws", "seeds": 1, "paper": None}
    return {"method": method, "metric": metric, **base, "p_corrected": None, **more}


PAPERS = [
    _row("OJ", paper=0.66, n=10, repeated="splits", seeds=3, low=0.4, high=0.6),
    _row("OJ, as printed", p_corrected=2.04e-9, n=10, repeated="splits", seeds=3),
    _row("OJ", "auc"),
]


def _cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.5, "0.5"),
        (0.0123456, "0.012"),
        (0.000123, "0.00012"),
        (1.04e-5, "1e-05"),
        (1e-6, "1e-06"),
        (9.99e-7, "< 1e-6"),
        (2e-9, "< 1e-6"),
        (0.0, "< 1e-6"),
        (1.0, "1"),
        (None, ""),
        (float("nan"), ""),
    ],
)
def test_p_is_printed_with_two_digits_and_no_smaller_than_a_millionth(p, text):
    assert format_p(p) == text


def test_p_below_five_percent_is_bold_in_every_table():
    tested = {"test": "corrected-t", "correction": "bonferroni x 3"}
    rows = [
        _row("OJ"),
        _row("OE", p_corrected=2e-9, **tested),
        _row("AE", p_corrected=0.05, **tested),
    ]
    about = "p: corrected resampled t-test, Bonferroni-corrected for 3 comparisons;"
    text = text_table(rows)
    assert "p < 1e-6 *\n" in text and "p 0.05\n" in text
    assert f"{about} p < 0.05 is marked *." in text.replace("\n", " ")
    for table, bold, plain in (
        (markdown_table(rows), r"| **\< 1e-6** |", "| 0.05 |"),
        (latex_table(rows), r"\textbf{$<$ 1e-6}", "& 0.05 &"),
    ):
        assert bold in table and plain in table and about in table
    cells = score_cells(rows)[1]
    assert [isinstance(line[2], Bold) for line in cells] == [False, True, False]


def test_baselines_come_first_within_each_metric():
    rows = [_row("OJ"), _row("OJ", "auc"), _row("untrained"), _row("pixels")]
    assert [r["method"] for r in ordered(rows)] == ["pixels", "untrained", "OJ", "OJ"]


def test_codes_no_better_than_raw_pixels_are_named_by_measure():
    rows = [
        *(_row("pixels", metric, mean=0.5) for metric in ("auc", "top1", "accuracy_validation")),
        _row("untrained", "auc", mean=0.1),
        _row("OJ", "auc", mean=0.6),
        _row("OJ", "top1", mean=0.5),
        _row("OJ", "accuracy_validation", mean=0.4321),
        _row("OJ", "invariance", mean=0.0),
    ]
    said = compared_with_baselines(rows, "54 test images of 9 orbits")
    assert said is not None and "0.100" not in said and "invariance" not in said
    assert "raw pixels are as good in top-1 retrieval (OJ 0.500, raw pixels 0.500)" in said
    better = "one-shot accuracy, on validation images (OJ 0.432, raw pixels 0.500)"
    assert f"raw pixels are better in {better}" in said
    assert "OJ is better in verification AUC (OJ 0.600, raw pixels 0.500)" in said
    assert said.endswith("; on 54 test images of 9 orbits")


def test_codes_no_better_than_the_frozen_network_are_named():
    rows = [_row("pixels", mean=0.2), _row("frozen", mean=0.7), _row("IN", mean=0.6)]
    said = compared_with_baselines(rows)
    assert (
        said == "the frozen network is better in one-shot accuracy (IN 0.600, frozen network 0.700)"
    )
    assert compared_with_baselines([*rows[:2], _row("IN", mean=0.71)]) is None


def test_better_codes_and_figures_that_are_not_known_are_not_named():
    assert compared_with_baselines([_row("pixels"), _row("OJ", mean=0.6)]) is None
    assert compared_with_baselines([_row("pixels"), _row("OJ", mean=NAN)]) is None
    assert compared_with_baselines([_row("pixels", mean=None), _row("OJ", mean=0.1)]) is None
    assert compared_with_baselines([_row("OJ", mean=0.1)]) is None


def test_text_table_says_what_was_repeated_and_fits_a_narrow_terminal():
    table = text_table([_row("pixels"), _row("OJ", paper=0.66, seeds=3)])
    assert "100 draws, 3 seeds" in table
    assert "paper 0.66" in table
    assert max(map(len, table.splitlines())) <= 60


def test_text_table_of_short_names_has_the_columns_it_always_had():
    lines = text_table([_row("pixels"), _row("OJ", seeds=3, p_corrected=0.0333)]).splitlines()
    assert lines == [
        "one-shot accuracy",
        "  pixels     0.500 ± 0.100  100 draws, 1 seed",
        "  OJ         0.500 ± 0.100  100 draws, 3 seeds  p 0.033 *",
    ]


def test_text_table_makes_room_for_long_names_within_80_columns():
    full = {"n": 100, "seeds": 10, "paper": 0.66, "p_corrected": 2.04e-9}
    long = "OJ, " + ", ".join(f"loss.discriminate_weight={i}" for i in range(5))
    table = text_table([_row("OJ", **full), _row("OJ, as printed", **full), _row(long, **full)])
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    figures = [line for line in lines if "±" in line]
    assert len({line.index("0.500") for line in figures}) == 1
    assert all(line.endswith("10 seeds  paper 0.66  p < 1e-6 *") for line in figures)
    assert re.sub(r"\s+", " ", table).count(long) == 1


@pytest.mark.parametrize("length", range(8, 30))
def test_names_of_any_length_stand_apart_from_the_figures(length):
    full = {"n": 100, "seeds": 10, "paper": 0.66, "p_corrected": 2.04e-9}
    name = "x" * length
    lines = text_table([_row("OJ"), _row(name, **full)]).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2] == f"  {name}" or f"  {name}  " in f"{lines[2]:<80}"
    assert len(lines) == (3 if length <= 18 else 4)


def test_what_is_not_known_is_a_dash():
    assert format_value({"mean": NAN, "sd": 0.1}) == format_value({"mean": None, "sd": None}) == "–"
    assert format_value({"mean": 0.5, "sd": NAN}) == "0.500"
    rows = [_row("OJ", mean=None, sd=None, p_corrected=NAN), _row("OE", paper=0.49, p_corrected=1)]
    assert "  OJ         –              100 draws, 1 seed\n" in text_table(rows)
    assert _cells(markdown_table(rows).splitlines()[4])[2:4] == ["–", "–"]
    assert csv_table(rows).splitlines()[1] == "OJ,accuracy,,,100,draws,1,,"


def test_markdown_table_shows_the_papers_figure_beside_ours_where_there_is_one():
    accuracy, auc = markdown_table(PAPERS).split("\n\n**verification AUC**\n\n")
    lines = accuracy.splitlines()
    assert lines[0] == "**one-shot accuracy**"
    assert _cells(lines[2]) == [
        "method", "mean ± s.d.", "2.5 – 97.5 %", "paper", "p", "repeated"
    ]  # fmt: skip
    assert _cells(lines[4]) == [
        "OJ", "0.500 ± 0.100", "0.400 – 0.600", "0.66", "–", "10 splits, 3 seeds"
    ]  # fmt: skip
    assert _cells(lines[5])[::4] == ["OJ, as printed", r"**\< 1e-6**"]
    assert _cells(auc.splitlines()[0]) == ["method", "mean ± s.d.", "repeated"]


def test_markdown_names_cannot_break_the_table():
    line = markdown_table([_row("a|b *c* <i>\nd_e")]).splitlines()[4]
    assert line.startswith(r"| a\|b \*c\* \<i> d\_e | 0.500")


def test_latex_table_is_booktabs_with_a_caption_of_what_was_repeated():
    table = latex_table([_row("pixels"), *PAPERS])
    assert r"\caption{one-shot accuracy: mean $\pm$ s.d., repeated: 100 draws, 1 seed; " in table
    assert "10 splits, 3 seeds.}" in table
    assert r"OJ & 0.500 $\pm$ 0.100 & 0.400 -- 0.600 & 0.66 & -- & 10 splits, 3 seeds \\" in table
    assert table.count(r"\begin{tabular}{llllll}") == table.count(r"\begin{tabular}{lll}") == 1
    for rule in ("toprule", "midrule", "bottomrule"):
        assert table.count(f"\\{rule}") == 2


def test_latex_names_are_escaped():
    table = latex_table([_row("[a_b] & 50 % of {c} \\ d^2 #1 $x$ ~", "invariance")])
    escaped = (
        r"{[}a\_b] \& 50 \% of \{c\} \textbackslash{} d\textasciicircum{}2 "
        r"\#1 \$x\$ \textasciitilde{} & 0.500"
    )
    assert escaped in table
    assert r"invariance at $\varepsilon$ = $\alpha$" in table
    assert table.isascii()


def test_csv_table_has_every_key_of_every_row():
    found = list(csv.DictReader(io.StringIO(csv_table(PAPERS))))
    assert [row["method"] for row in found] == ["OJ", "OJ, as printed", "OJ"]
    assert found[0]["paper"] == "0.66" and found[0]["low"] == "0.4" and found[1]["low"] == ""
    assert float(found[1]["p_corrected"]) == 2.04e-9
    assert {(row["n"], row["repeated"], row["seeds"]) for row in found} == {
        ("10", "splits", "3"),
        ("100", "draws", "1"),
    }


def test_written_tables_are_what_the_functions_give(tmp_path):
    rows = [*PAPERS, _row("AE", sd=NAN)]
    write_tables(tmp_path / "new", rows)
    texts = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert texts.pop("results.md") == markdown_table(rows) + "\n"
    assert texts.pop("results.csv") == csv_table(rows) + "\n"
    assert not texts


def test_tables_of_nothing_are_empty():
    assert text_table([]) == markdown_table([]) == latex_table([]) == ""
    assert csv_table([]).startswith("method,metric,mean") and "\n" not in csv_table([])


def test_text_tests_show_each_tests_p_beside_the_interval_over_seeds():
    about = {"metric": "accuracy", "against": "OE, longer than others", "difference": 0.1714}
    tests = [
        {**about, "test": "paired-t", "p_corrected": 2.04e-9},
        {**about, "test": "wilcoxon", "p_corrected": 0.0333},
    ]
    rows = [_row("OJ", seeds=3, seeds_low=0.61, seeds_high=0.7), _row("OE, longer than others")]
    lines = text_tests(tests, rows).splitlines()
    assert lines[0] == "one-shot accuracy"
    assert re.split(r"  +", lines[1].strip()) == [
        "difference", "paired-t", "wilcoxon", "score over seeds"
    ]  # fmt: skip
    assert lines[2].split() == ["OJ", "0.610", "–", "0.700"]
    assert lines[-1].split()[-5:] == ["+0.171", "<", "1e-6", "0.033", "–"]
    assert max(map(len, lines)) <= 80
    alone = text_tests(tests, [{**row, "seeds": 1} for row in rows])
    assert "seeds" not in alone and "OJ" not in alone


def test_every_table_says_that_its_figures_are_cut_down():
    rows = [
        {**_row("OJ"), "cut_down": "cut down: 2 seeds"},
        {**_row("OE"), "cut_down": "cut down: 2 seeds"},
    ]
    for table in (text_table(rows), markdown_table(rows), latex_table(rows)):
        assert table.count("cut down: 2 seeds") == 1
    assert csv_table(rows).count("cut down: 2 seeds") == 2
    assert "cut down" not in text_table([_row("OJ")])


def test_the_papers_spread_and_the_interval_over_seeds_stand_beside_ours():
    row = _row("OJ", paper=0.66, paper_sd=0.027, seeds=3, seeds_low=0.61, seeds_high=0.7)
    assert "paper 0.66 ± 0.027" in text_table([row])
    _, other, ours = map(_cells, markdown_table([row, _row("pixels")]).splitlines()[3:6])
    assert ours[2:4] == ["0.66 ± 0.027", "0.610 – 0.700"]
    assert other[2:4] == ["–", "–"]


def test_tests_are_written_beside_the_table(tmp_path):
    tests = [
        {"method": "OJ", "against": "OE", "p": 0.5},
        {"method": "OJ", "against": "AE", "p": 0.25},
    ]
    write_tables(tmp_path, [_row("OJ")], tests)
    assert (tmp_path / "tests.csv").read_text() == "method,against,p\nOJ,OE,0.5\nOJ,AE,0.25\n"


def test_tables_call_a_measure_what_its_protocol_calls_it():
    rows, words = [_row("OJ", "auc"), _row("OJ", "hubness_swapped")], {"hubness": "few hubs"}
    words |= {"auc": "area under the curve"}
    tests = [{"metric": "auc", "against": "OJ", "test": "wilcoxon", "difference": 0.1}]
    tests = [{**test, "p_corrected": 0.5} for test in tests]
    for text in (
        text_table(rows, words),
        markdown_table(rows, words),
        latex_table(rows, words),
        text_tests(tests, rows, words),
    ):
        assert "area under the curve" in text and "verification" not in text
    assert "few hubs, sides swapped" in text_table(rows, words)
