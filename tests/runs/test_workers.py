"""Processes that train, die and fail."""

import multiprocessing
import signal
import threading
import time
from dataclasses import dataclass, field, replace

import processes
import pytest

from orbitset.config import with_settings
from orbitset.errors import ConfigError, RunError
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.experiment import Experiment
from orbitset.run_folder import Run
from orbitset.runs.workers import train_side_by_side

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "orbits.canvas_px=16",
    "train.epochs=0.03",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.tsne_points=0",
]


@dataclass(frozen=True)
class Job:
    config: Experiment
    run: Run


@dataclass
class Listed:
    left: list[Job]
    ended: list[Job] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def next(self):
        return self.left.pop(0) if self.left else None

    def finish(self, job, error):
        if error is not None:
            raise error
        self.ended.append(job)

    def note(self, job, message):
        self.notes.append((job.run.path.name, message))


def _job(folder, *settings):
    return Job(with_settings(affine_digits("OE"), [*SMALL, *settings]), Run(folder))


def _kill_one(folder):
    """Kill one of the processes as soon as any has trained something."""
    killed = []

    def watch():
        while not list(folder.glob("*/checkpoint/*.safetensors")):
            time.sleep(0.01)
        killed.extend(multiprocessing.active_children()[:1])
        killed[0].kill()

    threading.Thread(target=watch, daemon=True).start()
    return killed


@pytest.fixture
def at_once(monkeypatch):
    """Processes begin without importing anything."""
    monkeypatch.setattr(multiprocessing, "get_context", processes.get_context)


def test_the_death_of_a_process_is_survived(tmp_path, at_once):
    source = Listed([_job(tmp_path / "a"), _job(tmp_path / "b", "seed=1")])
    asked = list(source.left)
    killed = _kill_one(tmp_path)
    train_side_by_side(source, 2, "cpu")
    assert killed[0].exitcode == -signal.SIGKILL
    assert sorted(job.run.path for job in source.ended) == [job.run.path for job in asked]
    assert all(job.run.is_finished for job in asked)


def test_processes_that_keep_dying_end_all(tmp_path, at_once, monkeypatch):
    monkeypatch.setattr("orbitset.runs.workers._DEATHS", 1)
    _kill_one(tmp_path)
    with pytest.raises(RunError, match="died training"):
        train_side_by_side(Listed([_job(tmp_path / "a")]), 2, "cpu")
    assert multiprocessing.active_children() == []


DOUBTFUL = """
import warnings
import torch

class Doubtful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, images):
        warnings.warn("these weights are doubtful", UserWarning)
        return self.weight * images.mean((1, 2, 3)).unsqueeze(1).expand(-1, 4)
"""


def test_warnings_of_processes_reach_the_user_once_with_the_name_of_their_run(
    tmp_path, at_once, monkeypatch
):
    """The network warns, and gives one code for all images, of which orbitset warns."""
    (tmp_path / "doubtful.py").write_text(DOUBTFUL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ORBITSET_TRUST", "doubtful")
    settings = ["encoder.backbone=doubtful:Doubtful", "loss.margin=1", "encoder.code_norm=none"]
    config = with_settings(affine_digits("OT"), [*SMALL, *settings])
    jobs = [Job(replace(config, seed=at), Run(tmp_path / name)) for at, name in enumerate("ab")]
    source = Listed(jobs)
    train_side_by_side(source, 2, "cpu")
    doubts = [note for note in source.notes if "doubtful" in note[1]]
    assert sorted(doubts) == [(name, "UserWarning: these weights are doubtful") for name in "ab"]
    warned = [run for run, message in source.notes if "the codes have collapsed" in message]
    assert sorted(warned) == ["a", "b"]


def test_an_error_in_another_process_is_ours(tmp_path):
    source = Listed([_job(tmp_path / "a", "orbits.canvas_px=30")])
    with pytest.raises(ConfigError, match="images of 30 px cannot be halved"):
        train_side_by_side(source, 2, "cpu")
