"""Trains what a study describes: resumable run by run and, within a run, from its last checkpoint."""

from dataclasses import dataclass

from orbitset.errors import RunError, started_otherwise
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.study import Line, Study, changed, extends
from orbitset.results.recorded import read_recorded, stored_study
from orbitset.run_folder import Run
from orbitset.runs.overall import Overall
from orbitset.runs.prepare import open_images
from orbitset.runs.workers import check_jobs, train_all
from orbitset.training.progress import Progress, Silent


def run_study(
    study: Study,
    run: Run,
    *,
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
    device: str = "cpu",
    progress: Progress | None = None,
) -> None:
    """Train all that is not trained yet, so many at a time."""
    check_jobs(jobs)
    description = study.describe()
    if not (resume and run.exists):
        run.check_free(overwrite=overwrite, kind="study")
    elif run.kind != "study":
        raise RunError(
            f"{run.path} holds a {run.kind}, not a study; choose another folder with --out",
            is_usage=True,
        )
    elif not extends(study, stored_study(run)):
        raise started_otherwise(run.path, changed(stored_study(run), study))
    with run.locked():
        if not (resume and run.exists):
            run.create(description, overwrite=overwrite, kind="study")
        elif run.config != description:
            run.write_json("config.json", description)  # with the lines that it had not
        run.note_environment(device=device, seed=study.seeds[0])
        progress = progress or Silent()
        trainings = _Trainings(study, run, progress)
        if jobs > 1 and trainings.first is not None:
            # once, before all do it at the same time: data is fetched, decoded or rendered, and kept
            open_images(trainings.first.config, device, progress)
        train_all(trainings, jobs, device)


@dataclass(frozen=True)
class _Job:
    """A training of a study that is not complete."""

    index: int
    line: Line
    config: Experiment
    run: Run

    @property
    def name(self) -> str:
        return f"{self.line.name}, seed {self.config.seed}"


class _Trainings:
    """What is left of a study, in its order."""

    def __init__(self, study: Study, run: Run, progress: Progress) -> None:
        self._left: list[_Job] = []
        planned = study.runs()
        finished = read_recorded(run, study).trainings
        for index, (line, seed) in enumerate(planned):
            path = line.path(seed)
            if path not in finished:
                self._left.append(_Job(index, line, study.config_of(line, seed), Run(run / path)))
        done = set(range(len(planned))) - {job.index for job in self._left}
        self.overall = Overall(progress, [line.config.train.epochs for line, _ in planned], done)

    @property
    def first(self) -> _Job | None:
        return self._left[0] if self._left else None

    def next(self) -> _Job | None:
        return self._left.pop(0) if self._left else None

    def begin(self, job: _Job) -> Progress:
        self.overall.begin(job.index, job.name)
        return self.overall

    def finish(self, job: _Job, error: Exception | None) -> None:
        if error is not None:
            raise error
        self.overall.end(job.index, job.name)

    def note(self, job: _Job, message: str) -> None:
        self.overall.note(f"{job.name}: {message}")
