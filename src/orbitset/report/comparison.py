"""Tables, tests and curves of a comparison as files."""

import json
from pathlib import Path

from orbitset.errors import RunError
from orbitset.files import remove_parts, write_atomically
from orbitset.report.blocks import picture
from orbitset.report.figures import accuracy_curves
from orbitset.report.tables import metric_name, write_tables
from orbitset.results.comparison import Compared
from orbitset.run_folder import without_nan

_WRITTEN = {"results.md", "results.csv", "tests.json"}


def write_comparison(out: Path, compared: Compared) -> None:
    """Write tables, tests.json and curves into a folder that is free for them."""
    _check_out(out)
    images = {}
    for measure in [name for name in compared.curves[0][1][0] if name != "epoch"]:
        figure = accuracy_curves(
            compared.curves, None, measure, metric_name(measure, compared.words)
        )
        name = "curves.png" if measure == "accuracy" else f"curves-{measure}.png"
        images[name] = picture(figure, compared.rows[0].cut_down)
    content = without_nan(
        {name: getattr(compared, name) for name in ("tests", "about_tests", "differences")}
    )
    text = json.dumps(content, indent=2, allow_nan=False)
    # first what marks the folder as ours, lest a kill leave one that is refused ever after
    write_atomically(out / "tests.json", f"{text}\n".encode())
    remove_parts(out)
    write_tables(out, [row.to_json() for row in compared.rows], words=compared.words)
    for name, image in images.items():
        write_atomically(out / name, image)
    for path in out.glob("curves*.png"):
        if path.name not in images:  # of an earlier comparison
            path.unlink()


def _check_out(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier comparison; touches nothing."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; choose another folder with --out", is_usage=True)
    names = {path.name for path in out.glob("[!.]*") if not path.match("curves*.png")}
    if any(out.glob("[!.]*")) and not ("tests.json" in names and names <= _WRITTEN):
        raise RunError(
            f"{out} is not empty and was not written by compare; choose another folder with --out",
            is_usage=True,
        )
