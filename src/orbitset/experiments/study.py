"""Several methods trained with several seeds each, and what they show together.

A study is a folder of runs, one per line of its table and seed: `OJ/seed-0`, `OJ-as-printed/seed-2`. Where
the data is split in several ways, a method has a line for each: `OJ/12-3-4/seed-0`. It is resumable run by
run and, within a run, from its last checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orbitset.config import differences, to_dict
from orbitset.errors import ConfigError, RunError
from orbitset.experiments.config import Experiment, ObservedExperiment, read_experiment
from orbitset.experiments.overall import Overall
from orbitset.experiments.single import build_task, train
from orbitset.experiments.workers import check_jobs, train_side_by_side
from orbitset.files import file_name
from orbitset.runs import Run
from orbitset.training.progress import Progress, Silent

Role = Literal["method", "variant", "point", "curve"]
_IN_TABLE = ("method", "variant")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: a configuration, trained with every seed of the study."""

    label: str
    config: Experiment
    split: str | None = None
    """Which way the data is split, where there are several; lines of one label are then one of the table"""
    role: Role = "method"
    """variant: a line of the table that is in no figure; point: of the curve over weights, trained once;
    curve: for a figure alone"""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What the paper's table says, by measure: mean, sd, p"""

    @property
    def name(self) -> str:
        """The label, and the split where there is one."""
        return self.label if self.split is None else f"{self.label}, {self.split}"

    @property
    def is_in_table(self) -> bool:
        return self.role in _IN_TABLE

    def path(self, seed: int) -> str:
        parts = [self.label, *([self.split] if self.split else []), f"seed-{seed}"]
        return "/".join(map(file_name, parts))


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `orbitset reproduce` runs."""

    name: str
    lines: tuple[Line, ...]
    seeds: tuple[int, ...]
    cut_down: str | None = None
    """In words, what makes it smaller than the experiment it stands for; shown with all its figures"""

    def __post_init__(self) -> None:
        if not any(line.is_in_table for line in self.lines) or not self.seeds:
            raise ConfigError("a study needs at least one method and one seed")
        paths = [line.path(0) for line in self.lines]
        for line, path in zip(self.lines, paths, strict=True):
            if not file_name(line.label):
                raise ConfigError(
                    f"{line.label!r} cannot be the name of a folder; give it a letter"
                )
            if paths.count(path) > 1:
                raise ConfigError(f"{line.name} is named twice; name every method once")

    def runs(self) -> list[tuple[Line, int]]:
        """Methods before their variants, and all first seeds before any second one, so that a table can be
        had early; what is for figures alone comes last."""
        others = [line for line in self.lines if not line.is_in_table]
        return [
            *(
                (line, seed)
                for role in _IN_TABLE
                for seed in self.seeds
                for line in self.lines
                if line.role == role
            ),
            *((line, seed) for line in others for seed in self.seeds_of(line)),
        ]

    def seeds_of(self, line: Line) -> tuple[int, ...]:
        return self.seeds if line.is_in_table else self.seeds[:1]

    def lines_of(self, label: str) -> list[Line]:
        """The lines that are one in the table: one for each split."""
        return [line for line in self.lines if line.label == label and line.is_in_table]

    @property
    def labels(self) -> list[str]:
        """Of the table's lines, each once."""
        return list(dict.fromkeys(line.label for line in self.lines if line.is_in_table))

    def config_of(self, line: Line, seed: int) -> Experiment:
        """Only the first line of a method, trained with the first seed, keeps what figures are drawn from."""
        config = line.config
        is_shown = seed == self.seeds[0] and line.is_in_table
        if isinstance(config, ObservedExperiment):
            is_shown = is_shown and line == self.lines_of(line.label)[0]
            evaluation = config.evaluation
            if not is_shown:
                evaluation = replace(evaluation, pictures=0, tsne_labels=0)
            config = replace(config, evaluation=evaluation)
        elif not is_shown:
            config = replace(config, evaluation=replace(config.evaluation, tsne_points=0))
        return replace(config, name=self.name, seed=seed, cut_down=self.cut_down)

    def check(self, line: Line, seed: int, run: Run) -> None:
        """Refuse a run in the place of another: copied, or of an earlier study in the same folder."""
        if not run.exists and run.has_results:
            raise RunError(f"{run / 'config.json'} is missing or damaged")
        if run.exists:
            changed = differences(read_experiment(run.config), self.config_of(line, seed))
            if changed:
                raise RunError(
                    f"{run.path} is not the run of {line.name}, seed {seed}, that belongs there "
                    f"({'; '.join(changed)})",
                    hint="remove that folder, or start the study anew with --overwrite",
                )

    def describe(self) -> dict[str, Any]:
        """What config.json holds."""
        return {
            "name": self.name,
            "cut_down": self.cut_down,
            "seeds": list(self.seeds),
            "lines": [
                {
                    "label": line.label,
                    "split": line.split,
                    "role": line.role,
                    "paper": {name: dict(found) for name, found in line.paper.items()},
                    "runs": [line.path(seed) for seed in self.seeds_of(line)],
                    "config": to_dict(line.config),
                }
                for line in self.lines
            ],
            "runs": [line.path(seed) for line, seed in self.runs()],
        }


def stored_study(run: Run) -> Study:
    """The study a folder was started with."""
    config = run.require().config
    if run.kind != "study":
        raise RunError(f"{run.path} holds no study, but a run of {config['name']}", is_usage=True)
    return _study(run, config)


def _study(run: Run, config: Mapping[str, Any]) -> Study:
    try:
        lines = tuple(
            Line(
                label=line["label"],
                split=line["split"],
                role=line["role"],
                paper=line["paper"],
                config=read_experiment(line["config"]),
            )
            for line in config["lines"]
        )
        return Study(
            name=config["name"],
            lines=lines,
            seeds=tuple(config["seeds"]),
            cut_down=config["cut_down"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run / 'config.json'} is damaged: {error}") from None


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
    elif stored_study(run).describe() != description:
        differing = changed(stored_study(run), study)
        raise ConfigError(
            f"{run.path} was started with other settings ({differing})",
            hint="resume with the settings it was started with, or choose another folder with --out",
        )
    with run.locked():
        if not (resume and run.exists):
            for path in run.config["runs"] if run.exists else []:
                Run(run / path).remove()  # before anything is new, lest a kill leave old beside new
            run.create(description, overwrite=overwrite, kind="study")
        run.note_environment(device=device, seed=study.seeds[0])
        progress = progress or Silent()
        trainings = _Trainings(study, run, progress)
        if jobs == 1:
            _train_one_by_one(trainings, device)
        elif trainings.first is not None:
            # once, before all do it at the same time: data is fetched, decoded or rendered, and kept
            build_task(trainings.first.config, device, progress)
            train_side_by_side(trainings, jobs, device)


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
        for index, (line, seed) in enumerate(planned):
            each = Run(run / line.path(seed))
            study.check(line, seed, each)
            # recorded runs come without their weights, which nothing here needs again
            if not each.has_results:
                self._left.append(_Job(index, line, study.config_of(line, seed), each))
        done = set(range(len(planned))) - {job.index for job in self._left}
        self.overall = Overall(progress, [line.config.train.epochs for line, _ in planned], done)

    @property
    def first(self) -> _Job | None:
        return self._left[0] if self._left else None

    def next(self) -> _Job | None:
        return self._left.pop(0) if self._left else None

    def finish(self, job: _Job, error: Exception | None) -> None:
        if error is not None:
            raise error
        job.run.checkpoint.unlink(missing_ok=True)  # with Adam's state three times the weights
        self.overall.end(job.index, job.name)


def _train_one_by_one(trainings: _Trainings, device: str) -> None:
    while (job := trainings.next()) is not None:
        trainings.overall.begin(job.index, job.name)
        train(job.config, job.run, resume=True, device=device, progress=trainings.overall)
        trainings.finish(job, None)


def changed(old: Study, new: Study) -> str:
    """What differs, in words."""
    parts = [
        f"{name}: {getattr(old, name)} → {getattr(new, name)}"
        for name in ("name", "cut_down", "seeds")
        if getattr(old, name) != getattr(new, name)
    ]
    before, after = ({line.name: line.config for line in study.lines} for study in (old, new))
    for label in {**before, **after}:
        if label not in before or label not in after:
            parts.append(f"{label} {'added' if label in after else 'left out'}")
        else:
            found = differences(before[label], after[label])
            parts += [f"{label} {'; '.join(found)}"] if found else []
    return ", ".join(parts) or "the order of its lines"
