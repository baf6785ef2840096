"""Finished runs side by side: what each scored, whether that is more than chance, and how they were set.

Runs that differ in nothing but the seed are one group, a line of the table. Only runs of one protocol can be
compared: the same test images, labelled sets and splits, so that every test is paired. Computed orbits are
paired over the halves of their test images, observed ones over seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any, get_args

from orbitset.config import differences, to_dict
from orbitset.errors import ConfigError, RunError, check_choice
from orbitset.evaluation.statistics import Correction
from orbitset.recipes.experiment import Experiment
from orbitset.results.curves import mean_curve
from orbitset.results.recorded import Training, read_recorded, read_training
from orbitset.results.row import Row
from orbitset.results.significance import paired_tests, score_row
from orbitset.results.stopping import about, measures_of, scores_of
from orbitset.run_folder import Run

_PROTOCOL = (
    "data:", "orbits.members:", "orbits.canvas_px:", "orbits.is_colour:", "orbits.label:", "orbits.crops:",
    "orbits.on_problem:", "orbits.size_px:", "orbits.min_members:", "video.", "protocol:", "evaluation.",
)  # fmt: skip
"""How settings begin that say what is tested, and on what"""
_CHANGES = ("orbits.affine", "orbits.photometric")
"""How settings begin that make members of computed orbits, and change observed images in training alone"""
_ABSENT = "–"
"""The value of a setting that a configuration does not have"""
_SHORT = 32
"""Longest description of a group in its label"""
_UNPAIRED = (
    "No test of significance: these are paired over seeds, and every configuration\n"
    "needs the same two or more (--seed 0, --seed 1, …)."
)


@dataclass(frozen=True)
class Compared:
    """The result of a comparison; groups of runs go by their labels."""

    rows: list[Row]
    """The scores of each group"""
    tests: list[dict[str, Any]]
    """Paired tests of the reference group (`method`) against every other (`against`), over splits or seeds;
    none where there are too few of these"""
    about_tests: str
    """What they can say, or why there are none"""
    differences: dict[str, dict[str, Any]]
    """For each setting that differs, its value in each group"""
    words: Mapping[str, str]
    """The measures in the words of their protocol"""
    curves: list[tuple[str, list[dict[str, Any]]]]
    """Epoch and measures of each group at its evaluations, averaged over seeds; the s.d. is over draws or, of
    observed orbits, over seeds"""
    alone: dict[str, list[str]] = field(default_factory=dict)
    """Measures that only some groups were scored by, which are not compared, with these groups"""


@dataclass(frozen=True)
class _Group:
    """Runs of one configuration, which stands here without its seed."""

    config: Experiment
    runs: list[Training]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.config.seed for run in self.runs)

    @property
    def folder(self) -> str:
        """The folder's name; of the folder of all seeds where each seed has its own within that."""
        path = self.runs[0].path.resolve()
        return path.parent.name if path.name.startswith("seed-") else path.name


def compare(
    runs: Sequence[Run], *, against: str | None = None, correction: Correction = "bonferroni"
) -> Compared:
    """Compare finished runs, or folders that hold several; the first group, or `against`, with each other.

    Every measure is scored by early stopping on each split's validation side and averaged over seeds
    within a split; of observed orbits without one, at the end. p is corrected for all comparisons of one
    measure by one test.
    """
    check_choice("correction", correction, get_args(Correction))
    has_study = any(run.exists and run.kind != "run" for run in runs)
    singles = [single for run in runs for single in _trainings(run)]
    groups = _labelled(_grouped(singles, has_study=has_study))
    if against is not None:
        check_choice("against", against, groups)
    configs = {label: group.config for label, group in groups.items()}
    mark = "; ".join(dict.fromkeys(filter(None, (of.cut_down for of in configs.values())))) or None
    rows: list[Row] = []
    tests: list[dict[str, Any]] = []
    first = next(iter(groups.values()))
    protocol = about(first.runs[0])
    has_same_seeds = len({group.seeds for group in groups.values()}) == 1
    is_paired = protocol.paired_over == "splits" or (has_same_seeds and len(first.seeds) > 1)
    alone: dict[str, list[str]] = {}
    for label, group in groups.items():
        for measure in set.intersection(*(set(measures_of(run)) for run in group.runs)):
            alone.setdefault(measure, []).append(label)
    alone = {name: labels for name, labels in alone.items() if len(labels) < len(groups)}
    for measure in measures_of(first.runs[0]):
        if measure in alone:
            continue
        scores = {
            label: replace(scores_of(group.runs, measure), repeated=protocol.paired_over)
            for label, group in groups.items()
        }
        new_tests = []
        if is_paired:
            new_tests = paired_tests(against or next(iter(groups)), scores, correction=correction)
        tests += [{"metric": measure, **test} for test in new_tests]
        rows += [
            replace(score_row(label, measure, of_group, new_tests), cut_down=mark)
            for label, of_group in scores.items()
        ]
    own = [name.partition(":")[2] for name in first.config.measures]
    shared = {row.metric for row in rows}
    drawn = [name for name in (*protocol.curves, *own) if name in shared]
    return Compared(
        rows=rows,
        tests=tests,
        about_tests=protocol.about_tests if is_paired else _UNPAIRED,
        differences={
            name: {label: _setting(config, name) for label, config in configs.items()}
            for name in _differing(list(configs.values()))
        },
        words=protocol.measures,
        curves=[(label, mean_curve(group.runs, drawn)) for label, group in groups.items()],
        alone=alone,
    )


def _trainings(run: Run) -> list[Training]:
    """The training in a folder, or all trainings of a study or a demo; all must be finished."""
    run.require().refuse_search("compared")
    if run.kind == "run":
        if not run.has_results:
            hint = f"go on with it: {run.resume_command}"
            raise RunError(f"{run.path} is not finished", hint=hint)
        return [read_training(run)]
    names = run.config["runs"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RunError(
            f"{run / 'config.json'} is damaged: its runs are {names!r}, no list of names"
        )
    if run.kind == "study":
        trainings = dict(read_recorded(run).trainings)
    else:
        finished = [name for name in names if Run(run / name).has_results]
        trainings = {name: read_training(Run(run / name)) for name in finished}
    if missing := [name for name in names if name not in trainings]:
        raise RunError(
            f"{run.path} is not finished: {len(missing)} of {len(names)} runs are missing, "
            f"the first is {missing[0]}",
            hint=f"go on with it: {run.resume_command}",
        )
    return list(trainings.values())


def _grouped(runs: Sequence[Training], *, has_study: bool) -> list[_Group]:
    """Runs of one protocol by their configuration; an error where there are not at least two groups."""
    if len(runs) < 2:
        raise ConfigError(f"give at least two runs to compare, not {len(runs)}")
    configs = [_config(run) for run in runs]
    for run, config in zip(runs, configs, strict=True):
        if type(config.orbits) is not type(configs[0].orbits):
            raise ConfigError(
                f"of {runs[0].path} and {run.path} one has computed orbits and the other observed ones, "
                "which are scored in different ways"
            )
        tested = _PROTOCOL if config.is_observed else (*_PROTOCOL, *_CHANGES)
        changed = [text for text in differences(configs[0], config) if text.startswith(tested)]
        if changed:
            is_split = has_study and any(text.startswith("evaluation.train:") for text in changed)
            raise ConfigError(
                f"{runs[0].path} and {run.path} were evaluated by different protocols: "
                f"{'; '.join(changed)}",
                hint="orbitset report compares the methods of a study over its splits"
                if is_split
                else None,
            )
        known = [of.environment.get("data") for of in (runs[0], run)]
        if None not in known and known[0] != known[1]:
            raise ConfigError(
                f"{config.data} held other images when {run.path} was trained than for {runs[0].path}"
            )
    groups: dict[Experiment, dict[int, Training]] = {}
    for run, config in zip(runs, configs, strict=True):
        seeds = groups.setdefault(replace(config, seed=0), {})
        if config.seed in seeds:
            raise ConfigError(
                f"{seeds[config.seed].path} and {run.path} are the same configuration with the same "
                f"seed, {config.seed}; leave one of them out"
            )
        seeds[config.seed] = run
    if len(groups) < 2:
        raise ConfigError(
            f"all {len(runs)} runs are seeds of one configuration; give another to compare it with"
        )
    return [
        _Group(config, [seeds[seed] for seed in sorted(seeds)]) for config, seeds in groups.items()
    ]


def _config(training: Training) -> Experiment:
    """The configuration without what has no part in the scores."""
    config = training.config
    train = replace(config.train, checkpoint_every_s=0)
    evaluation = config.evaluation
    if evaluation is not None:
        evaluation = replace(evaluation, **evaluation.without_figures())
    if config.is_observed:
        evaluation = replace(evaluation, seed=0)  # which chooses figures alone
    return replace(config, name="", train=train, evaluation=evaluation)


def _labelled(groups: Sequence[_Group]) -> dict[str, _Group]:
    """Groups by method; where several have the same, by what differs between them if that is short.

    If it is not, by their folders, unless those have long names too, or the same.
    """
    by_settings, by_folder = [], []
    for group in groups:
        method = group.config.method
        rivals = [other.config for other in groups if other.config.method == method]
        settings = (f"{name}={_setting(group.config, name)}" for name in _differing(rivals))
        folder = group.folder if group.folder.startswith(method) else f"{method}, {group.folder}"
        by_settings.append(", ".join([method, *settings]))
        by_folder.append(method if len(rivals) == 1 else folder)
    is_long = max(map(len, by_settings)) > _SHORT >= max(map(len, by_folder))
    labels = by_folder if is_long and len(set(by_folder)) == len(groups) else by_settings
    return dict(zip(labels, groups, strict=True))


def _differing(configs: Sequence[Experiment]) -> list[str]:
    """Dotted names of the settings that are not the same in all. A setting that some do not have, because
    their method has no use for it, is named only if another has changed it from its default."""
    first, *others = configs
    changed = (text.split(":")[0] for other in others for text in differences(first, other))
    names = []
    for name in dict.fromkeys(changed):
        own = [config for config in configs if _setting(config, name) != _ABSENT]
        if len(own) == len(configs) or any(_is_changed(config, name) for config in own):
            names.append(name)
    return names


def _is_changed(config: Experiment, name: str) -> bool:
    *groups, last = name.split(".")
    group = reduce(getattr, groups, config)
    default = next(field.default for field in fields(group) if field.name == last)
    return bool(getattr(group, last) != default)


def _setting(config: Experiment, name: str) -> Any:
    value: Any = to_dict(config)
    for part in name.split("."):
        value = value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT
    return value
