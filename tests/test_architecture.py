"""The arrows between packages, the sizes of functions, and the mirror of tests and source."""

import ast
import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest

import orbitset

SOURCE = Path(orbitset.__file__).parent
TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "ARCHITECTURE.md").read_text()

DATA = "datasets"
CUDA, SEAM = "cuda", "dispatch"
"""The folder of CUDA code, and the module through which others reach it. The folder lies above what it makes
fast; the module looks for it when a tensor on a GPU asks for it, and may not find it."""

FOUNDATION = {"errors", "seeds", "files", "limits", "config", "precision", "memory", "outside"}
FOUNDATION |= {"pages"}
"""Modules that every part may import"""
ARROWS = {
    "errors": set(),
    "seeds": set(),
    "files": set(),
    "pages": set(),
    "limits": {"errors", "files"},
    "config": {"errors"},
    "precision": {"errors"},
    "memory": set(),
    "outside": {"errors"},
    "run_folder": {"errors", "files", "limits", "outside"},
    SEAM: set(),
    DATA: FOUNDATION,
    "orbits": FOUNDATION | {SEAM},
    "encoders": FOUNDATION,
    "losses": FOUNDATION | {SEAM},
    "training": FOUNDATION | {SEAM, "run_folder", "losses"},
    CUDA: FOUNDATION | {SEAM, "encoders", "losses", "training"},
    "evaluation": FOUNDATION,
    "search": FOUNDATION,
    "models": FOUNDATION | {DATA, "encoders"},
    "protocols": FOUNDATION | {DATA, "orbits", "encoders", "losses", "evaluation"},
    "recipes": FOUNDATION
    | {"run_folder", DATA, "orbits", "encoders", "losses", "training", "models", "protocols"},
    "results": FOUNDATION | {"run_folder", "evaluation", "protocols", "recipes"},
    "report": FOUNDATION | {"run_folder", "protocols", "recipes", "results"},
    "runs": FOUNDATION
    | {"run_folder", DATA, "orbits", "encoders", "losses", "training", "evaluation", "models"}
    | {"protocols", "recipes", "results"},
    "uses": FOUNDATION | {DATA, "models", "search"},
    "estimator": FOUNDATION | {"orbits", "encoders", "training", "recipes"},
    "cli": FOUNDATION
    | {"run_folder", DATA, "training", "search", "report", "models", "protocols", "recipes"}
    | {"results", "runs", "uses"},
    "__main__": {"cli"},
    "__init__": {"outside", "estimator", "models"},
}
"""What each part may import of the package, from the bottom to the top"""

LONG_FUNCTIONS: set[str] = set()
"""Functions with more than 60 lines; none may be added"""
WIDE_FUNCTIONS: set[str] = set()
"""Public functions with more than 10 parameters; none may be added"""
MOST_LINES, MOST_PARAMETERS = 60, 10


@pytest.mark.parametrize(
    "package",
    ["losses", "encoders", "orbits", "evaluation", "models", "protocols", "search", "uses"],
)
def test_parameters_of_public_names_have_no_shape_letters(package):
    module = importlib.import_module(f"orbitset.{package}")
    public = [getattr(module, name) for name in module.__all__]
    methods = [
        method
        for kind in public
        if inspect.isclass(kind)
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_"))
    ]
    functions = [inspect.unwrap(function) for function in public if callable(function)]
    lettered = {
        f"{function.__qualname__}({name})"
        for function in [*filter(inspect.isfunction, functions), *methods]
        for name in inspect.signature(function).parameters
        if re.search(r"_[A-Z0-9]+$", name)
    }
    assert not lettered


def _part(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path):
    """The parts that a file imports, also those that a function imports when it is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import, which this test cannot follow"
            names = [node.module]
            if node.module == "orbitset":
                names = [f"orbitset.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if re.fullmatch(r"orbitset(\.\w+)+", node.value) else []
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "orbitset" and rest.partition(".")[0] in ARROWS:
                yield rest.partition(".")[0]


@functools.cache
def _arrows():
    """For each part what it imports, and in which file."""
    arrows = {part: {} for part in ARROWS}
    for path in SOURCE.rglob("*.py"):
        own = {_part(path), CUDA} if _part(path) == SEAM else {_part(path)}
        for name in set(_imports(path)) - own:
            arrows[_part(path)].setdefault(name, path.relative_to(SOURCE).as_posix())
    return arrows


def test_every_part_has_its_arrows_written_down():
    parts = {_part(path) for path in SOURCE.rglob("*.py")}
    assert parts == set(ARROWS)


@pytest.mark.parametrize("part", ARROWS)
def test_imports_are_those_that_are_written_down(part):
    """One that is not needed any more is taken off the list."""
    imported = _arrows()[part]
    wrong = {name: path for name, path in imported.items() if name not in ARROWS[part]}
    assert not wrong, f"{part} must not import {wrong}"
    unused = ARROWS[part] - FOUNDATION - {part} - set(imported)
    assert not unused, f"{part} no longer imports {unused}"


def test_imports_point_down():
    order = list(ARROWS)
    for part, imported in ARROWS.items():
        above = imported - {part} - set(order[: order.index(part)])
        assert not above, f"{above} lies above {part}"


def test_a_forbidden_import_would_be_noticed(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("def f():\n    from orbitset.cli import main\n    import orbitset.uses.onnx\n")
    assert set(_imports(path)) == {"cli", "uses"}
    path.write_text("from orbitset import models\nload('orbitset.report.page')\n")
    assert set(_imports(path)) == {"models", "report"}


def test_the_table_of_the_document_has_the_same_arrows():
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|[^|]*\|([^|]*)\|$", PAGE, re.M)
    written = {part: set(re.findall(r"`(\w+)`", cell)) for part, cell in rows}
    shown = [part for part in ARROWS if part not in FOUNDATION and not part.startswith("__")]
    assert list(written) == shown
    for part in shown:
        arrows = [name for name in ARROWS if name in ARROWS[part] - FOUNDATION - {part}]
        cell = ", ".join(f"`{name}`" for name in arrows) or "nothing else"
        assert written[part] == set(arrows), f"the cell of {part} should be: {cell}"


def test_the_document_names_files_that_exist():
    section = PAGE.split("## Where is what")[1].split("\n## ")[0]
    wishes = re.findall(r"^\| (?!wish|---)[^|]*\|[^|]*\|$", section, re.M)
    assert len(wishes) >= 12
    for wish in wishes:
        assert re.search(r"`[\w/.-]+`", wish), f"no file is named: {wish}"
    for name in re.findall(r"`([\w/-]+(?:\.py|\.md|/))`", PAGE):
        places = [SOURCE / name, TESTS.parent / name]
        assert any(place.exists() for place in places), f"ARCHITECTURE.md names {name}"
    assert len(PAGE.splitlines()) <= 200


def _functions():
    """Of every function its name, its lines beside signature and docstring, its parameters, whether it is
    public."""

    def inside(node, names):
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function:
                yield [*names, child.name], child, isinstance(node, ast.ClassDef)
            named = is_function or isinstance(child, ast.ClassDef)
            yield from inside(child, [*names, child.name] if named else names)

    for path in SOURCE.rglob("*.py"):
        for names, function, is_method in inside(ast.parse(path.read_text()), []):
            has_docstring = ast.get_docstring(function, clean=False) is not None
            body = function.body[has_docstring:]
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            given = function.args
            parameters = (
                len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - is_method
            )
            is_public = not any(re.match(r"_(?!_init__)", name) for name in names)
            yield (
                f"{path.relative_to(SOURCE).as_posix()} {'.'.join(names)}",
                lines,
                parameters,
                is_public,
            )


def test_no_function_is_longer_than_a_screen():
    assert {name for name, lines, *_ in _functions() if lines > MOST_LINES} == LONG_FUNCTIONS


def test_no_function_has_many_parameters():
    wide = {
        name
        for name, _, parameters, is_public in _functions()
        if is_public and parameters > MOST_PARAMETERS
        and not name.startswith(("cli/", "estimator.py OrbitEncoder.__init__"))
    }  # fmt: skip
    assert wide == WIDE_FUNCTIONS


def test_tests_mirror_the_source():
    tests = {p.relative_to(TESTS).as_posix() for p in TESTS.rglob("test_*.py")}
    sources = {p.relative_to(SOURCE) for p in SOURCE.rglob("*.py")}
    expected = {p.with_name(f"test_{p.name}").as_posix() for p in sources}
    own = {
        "test_architecture.py",
        "test_benchmarks.py",
        "test_documentation.py",
        "test_doors.py",
        "test_emulated_kernels.py",
        "test_examples.py",
        "test_gpu.py",
        "test_gpu_kernels.py",
        "test_gpu_losses.py",
        "test_gpu_steps.py",
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


_OF_CUDA = (
    r"\bkernels?\b|CUDA ?(graph|stream|event)|cuda\.(\w*graph|\w*stream|event)|record_stream|wait_stream"
    r"|\breplay|is_replayable|nvrtc|second stream"
)


def test_only_the_folder_and_its_door_speak_of_streams_kernels_and_replay():
    """Names, comments and docstrings too. To put a tensor on a GPU is everybody's."""
    for path in SOURCE.rglob("*.py"):
        if _part(path) not in (CUDA, SEAM):
            said = re.search(_OF_CUDA, path.read_text(), re.IGNORECASE)
            assert said is None, f"{path.relative_to(SOURCE)} says {said.group()!r}"


def test_such_words_would_be_noticed():
    for line in ("torch.cuda.Stream()", "CUDAGraph()", "# replayed", "torch.cuda.current_stream()"):
        assert re.search(_OF_CUDA, line, re.IGNORECASE), line
    for line in ("seeds.stream('batch')", "is_streamed", "torch.cuda.is_available()"):
        assert not re.search(_OF_CUDA, line, re.IGNORECASE), line
