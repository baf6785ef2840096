"""Processes that train, die and fail."""

import multiprocessing
import signal
import threading
import time
from dataclasses import dataclass, field

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

    def next(self):
        return self.left.pop(0) if self.left else None

    def finish(self, job, error):
        if error is not None:
            raise error
        self.ended.append(job)


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


def test_the_death_of_a_process_is_survived(tmp_path):
    source = Listed([_job(tmp_path / "a"), _job(tmp_path / "b", "seed=1")])
    asked = list(source.left)
    killed = _kill_one(tmp_path)
    train_side_by_side(source, 2, "cpu")
    assert killed[0].exitcode == -signal.SIGKILL
    assert sorted(job.run.path for job in source.ended) == [job.run.path for job in asked]
    assert all(job.run.is_finished for job in asked)


def test_processes_that_keep_dying_end_all(tmp_path, monkeypatch):
    monkeypatch.setattr("orbitset.runs.workers._DEATHS", 1)
    _kill_one(tmp_path)
    with pytest.raises(RunError, match="died training"):
        train_side_by_side(Listed([_job(tmp_path / "a")]), 2, "cpu")
    assert multiprocessing.active_children() == []


def test_an_error_in_another_process_is_ours(tmp_path):
    source = Listed([_job(tmp_path / "a", "orbits.canvas_px=30")])
    with pytest.raises(ConfigError, match="images of 30 px cannot be halved"):
        train_side_by_side(source, 2, "cpu")
