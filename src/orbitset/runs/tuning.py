"""Settings chosen on validation images: as many trials and images for every method.

A trial is one or several runs in trials/METHOD/NNN/seed-S that never look at a test image. Its value is the
best score on validation images, averaged over its seeds, at any evaluation after the first step; the epoch of
that is kept with it. The score is the protocol's, `About.kept_by` or its first measure. With one seed a
search also finds settings that only that seed likes. The first trial of a method has the recipe's own
settings, so that the best is never worse. A trial that diverged counts, with the value 0: no method gets more
tries for failing.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from orbitset.config import bounded, check_fields, differences, to_dict
from orbitset.datasets.source import open_source
from orbitset.errors import ConfigError, OrbitsetError, RunError, started_otherwise
from orbitset.protocols import ObservedSplit
from orbitset.protocols.images import load_parts
from orbitset.recipes.experiment import Experiment, check_experiment, read_experiment
from orbitset.recipes.length import evaluated_often
from orbitset.recipes.search_space import own_values, space_of, with_all_changes
from orbitset.run_folder import Run
from orbitset.runs.prepare import CONFIGURATION, open_images
from orbitset.runs.trials import MethodSearch, Trials
from orbitset.runs.workers import check_jobs, train_all
from orbitset.training.progress import Progress, Silent

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_DECIDED = ("method", "seed", "train.epochs", "evaluation.on", "evaluation.tsne_points")


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for settings."""

    bases: Mapping[str, Experiment]
    trials: int = bounded(20, at_least=1)
    """Trials of every method, the recipe's own settings among them"""
    images: int | None = bounded(2_000_000, at_least=1)
    """Images shown in every trial; None for as many as the base shows"""
    seeds: int = bounded(1, at_least=1)
    """Seeds that every trial is trained with, which multiplies the images"""
    seed: int = bounded(0, at_least=0)
    """The seed of the proposals, and the first that every trial is trained with"""
    fixed: tuple[str, ...] = ()
    """Names of settings that stay as they are in the bases"""
    arguments: tuple[str, ...] = ()
    """What `orbitset train` needs to be told for the same bases, besides the method"""

    def __post_init__(self) -> None:
        if not self.bases:
            raise ConfigError("a search needs at least one method")
        check_fields(self)
        for name in self.fixed:
            if name in _DECIDED:
                raise ConfigError(
                    f"{name} cannot be set for a search, which decides it",
                    hint="--methods, --images and --seed say what is trained, validation images score it",
                )

    @property
    def all_seeds(self) -> range:
        """Those that each trial is trained with."""
        return range(self.seed, self.seed + self.seeds)

    def of_method(self, base: Experiment) -> MethodSearch:
        """A method's trials: of the length asked for, and scored on validation images."""
        check_experiment(base, CONFIGURATION)
        check_searchable(base)
        evaluation = base.evaluation
        evaluation = replace(evaluation, on="validation", **evaluation.without_figures())
        base = replace(base, seed=self.seed, evaluation=evaluation)
        trained = _observed_images(base) if base.is_observed else _computed_images(base)
        if self.images is not None:
            epochs = self.images / trained.images_per_epoch
            base = _with_length(base, epochs)
        space = space_of(base, trained.orbits, trained.most_members, self.fixed)
        return MethodSearch(
            with_all_changes(base, trained.size_px), space, own_values(base), trained.orbits
        )


@dataclass(frozen=True)
class _Trained:
    """What is trained on, in numbers."""

    orbits: int
    most_members: int
    images_per_epoch: int
    size_px: int


def _computed_images(base: Experiment) -> _Trained:
    splits = load_parts(open_source(base.data), base.computed, "validation")
    if splits.test.labels is None:
        raise ConfigError("settings are chosen by accuracy, and these images have no labels")
    orbits, members = len(splits.train), base.computed.members
    return _Trained(orbits, members, orbits * members, base.computed.canvas_px)


def _observed_images(base: Experiment) -> _Trained:
    split = open_images(base, "cpu")
    assert isinstance(split, ObservedSplit)
    size_N = split.orbits_of(split.train).size_N
    return _Trained(len(size_N), int(size_N.max()), len(split.train), split.image_shape[1])


def _with_length(base: Experiment, epochs: float) -> Experiment:
    if base.is_observed:
        return evaluated_often(base, epochs)
    return replace(base, train=replace(base.train, epochs=epochs))


def check_searchable(base: Experiment) -> None:
    """Refuse what has no validation images by which settings could be chosen."""
    if "on" not in {setting.name for setting in fields(base.evaluation)}:
        raise ConfigError(
            f"settings cannot be searched by the protocol {base.protocol}: it cannot be scored on validation "
            "images instead of test images"
        )
    if base.is_observed and not base.evaluation.validation:
        raise ConfigError(
            f"{base.name} has no validation orbits, by whose retrieval settings are chosen",
            hint="name some with --split, such as session=1,2/3/4, or bring more things: where at least 20 "
            "are split at random, some are held out for validation",
        )


def tune(
    search: Search,
    run: Run,
    *,
    jobs: int = 1,
    device: str = "cpu",
    progress: Progress | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Search each method's space, starting from its base; gives what results.json holds.

    With several jobs, so many trainings run side by side, each in a process of its own with one thread.
    """
    check_jobs(jobs)
    _check_optuna()
    progress = progress or Silent()
    is_resumed = resume and run.exists
    _check_folder(run, is_resumed=is_resumed)
    methods = {method: search.of_method(base) for method, base in search.bases.items()}
    description = _describe(search, methods)
    if is_resumed:
        _check_same(run, search, description)
    with run.locked():
        if not is_resumed:
            run.create(description, kind="search")
        run.note_environment(device=device, seed=search.seed)
        trials = Trials(
            methods, run, trials=search.trials, seeds=search.all_seeds, progress=progress
        )
        train_all(trials, jobs, device)
        results = {"methods": {m: _result(search, m, trials.summaries(m)) for m in methods}}
        run.write_json("results.json", results)
    return results


def stored_search(run: Run) -> Search:
    """The search a folder was started with."""
    config = run.config
    if run.kind != "search":
        raise ConfigError(f"{run.path} holds a run of {config['name']}, not a search for settings")
    try:
        return Search(
            bases={name: read_experiment(config["bases"][name]) for name in config["methods"]},
            trials=config["trials"],
            images=config["images"],
            seeds=config["seeds"],
            seed=config["seed"],
            fixed=tuple(config["fixed"]),
            arguments=tuple(config.get("arguments", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{run / 'config.json'} is damaged: {error!r}") from None


def _check_optuna() -> None:
    try:
        import optuna
    except ImportError:
        raise OrbitsetError(
            "settings are proposed by Optuna, which is not installed", hint="pip install optuna"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _check_folder(run: Run, *, is_resumed: bool) -> None:
    """A search is hours of work: there is no way to overwrite one."""
    if run.exists and not is_resumed:
        raise RunError(
            f"{run.path} already holds a run",
            hint="add --resume to go on with it, or --out to use another folder",
            is_usage=True,
        )
    run.check_free(overwrite=is_resumed, kind="search")


def _describe(search: Search, methods: Mapping[str, MethodSearch]) -> dict[str, Any]:
    """What config.json holds."""
    numbers = {name: getattr(search, name) for name in ("trials", "images", "seeds", "seed")}
    return {
        "name": next(iter(search.bases.values())).name,
        "runs": [f"trials/{method}" for method in methods],
        "methods": list(methods),
        **numbers,
        "fixed": list(search.fixed),
        "arguments": list(search.arguments),
        "bases": {method: to_dict(base) for method, base in search.bases.items()},
        "space": {method: _described(own.space) for method, own in methods.items()},
    }


def _described(space: "Mapping[str, BaseDistribution]") -> dict[str, Any]:
    from optuna.distributions import distribution_to_json

    return {name: json.loads(distribution_to_json(values)) for name, values in space.items()}


def _check_same(run: Run, search: Search, description: Mapping[str, Any]) -> None:
    """Refuse to go on with another search than the one in the folder."""
    stored, config = stored_search(run), run.config
    names = ("methods", "trials", "images", "seeds", "seed", "fixed")
    changes = [f"{n}: {config[n]} → {description[n]}" for n in names if config[n] != description[n]]
    for method in [method for method in stored.bases if method in search.bases]:
        pair = (stored.bases[method], search.bases[method])
        changes += [f"{method} {change}" for change in differences(*pair)]
    if not changes and config["space"] != description["space"]:
        changes = ["the space that is searched"]
    if changes:
        raise started_otherwise(run.path, "; ".join(changes))


def _result(search: Search, method: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
    best = max(trials, key=lambda trial: trial["value"])
    chosen = {name: best[name] for name in ("value", "settings", "options", "epoch", "measure")}
    chosen |= {"trial": best["number"], "command": None}
    if search.arguments:
        words = ["orbitset", "train", *search.arguments, "--method", method, *best["options"]]
        chosen["command"] = shlex.join(words)
    return {"best": chosen, "trials": trials, "images": search.images}
