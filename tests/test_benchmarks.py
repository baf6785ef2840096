"""Benchmarks are run by hand; what they need of the package must not change unnoticed meanwhile."""

import importlib
import runpy
import sys
from pathlib import Path

import pytest

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
