"""The door to the folder of CUDA code, and that everything works without that folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import orbitset
from orbitset import dispatch
from orbitset.dispatch import accelerated, disabled, fast_steps

TESTS = Path(__file__).parent


class _OnGpu(torch.Tensor):
    is_cuda = True


@pytest.fixture
def room(monkeypatch):
    """A table with one implementation, which serves positive numbers."""
    serves = lambda tensor, factor=1: bool((tensor > 0).all())  # noqa: E731
    table = {"double": (serves, lambda tensor, factor=1: "fast")}
    room = SimpleNamespace(IMPLEMENTATIONS=table, fast_steps=lambda *_, **__: ("steps", "word"))
    monkeypatch.setattr(dispatch, "_room", lambda: room)
    return room


@accelerated("double")
def _double(tensor, factor=1):
    return "plain"


def test_on_a_gpu_the_implementation_is_called_if_it_serves(room):
    on_gpu = torch.ones(2).as_subclass(_OnGpu)
    assert _double(on_gpu) == _double(on_gpu, factor=2) == _double(tensor=on_gpu) == "fast"
    assert _double(-on_gpu) == "plain"
    assert _double(torch.ones(2)) == "plain"


def test_tensors_are_found_in_lists_and_mappings(room):
    on_gpu = torch.ones(2).as_subclass(_OnGpu)
    assert dispatch._is_on_gpu(([{"params": [on_gpu], "lr": 0.1}], 1e-8))
    assert not dispatch._is_on_gpu(([{"params": [torch.ones(2)]}], on_gpu))
    assert not dispatch._is_on_gpu((1, "two", []))


def test_inside_disabled_only_plain_code_runs(room):
    on_gpu = torch.ones(2).as_subclass(_OnGpu)
    with disabled():
        with disabled():
            pass
        assert _double(on_gpu) == "plain"
    assert _double(on_gpu) == "fast"


def test_without_the_folder_plain_code_runs(monkeypatch):
    monkeypatch.setattr(dispatch, "ROOM", "orbitset.missing.table")
    dispatch._room.cache_clear()
    try:
        assert _double(torch.ones(2).as_subclass(_OnGpu)) == "plain"
    finally:
        dispatch._room.cache_clear()


def test_an_error_inside_the_folder_is_not_taken_for_its_absence(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("no numpy", name="numpy")

    monkeypatch.setattr(dispatch.importlib, "import_module", broken)
    dispatch._room.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="no numpy"):
        dispatch._room()
    dispatch._room.cache_clear()


def test_every_name_has_an_implementation():
    from orbitset.cuda.table import IMPLEMENTATIONS

    source = Path(orbitset.__file__).parent
    marked = [path.read_text().split('@accelerated("')[1:] for path in source.rglob("*.py")]
    names = {part.split('"')[0] for parts in marked for part in parts} - {"name"}
    assert names == set(IMPLEMENTATIONS)


def test_a_cpu_has_no_faster_steps(room):
    steps = SimpleNamespace(network=torch.nn.Linear(1, 1))
    assert fast_steps(steps, required=False, note=print) == (None, "it needs an NVIDIA GPU")


_WITHOUT_CUDA = """
import sys, pytest, orbitset, importlib.util
assert orbitset.__file__.startswith(sys.argv[1]), orbitset.__file__
assert importlib.util.find_spec("orbitset.cuda") is None
sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def test_losses_encoders_and_training_work_without_the_cuda_folder(tmp_path):
    """On a copy of the package from which that folder is deleted."""
    copy = tmp_path / "orbitset"
    shutil.copytree(
        Path(orbitset.__file__).parent, copy, ignore=shutil.ignore_patterns("cuda", "__pycache__")
    )
    selection = [
        "losses/test_joint.py", "losses/test_methods.py", "losses/test_exemplar.py",
        "training/test_steps.py", "training/test_optimizer.py", "training/test_monitors.py",
        "training/test_fit.py::test_same_seed_gives_identical_metrics", "encoders/test_rectifying.py",
        "encoders/test_spatial_transformer.py", "orbits/test_affine.py",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_CUDA, tmp_path, *(TESTS / name for name in selection)],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
