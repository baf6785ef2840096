"""The trials of a search: Optuna proposes them, each is trained with every seed, its value is told back.

All of it can be killed at any moment. What is proposed stands in journal.log before it is trained, what is
trained in the runs' folders before it is told; a trial that was neither told nor finished is trained on.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbitset.config import with_settings
from orbitset.errors import RunError, TrainingError
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.search_space import Space, own_values, settings_of
from orbitset.run_folder import Run
from orbitset.runs.train import train
from orbitset.seeds import stable_seed
from orbitset.training.progress import Progress, format_seconds

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class MethodSearch:
    """A method: what all its trials have in common, and the space in which they differ."""

    base: Experiment
    space: Space


@dataclass(frozen=True)
class Job:
    """A trial to be trained with one seed."""

    method: str
    trial: "optuna.Trial"
    config: Experiment
    run: Run


class Trials:
    """Which trial is next, and what became of those before."""

    def __init__(
        self,
        methods: Mapping[str, MethodSearch],
        run: Run,
        *,
        trials: int,
        seeds: range,
        progress: Progress,
    ) -> None:
        self._methods, self._run, self._progress = methods, run, progress
        self._num, self._seeds = trials, seeds
        journal = run / "journal.log"
        try:
            storage = _open_storage(journal)
            self._studies = {
                method: _open_study(storage, method, methods[method]) for method in methods
            }
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{journal} is damaged: {error}",
                hint="remove it and resume: what was trained is in trials/ and is not trained again",
            ) from None
        interrupted = [jobs for method in methods for jobs in self._interrupted(method)]
        self._waiting = [job for jobs in interrupted for job in jobs]
        self._begun = Counter({method: len(self._completed(method)) for method in methods})
        self._begun.update(jobs[0].method for jobs in interrupted)
        self._trained: dict[tuple[str, int], list[Run]] = {}
        self._told: set[tuple[str, int]] = set()
        self._done, self._started_at = 0, time.monotonic()

    def next(self) -> Job | None:
        """What is to be trained now; what was trained before, but not told, is told."""
        while (job := self._next()) is not None and job.run.is_trained:
            self.finish(job, None)
        return job

    def _next(self) -> Job | None:
        """One that was begun, or a new one for the method with the fewest, so that all keep pace."""
        if self._waiting:
            return self._waiting.pop(0)
        method = min(self._begun, key=self._begun.__getitem__)
        if self._begun[method] >= self._num:
            return None
        self._begun[method] += 1
        study = self._studies[method]
        study.sampler = self._sampler(method, len(study.trials))
        first, *others = self._jobs(method, study.ask())
        self._waiting += others
        return first

    def finish(self, job: Job, error: Exception | None) -> None:
        """Keep only the records of a training; judge the trial when this was its last, or had to stop."""
        if error is not None and not isinstance(error, TrainingError):
            raise error
        for name in ("model.safetensors", "model.json", "model-card.md", "arrays.npz"):
            (job.run / name).unlink(missing_ok=True)
        job.run.remove_checkpoint()  # which a training that had to stop still has
        key = job.method, job.trial.number
        if key in self._told:
            return  # another seed had to stop
        if error is not None:
            job.trial.set_user_attr("error", error.message)
            self._waiting = [other for other in self._waiting if other.trial is not job.trial]
            self._progress.note(
                f"{job.method} trial {job.trial.number} counts as 0: {error.message}"
            )
            self._tell(job, 0.0, None)
            return
        trained = self._trained.setdefault(key, [])
        trained.append(job.run)
        if len(trained) == len(self._seeds):
            self._tell(job, *_best(trained))

    def note(self, job: Job, message: str) -> None:
        """Show a warning of a training, with the name of its trial."""
        name = f"{job.method} trial {job.trial.number}, seed {job.config.seed}"
        self._progress.note(f"{name}: {message}")

    def _tell(self, job: Job, value: float, epoch: float | None) -> None:
        job.trial.set_user_attr("epoch", epoch)
        self._studies[job.method].tell(job.trial, value)
        self._told.add((job.method, job.trial.number))
        self._done += 1
        self._note(job.method)

    def summaries(self, method: str) -> list[dict[str, Any]]:
        """The completed trials of a method; one that failed has an error and counts as 0."""
        return [
            {
                "number": trial.number,
                "state": "failed" if "error" in trial.user_attrs else "complete",
                "value": trial.value,
                "epoch": trial.user_attrs["epoch"],
                "settings": trial.user_attrs["settings"],
            }
            for trial in self._completed(method)
        ]

    def _completed(self, method: str) -> "list[optuna.trial.FrozenTrial]":
        from optuna.trial import TrialState

        return self._studies[method].get_trials(states=(TrialState.COMPLETE,))

    def _interrupted(self, method: str) -> list[list[Job]]:
        from optuna.trial import Trial, TrialState

        study, jobs = self._studies[method], []
        for frozen in study.get_trials(states=(TrialState.RUNNING,)):
            study.sampler = self._sampler(method, frozen.number)
            jobs.append(self._jobs(method, Trial(study, frozen._trial_id)))
        return jobs

    def _sampler(self, method: str, number: int) -> "optuna.samplers.BaseSampler":
        """One for each trial, so that a resumed search proposes what it would have proposed. A quarter of the
        trials are drawn blindly, the others near the best so far."""
        from optuna.samplers import TPESampler

        seed = stable_seed("tune", self._seeds[0], method, number) % 2**32
        return TPESampler(seed=seed, n_startup_trials=max(1, self._num // 4))

    def _jobs(self, method: str, trial: "optuna.Trial") -> list[Job]:
        base, space = self._methods[method].base, self._methods[method].space
        if "settings" not in trial.user_attrs:
            values = {dimension.name: dimension.suggest(trial) for dimension in space}
            trial.set_user_attr("settings", settings_of(values, base))
        config = with_settings(base, trial.user_attrs["settings"])
        folder = self._run / f"trials/{method}/{trial.number:03}"
        return [
            Job(method, trial, replace(config, seed=seed), Run(folder / f"seed-{seed}"))
            for seed in self._seeds
        ]

    def _note(self, method: str) -> None:
        done = {name: len(self._completed(name)) for name in self._studies}
        left = self._num * len(done) - sum(done.values())
        left_s = (time.monotonic() - self._started_at) / self._done * left
        best = max(trial["value"] for trial in self.summaries(method))
        self._progress.note(
            f"{method} {done[method]}/{self._num}  best {best:.3f}  {format_seconds(left_s)} left for all"
        )


def _best(runs: Sequence[Run]) -> tuple[float, float]:
    """The best accuracy at one of the moments at which all were evaluated, in the mean, and its epoch."""
    moments = zip(*(run.records() for run in runs), strict=True)
    trained = [records for records in moments if records[0]["step"] > 0]
    means = [
        (sum(record["accuracy"]["mean"] for record in records) / len(runs), records[0]["epoch"])
        for records in trained
    ]
    return max(means, key=lambda mean: mean[0])


def train_one_by_one(trials: Trials, device: str, progress: Progress) -> None:
    while (job := trials.next()) is not None:
        error = None
        try:
            train(job.config, job.run, resume=True, device=device, progress=progress)
        except TrainingError as stop:
            error = stop
        trials.finish(job, error)


def _open_storage(journal: Path) -> "optuna.storages.JournalStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    # what a kill may leave: a lock, which is nobody's while the folder is ours, and half a line
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
    return JournalStorage(JournalFileBackend(str(journal)))


def _open_study(
    storage: "optuna.storages.JournalStorage", method: str, search: MethodSearch
) -> "optuna.Study":
    import optuna

    study = optuna.create_study(
        study_name=method, storage=storage, direction="maximize", load_if_exists=True
    )
    if not study.trials:
        own = own_values(search.base)
        study.enqueue_trial({dimension.name: own[dimension.name] for dimension in search.space})
    return study
