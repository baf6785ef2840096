"""Benchmarks are run by hand; what they need of the package must not change unnoticed meanwhile."""

import importlib
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture
def benchmark_named(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_can_be_imported(benchmark_named, name):
    assert benchmark_named(name).__doc__


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "record"])
def test_every_benchmark_says_what_it_takes(monkeypatch, capsys, name):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert not ended.value.code and "usage" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["OJ", "OT", "OE", "EX", "ST", "AE"])
def test_our_part_of_the_training_benchmark_takes_a_step(benchmark_named, method):
    step, how = benchmark_named("training").ours(method, "auto", 16, 20, "cpu")
    assert step() == 16 and how == "reference"


def test_the_ways_to_adapt_a_transformer_are_measured(benchmark_named, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pixels = np.random.default_rng(0).integers(0, 255, (22 * 3, 28, 28, 3), np.uint8)
    for name in ("fruits360", "grocery_store"):
        folder = tmp_path / name
        folder.mkdir()
        rows = ["path,thing"] + [f"{at}.png,thing{at // 3}" for at in range(len(pixels))]
        (folder / "manifest.csv").write_text("\n".join(rows))
        for at, image in enumerate(pixels):
            Image.fromarray(image).save(folder / f"{at}.png")
    adaptation = benchmark_named("adaptation")
    out = tmp_path / "out.json"
    command = ["adaptation.py", "--smoke", "--device", "cpu", "--data", tmp_path, "--out", out]
    monkeypatch.setenv("ORBITSET_COMMIT", "")
    monkeypatch.setattr(sys, "argv", [*map(str, command), "--commit", "abc"])
    adaptation.main()
    written = json.loads(out.read_text())
    assert (written["commit"], written["is_smoke"]) == ("abc", True)
    rows = {row["way"]: row for row in written["rows"]}
    assert list(rows) == list(adaptation.WAYS)
    assert len({row["frozen_auc_test"] for row in rows.values()}) == 1
    same = [rows[way]["trained_auc_test"] for way in ("all", "all, recomputed")]
    assert same[0] == same[1]
