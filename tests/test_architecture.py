"""The arrows between packages, and the mirror of tests and source."""

import ast
import re
from pathlib import Path

import pytest

import orbitset

SOURCE = Path(orbitset.__file__).parent
TESTS = Path(__file__).parent
FOUNDATION = {"errors", "seeds", "files", "precision", "kernels"}
ALLOWED = {
    "precision": {"errors"},
    "kernels": {"files", "precision"},
    "errors": set(),
    "seeds": set(),
    "config": {"errors"},
    "files": set(),
    "runs": {"errors", "files"},
    "orbits": FOUNDATION,
    "datasets": FOUNDATION,
    "encoders": FOUNDATION,
    "losses": FOUNDATION,
    "training": FOUNDATION | {"runs"},
    "evaluation": FOUNDATION,
    "report": FOUNDATION | {"runs"},
    "models": FOUNDATION | {"config", "datasets", "encoders"},
    "search": FOUNDATION,
    "estimator": FOUNDATION | {"encoders", "losses", "orbits", "training"},
    "uses": FOUNDATION | {"datasets", "models", "search"},
}
"""What each part may import of the package; experiments and the command line compose everything."""


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orbitset"):
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]


def _files(part):
    folder = SOURCE / part
    return list(folder.glob("*.py")) if folder.is_dir() else [SOURCE / f"{part}.py"]


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part):
    for path in _files(part):
        wrong = set(_imports(path)) - ALLOWED[part] - {part}
        assert not wrong, f"{path.relative_to(SOURCE)} imports {wrong}"


def test_every_part_has_its_arrows_written_down():
    found = {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found - {"__init__", "__main__", "cli", "experiments", "__pycache__"} == set(ALLOWED)


def test_tests_mirror_the_source():
    tests = {p.relative_to(TESTS).as_posix() for p in TESTS.rglob("test_*.py")}
    sources = {p.relative_to(SOURCE) for p in SOURCE.rglob("*.py")}
    expected = {p.with_name(f"test_{p.name}").as_posix() for p in sources}
    own = {
        "test_architecture.py",
        "test_benchmarks.py",
        "test_emulated_kernels.py",
        "test_gpu.py",
        "test_gpu_kernels.py",
        "test_gpu_losses.py",
        "test_gpu_steps.py",
        "test_documentation.py",
        "test_examples.py",
        "test_records.py",
    }
    assert tests - own <= expected, "a test file without a source file of its name"


def test_no_file_is_longer_than_400_lines():
    long = {p.name for p in SOURCE.rglob("*.py") if len(p.read_text().splitlines()) > 400}
    assert not long


def test_each_package_lists_its_public_names_sorted():
    for path in SOURCE.glob("*/__init__.py"):
        listed = re.findall(r'^    "(\w+)",?$', path.read_text(), re.M)
        assert listed == sorted(listed), path
