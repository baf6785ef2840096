"""The trials of a search: Optuna proposes the settings of each, which is then trained with every seed.

A search can be killed at any moment. The trial.json of a trial says what was proposed before it is trained,
and what it is worth as soon as that is known; from these Optuna learns the same when the search is resumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orbitset.config import with_settings
from orbitset.errors import RunError, TrainingError
from orbitset.protocols.contract import About
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.search_space import options_of, settings_of
from orbitset.run_folder import Run
from orbitset.runs.overall import Overall
from orbitset.seeds import stable_seed
from orbitset.training.progress import Progress

if TYPE_CHECKING:
    import optuna

_FILE = "trial.json"


@dataclass(frozen=True)
class MethodSearch:
    """A method: what all its trials have in common, and the space in which they differ."""

    base: Experiment
    space: "dict[str, optuna.distributions.BaseDistribution]"
    own: Mapping[str, Any]
    """The point of the recipe's own settings"""
    num_orbits: int


@dataclass(eq=False)
class _Trial:
    """A point of a method's space."""

    method: str
    number: int
    folder: Run
    record: dict[str, Any]
    """What trial.json holds: the `point` and its `settings`; then also `value`, `epoch`, `measure` and
    perhaps an `error`"""

    @property
    def is_settled(self) -> bool:
        return "value" in self.record

    def write(self, **content: Any) -> None:
        self.record |= content
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.folder.write_json(_FILE, self.record)


@dataclass(frozen=True)
class Job:
    """A trial to be trained with one seed."""

    trial: _Trial
    config: Experiment

    @property
    def run(self) -> Run:
        return Run(self.trial.folder / f"seed-{self.config.seed}")

    @property
    def name(self) -> str:
        return f"{self.trial.method} trial {self.trial.number}, seed {self.config.seed}"


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
        import optuna

        self._methods, self._num_trials, self._seeds = methods, trials, seeds
        self._studies = {method: optuna.create_study(direction="maximize") for method in methods}
        self._trials = []
        for number in range(trials):  # one of every method, then the next, so that all keep pace
            for method in methods:
                folder = Run(run / f"trials/{method}/{number:03}")
                record = folder.read_json(_FILE) if (folder / _FILE).is_file() else {}
                self._trials.append(_Trial(method, number, folder, record))
        settled = [at for at, trial in enumerate(self._trials) if trial.is_settled]
        self._overall = Overall(progress, [1.0] * len(self._trials), settled)
        self._left = self._jobs()

    def next(self) -> Job | None:
        """What is to be trained now."""
        return next(self._left, None)

    def begin(self, job: Job) -> Progress:
        """Where the only training of now shows its progress."""
        self._overall.begin(self._trials.index(job.trial), job.name)
        return self._overall

    def note(self, job: Job, message: str) -> None:
        """Show a warning of a training, with the name of its trial."""
        self._overall.note(f"{job.name}: {message}")

    def _jobs(self) -> Iterator[Job]:
        for trial in self._trials:
            try:
                jobs = self._propose(trial)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise RunError(
                    f"{trial.folder / _FILE} is damaged: {error!r}",
                    hint=f"remove it and resume: what was trained in {trial.folder.path} stays",
                ) from None
            for job in jobs:
                if trial.is_settled:
                    break  # another seed had to stop
                if not job.run.is_trained:
                    yield job
                else:  # and then interrupted
                    self.finish(job, None)

    def _propose(self, trial: _Trial) -> list[Job]:
        """The trainings of a trial, none if it was settled before; Optuna hears of it either way."""
        from optuna.trial import create_trial

        search, study = self._methods[trial.method], self._studies[trial.method]
        if trial.is_settled:
            point, value = trial.record["point"], trial.record["value"]
            study.add_trial(create_trial(params=point, distributions=search.space, value=value))
            return []
        if trial.record or trial.number == 0:
            own_point = {name: search.own[name] for name in search.space}
            study.enqueue_trial(trial.record.get("point", own_point))
        study.sampler = self._sampler(trial)
        point = study.ask(fixed_distributions=search.space).params
        trial.write(point=point, settings=settings_of(point, search.base, search.num_orbits))
        config = with_settings(search.base, trial.record["settings"])
        return [Job(trial, replace(config, seed=seed)) for seed in self._seeds]

    def _sampler(self, trial: _Trial) -> "optuna.samplers.BaseSampler":
        """One for each trial, so that a resumed search proposes what it would have proposed. A quarter of the
        trials are drawn blindly, the others near the best so far."""
        from optuna.samplers import TPESampler

        seed = stable_seed("tune", self._seeds[0], trial.method, trial.number) % 2**32
        return TPESampler(seed=seed, n_startup_trials=max(1, self._num_trials // 4))

    def finish(self, job: Job, error: Exception | None) -> None:
        """Keep only the records of a training; judge the trial when this was its last, or had to stop."""
        if error is not None and not isinstance(error, TrainingError):
            raise error
        for name in (
            "model.safetensors",
            "model.json",
            "model-card.md",
            "known.safetensors",
            "arrays.npz",
        ):
            (job.run / name).unlink(missing_ok=True)
        job.run.remove_checkpoint()  # which a training that had to stop still has
        trial = job.trial
        if trial.is_settled:
            return
        if error is not None:
            name = f"{trial.method} trial {trial.number}"
            self._overall.note(f"{name} counts as 0: {error.message}")
            self._settle(trial, value=0.0, epoch=None, measure=None, error=error.message)
            return
        runs = [Run(trial.folder / f"seed-{seed}") for seed in self._seeds]
        if all(run.is_trained for run in runs):
            self._settle(trial, **_best(runs))

    def _settle(self, trial: _Trial, **outcome: Any) -> None:
        trial.write(**outcome)
        self._studies[trial.method].tell(trial.number, outcome["value"])
        values = [summary["value"] for summary in self.summaries(trial.method)]
        label = f"{trial.method} {len(values)}/{self._num_trials}  best {max(values):.3f}"
        self._overall.end(self._trials.index(trial), label)

    def summaries(self, method: str) -> list[dict[str, Any]]:
        """The settled trials of a method; one that failed has an error and counts as 0."""
        return [
            {
                "number": trial.number,
                "state": "failed" if "error" in trial.record else "complete",
                **{name: trial.record[name] for name in ("value", "epoch", "settings")},
                "measure": trial.record.get("measure"),
                "options": options_of(trial.record["point"], trial.record["settings"]),
            }
            for trial in self._trials
            if trial.method == method and trial.is_settled
        ]


def _best(runs: Sequence[Run]) -> dict[str, Any]:
    """The mean over runs of the best score, its epoch and the measure.

    If a run keeps its best weights, each has its own best moment, and the epoch is the mean of these.
    Otherwise it is the best of the moments at which all were evaluated.
    """
    about = About.from_json(runs[0].read_json("results.json")["protocol"])
    measure = about.chosen_by
    scored = [
        [(record[measure]["mean"], record["epoch"]) for record in run.records() if record["step"]]
        for run in runs
    ]
    if runs[0].config["train"]["keep"] == "best":
        moments = [[max(scores, key=lambda score: score[0]) for scores in scored]]
    else:
        moments = [*map(list, zip(*scored, strict=True))]
    means = [
        (_mean(scores), _mean(epochs)) for scores, epochs in (zip(*m, strict=True) for m in moments)
    ]
    value, epoch = max(means, key=lambda mean: mean[0])
    return {"value": value, "epoch": epoch, "measure": measure}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
