"""Trainings side by side, each in a process of its own with one thread: small ones leave much of a GPU idle.

Where a process dies (killed for memory, say), its training goes on from its checkpoint in another one.
"""

import multiprocessing
import os
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from orbitset.config import to_dict
from orbitset.errors import ConfigError, RunError, TrainingError
from orbitset.recipes.experiment import Experiment, read_experiment
from orbitset.run_folder import Run
from orbitset.runs.train import train
from orbitset.training.progress import Progress, Silent

_DEATHS = 3
"""Processes that may die over one training before all stop."""


class Job(Protocol):
    """What is to be trained, and where."""

    @property
    def config(self) -> Experiment: ...
    @property
    def run(self) -> Run: ...


J = TypeVar("J", bound=Job)


class Jobs(Protocol[J]):
    """Where trainings come from, and who hears of their end."""

    def next(self) -> J | None:
        """The next to begin, if any is left."""

    def begin(self, job: J) -> Progress:
        """Where a training that has no others beside it shows its progress."""

    def finish(self, job: J, error: Exception | None) -> None:
        """A training is complete, or had to stop; to end all others too, raise its error."""

    def note(self, job: J, message: str) -> None:
        """Show a warning of a training to the user."""


def check_jobs(jobs: int) -> None:
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; give at least 1")


def train_all(source: Jobs[J], jobs: int, device: str) -> None:
    """Train all that the source gives, so many at a time; a single one at a time in this process."""
    if jobs > 1:
        train_side_by_side(source, jobs, device)
        return
    while (job := source.next()) is not None:
        error = None
        try:
            train(job.config, job.run, resume=True, device=device, progress=source.begin(job))
        except TrainingError as stop:
            error = stop
        source.finish(job, error)


def train_side_by_side(source: Jobs[J], jobs: int, device: str) -> None:
    """Train all that the source gives, so many at a time, each in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[BaseProcess, J]] = {}
    deaths: Counter[Path] = Counter()
    noted: set[tuple[Path, str]] = set()
    again: list[J] = []
    try:
        while True:
            while len(running) < jobs and (job := again.pop() if again else source.next()):
                receiver, sender = spawn.Pipe(duplex=False)
                arguments = (sender, to_dict(job.config), job.run.path, device)
                process: BaseProcess = spawn.Process(target=_work, args=arguments, daemon=True)
                with _deaf_to_ctrl_c():
                    process.start()
                sender.close()  # the process has its own; when that closes too, it has died
                running[receiver] = process, job
            if not running:
                return
            wait(list(running))
            for receiver in [end for end in running if end.poll()]:
                process, job = running[receiver]
                path = job.run.path
                try:
                    message = receiver.recv()
                except EOFError:
                    message = None
                if isinstance(message, str):
                    if (path, message) not in noted:  # it may be trained on after a death
                        noted.add((path, message))
                        source.note(job, message)
                    continue
                running.pop(receiver)
                process.join()
                if message is None:
                    deaths[path] += 1
                    if deaths[path] == _DEATHS:
                        raise RunError(f"{_DEATHS} processes died training {path}")
                    again.append(job)
                else:
                    source.finish(job, message.error)
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


@dataclass(frozen=True)
class _End:
    """What a process sends at its end; what it sends before are warnings."""

    error: Exception | None = None


class _Warnings(Silent):
    """Sends notes to the parent, and with them what Python's warnings would print."""

    def __init__(self, sender: Connection) -> None:
        self._sender = sender

    def note(self, message: str) -> None:
        self._sender.send(message)

    def show(self, message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        """In place of `warnings.showwarning`."""
        self.note(f"{category.__name__}: {message}")


def _work(sender: Connection, config: dict[str, Any], path: Path, device: str) -> None:
    """What a process does: train, and send warnings and its end. The configuration comes as it goes to
    config.json: classes of settings of a loss from outside cannot be sent."""
    progress = _Warnings(sender)
    warnings.showwarning = progress.show
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        train(read_experiment(config), Run(path), resume=True, device=device, progress=progress)
    except Exception as error:
        sender.send(_End(error))
    else:
        sender.send(_End())


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What a process inherits from its first moment: Ctrl-C is for the parent, which ends its processes. The
    parent hears a Ctrl-C that came meanwhile afterwards."""
    resource_tracker.ensure_running()  # which would hear it again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """A killed parent cannot end its processes; left alone they would go on writing its folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
