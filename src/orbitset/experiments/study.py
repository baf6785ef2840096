"""Several methods trained with several seeds each, and what they show together.

A study is a folder of runs, one per line of its table and seed: `OJ/seed-0`, `OJ-as-printed/seed-2`. It is
resumable run by run and, within a run, from its last checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orbitset.config import from_dict, to_dict
from orbitset.errors import ConfigError, RunError
from orbitset.experiments.config import ExperimentConfig
from orbitset.experiments.overall import Overall
from orbitset.experiments.single import train
from orbitset.files import file_name
from orbitset.runs import Run, describe_environment
from orbitset.training.progress import Progress, Silent


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: a configuration, trained with every seed of the study."""

    label: str
    config: ExperimentConfig
    ratio: float | None = None
    """lambda2 / lambda1, for the lines that are the points of that curve and not of the table"""
    paper: Mapping[str, float] = field(default_factory=dict)
    """What the paper's table says, by measure"""

    def path(self, seed: int) -> str:
        return f"{file_name(self.label)}/seed-{seed}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `orbitset reproduce` runs."""

    name: str
    lines: tuple[Line, ...]
    seeds: tuple[int, ...]
    cut_down: str | None = None
    """In words, what makes it smaller than the experiment it stands for; shown with all its figures"""

    def __post_init__(self) -> None:
        labels = [line.label for line in self.lines]
        if not labels or not self.seeds:
            raise ConfigError("a study needs at least one method and one seed")
        repeated = [label for label in labels if labels.count(label) > 1]
        if repeated:
            raise ConfigError(f"{repeated[0]} is named twice; name every method once")

    def runs(self) -> list[tuple[Line, int]]:
        """All first seeds before any second one, so that a table can be had early; curves last of all."""
        table = [line for line in self.lines if line.ratio is None]
        curve = [line for line in self.lines if line.ratio is not None]
        return [
            *((line, seed) for seed in self.seeds for line in table),
            *((line, seed) for line in curve for seed in self.seeds_of(line)),
        ]

    def seeds_of(self, line: Line) -> tuple[int, ...]:
        return self.seeds if line.ratio is None else self.seeds[:1]

    def config_of(self, line: Line, seed: int) -> ExperimentConfig:
        """Only the first seed's codes are drawn in the plane."""
        evaluation = line.config.evaluation
        if seed != self.seeds[0] or line.ratio is not None:
            evaluation = replace(evaluation, tsne_points=0)
        return replace(line.config, name=self.name, seed=seed, evaluation=evaluation)

    def describe(self) -> dict[str, Any]:
        """What config.json holds."""
        return {
            "name": self.name,
            "cut_down": self.cut_down,
            "seeds": list(self.seeds),
            "lines": [
                {
                    "label": line.label,
                    "ratio": line.ratio,
                    "paper": dict(line.paper),
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
                ratio=line["ratio"],
                paper=line["paper"],
                config=from_dict(ExperimentConfig, line["config"]),
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
    device: str = "cpu",
    progress: Progress | None = None,
) -> None:
    """Train all that is not trained yet."""
    description = study.describe()
    if not (resume and run.exists):
        run.check_free(overwrite=overwrite)
    elif run.config != description:
        changed = _changed(run.config, description)
        raise ConfigError(
            f"{run.path} was started with other settings ({changed})",
            hint="resume with the settings it was started with, or choose another folder with --out",
        )
    with run.locked():
        if not (resume and run.exists):
            run.create(description, overwrite=overwrite)
            for path in description["runs"]:  # before any is trained: see run_demo
                Run(run / path).clear()
            run.write_json("environment.json", describe_environment(device=device, seed=0))
        _train_all(study, run, resume=resume, device=device, progress=progress or Silent())


def _train_all(study: Study, run: Run, *, resume: bool, device: str, progress: Progress) -> None:
    planned = study.runs()
    epochs = [line.config.train.epochs for line, _ in planned]
    overall = Overall(progress, epochs)
    for index, (line, seed) in enumerate(planned):
        each = Run(run / line.path(seed))
        overall.begin(index, f"{line.label}, seed {seed}")
        # recorded runs come without their weights, which nothing here needs again
        if not (resume and each.has_results):
            train(
                study.config_of(line, seed),
                each,
                resume=resume,
                overwrite=not resume,
                device=device,
                progress=overall,
            )
            each.checkpoint.unlink(missing_ok=True)  # with Adam's state three times the weights
        overall.end(index)


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    def lines(config: Mapping[str, Any]) -> dict[str, Any]:
        return {line["label"]: line for line in config.get("lines", [])}

    before, after = lines(old), lines(new)
    parts = [key for key in ("name", "cut_down", "seeds") if old.get(key) != new.get(key)]
    parts += [label for label in {**before, **after} if before.get(label) != after.get(label)]
    return ", ".join(parts)


def finished(run: Run, paths: Sequence[str]) -> list[Run]:
    """The runs of these names, all finished."""
    runs = [Run(run / path) for path in paths]
    missing = [each.path.relative_to(run.path) for each in runs if not each.has_results]
    if missing:
        raise RunError(
            f"{run.path} is not finished: {len(missing)} of {len(runs)} runs are missing, "
            f"the first is {missing[0]}",
            hint=f"go on with it: {run.resume_command}",
        )
    return runs
