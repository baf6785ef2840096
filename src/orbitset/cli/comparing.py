"""The command that sets finished runs side by side."""

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitset.cli.options import Json, say
from orbitset.errors import ConfigError, check_choice

if TYPE_CHECKING:
    from orbitset.results.comparison import Compared

_FORMATS = ("text", "markdown", "latex", "csv")


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Folders of finished runs; a study or demo stands for all its runs."
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="The run that every other one is tested against. Default: the first.",
        ),
    ] = None,
    correction: Annotated[str, typer.Option(help="holm, bonferroni or none.")] = "bonferroni",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for tables, tests and curves: new, empty or of an earlier comparison.",
        ),
    ] = None,
    table_format: Annotated[
        str, typer.Option("--format", help="text, or only the table: markdown, latex or csv.")
    ] = "text",
    as_json: Json = False,
) -> None:
    """Compare finished runs: scores, paired tests, and the settings that differ.

    Runs that differ in the seed alone are taken together. Tests are paired over the splits of computed
    orbits, and over the seeds of observed ones.

    Example: orbitset compare runs/OJ runs/OE --out runs/OJ-OE
    """
    from orbitset.report import tables
    from orbitset.report.comparison import write_comparison
    from orbitset.results.comparison import compare as compare_runs
    from orbitset.run_folder import Run, without_nan

    check_choice("--format", table_format, _FORMATS)
    if as_json and table_format != "text":
        raise ConfigError("--json and --format contradict each other; give one of them")
    compared = compare_runs(
        [Run(folder) for folder in folders],
        against=against,
        correction=correction,  # type: ignore[arg-type]  # checked there
    )
    if out is not None:
        write_comparison(out, compared)
    rows = [row.to_json() for row in compared.rows]
    if as_json:
        named = ("tests", "about_tests", "differences", "alone")
        content = {"rows": rows} | {name: getattr(compared, name) for name in named}
        print(json.dumps(without_nan(content), allow_nan=False))
    elif table_format == "markdown":
        print(tables.markdown_table(rows, compared.words))
    elif table_format == "latex":
        print(tables.latex_table(rows, compared.words))
    elif table_format == "csv":
        print(tables.csv_table(rows))
    else:
        print(_text(compared))
    if out is not None:
        say(f"\ntables, tests and curves: {out}")


def _text(compared: "Compared") -> str:
    from orbitset.report.tables import tests_heading, text_table, text_tests

    rows = [row.to_json() for row in compared.rows]
    parts = [text_table(rows, compared.words)]
    if compared.tests:
        tests = text_tests(compared.tests, rows, compared.words)
        parts += [tests_heading(compared.tests), tests]
    differences = ["settings that differ", *_differences(compared.differences)]
    for measure, labels in sorted(compared.alone.items()):
        only = f"only {', '.join(labels)} was scored by it"
        differences.append(f"{measure} is not compared: {only}")
    return "\n\n".join([*parts, compared.about_tests, "\n".join(differences)])


def _differences(differences: dict[str, dict[str, Any]]) -> list[str]:
    """For each setting its values, each with the groups that have it."""
    lines = []
    for name, values in differences.items():
        lines.append(f"  {name}")
        for value in dict.fromkeys(map(str, values.values())):
            labels = "; ".join(label for label, its in values.items() if str(its) == value)
            text = f"{value}: {labels}"
            lines += textwrap.wrap(text, 80, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return lines
