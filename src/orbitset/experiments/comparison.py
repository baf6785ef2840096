"""Finished runs side by side: what each scored, whether that is more than chance, and how they were set.

Runs that differ in nothing but the seed are one group, a line of the table. Only runs of one protocol can be
compared: the same test images, labelled sets and splits, so that every test is paired. Computed orbits are
paired over the halves of their test images, observed ones over seeds.
"""

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

from orbitset.config import differences, to_dict
from orbitset.errors import ConfigError, RunError, check_choice
from orbitset.evaluation.statistics import Correction
from orbitset.experiments.computed import MEASURES
from orbitset.experiments.config import (
    Experiment,
    ExperimentConfig,
    ObservedExperiment,
    read_experiment,
)
from orbitset.experiments.observed import MEASURES as OBSERVED_MEASURES
from orbitset.experiments.scores import (
    Scores,
    final_scores,
    mean_curve,
    paired_tests,
    score_row,
    stopped_scores,
)
from orbitset.files import remove_parts, write_atomically
from orbitset.report.figures import accuracy_curves
from orbitset.report.parts import picture
from orbitset.report.tables import metric_name, write_tables
from orbitset.runs import Run, without_nan

_PROTOCOL = (
    "data:", "orbits.affine.", "orbits.photometric", "orbits.members:", "orbits.canvas_px:",
    "orbits.is_colour:", "orbits.label:", "orbits.crops:", "orbits.on_problem:", "orbits.size_px:",
    "orbits.min_members:", "video.", "evaluation.",
)  # fmt: skip
"""How settings begin that say what is tested, and on what"""
_SHORT = 32
"""Longest description of a group in its label"""
_WRITTEN = {
    *("results.md", "results.tex", "results.csv", "results.json", "tests.json", "curves.png"),
    *(f"curves-{measure}.png" for measure in OBSERVED_MEASURES),
}
_OVER_SPLITS = (
    "Splits overlap and share a training, so the paired t-test is too sure of itself;\n"
    "how much another training would change, only the spread over seeds says."
)
_OVER_SEEDS = (
    "Every seed is a training of its own on the same images: what other images would\n"
    "change, it does not say."
)
_UNPAIRED = (
    "No test of significance: these are paired over seeds, and every configuration\n"
    "needs the same two or more (--seed 0, --seed 1, …)."
)


@dataclass(frozen=True)
class Compared:
    """What `compare` found; groups of runs go by their labels."""

    rows: list[dict[str, Any]]
    """The figures of each group, in the one shape they have everywhere"""
    tests: list[dict[str, Any]]
    """Paired tests of the reference group (`method`) against every other (`against`), over splits or seeds;
    none where there are too few of these"""
    about_tests: str
    """What they can say, or why there are none"""
    differences: dict[str, dict[str, Any]]
    """For each setting that differs, its value in each group"""
    curves: list[tuple[str, list[dict[str, Any]]]]
    """Epoch and measures of each group at its evaluations, averaged over seeds; the s.d. is over draws or, of
    observed orbits, over seeds"""


@dataclass(frozen=True)
class _Kind:
    """How the runs of computed or of observed orbits are compared."""

    measures: tuple[str, ...]
    drawn: tuple[str, ...]
    """Measures against epochs"""
    repeated: Literal["splits", "seeds"]
    about_tests: str


_COMPUTED = _Kind(tuple(MEASURES.values()), ("accuracy",), "splits", _OVER_SPLITS)
_OBSERVED = _Kind(OBSERVED_MEASURES, OBSERVED_MEASURES, "seeds", _OVER_SEEDS)


@dataclass(frozen=True)
class _Group:
    """Runs of one configuration, which stands here without its seed."""

    config: Experiment
    runs: list[Run]
    seeds: tuple[int, ...]
    """In the order of the runs"""

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
    singles = [single for run in runs for single in _singles(run)]
    groups = _labelled(_grouped(singles, has_study=has_study))
    if against is not None:
        check_choice("against", against, groups)
    marks = dict.fromkeys(filter(None, (group.config.cut_down for group in groups.values())))
    mark = "; ".join(marks) or None
    rows: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    is_observed = isinstance(next(iter(groups.values())).config, ObservedExperiment)
    kind = _OBSERVED if is_observed else _COMPUTED
    is_paired = kind.repeated == "splits" or _are_paired(list(groups.values()))
    for measure in kind.measures:
        scores = {label: _scores(group, measure) for label, group in groups.items()}
        found = []
        if is_paired:
            found = paired_tests(against or next(iter(groups)), scores, correction=correction)
        tests += [{"metric": measure, **test} for test in found]
        rows += [
            score_row(label, measure, of_group, found, cut_down=mark)
            for label, of_group in scores.items()
        ]
    configs = {label: group.config for label, group in groups.items()}
    return Compared(
        rows=rows,
        tests=tests,
        about_tests=kind.about_tests if is_paired else _UNPAIRED,
        differences={
            name: {label: _setting(config, name) for label, config in configs.items()}
            for name in _differing(list(configs.values()))
        },
        curves=[(label, mean_curve(group.runs, kind.drawn)) for label, group in groups.items()],
    )


def write_comparison(out: Path, compared: Compared) -> None:
    """Write tables, tests.json and curves into a folder that is free for them."""
    _check_out(out)
    images = {}
    for measure in [name for name in compared.curves[0][1][0] if name != "epoch"]:
        drawn = accuracy_curves(compared.curves, None, measure, metric_name(measure))
        name = "curves.png" if measure == "accuracy" else f"curves-{measure}.png"
        images[name] = picture(drawn, compared.rows[0]["cut_down"])
    found = without_nan(
        {name: getattr(compared, name) for name in ("tests", "about_tests", "differences")}
    )
    text = json.dumps(found, indent=2, allow_nan=False)
    # first what marks the folder as ours, lest a kill leave one that is refused ever after
    write_atomically(out / "tests.json", f"{text}\n".encode())
    remove_parts(out)
    write_tables(out, compared.rows)
    for name, image in images.items():
        write_atomically(out / name, image)
    for path in out.glob("curves*.png"):
        if path.name not in images:  # of an earlier comparison
            path.unlink()


def _check_out(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier comparison; touches nothing."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; choose another folder with --out", is_usage=True)
    found = {path.name for path in out.glob("[!.]*")}
    if found and not ("tests.json" in found and found <= _WRITTEN):
        raise RunError(
            f"{out} is not empty and was not written by compare; choose another folder with --out",
            is_usage=True,
        )


def _singles(run: Run) -> list[Run]:
    """The run itself, or the runs its folder holds; all finished."""
    run.require().refuse_search("compared")
    config = run.config
    if run.kind == "run":
        if not run.has_results:
            hint = f"go on with it: {run.resume_command}"
            raise RunError(f"{run.path} is not finished", hint=hint)
        return [run]
    names = config["runs"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RunError(
            f"{run / 'config.json'} is damaged: its runs are {names!r}, no list of names"
        )
    singles = [Run(run / name) for name in names]
    missing = [name for name, each in zip(names, singles, strict=True) if not each.has_results]
    if missing:
        raise RunError(
            f"{run.path} is not finished: {len(missing)} of {len(names)} runs are missing, "
            f"the first is {missing[0]}",
            hint=f"go on with it: {run.resume_command}",
        )
    return singles


def _grouped(runs: Sequence[Run], *, has_study: bool) -> list[_Group]:
    """Runs of one protocol by their configuration; an error where there are not at least two groups."""
    if len(runs) < 2:
        raise ConfigError(f"give at least two runs to compare, not {len(runs)}")
    configs = [_config(run) for run in runs]
    for run, config in zip(runs, configs, strict=True):
        if type(config) is not type(configs[0]):
            raise ConfigError(
                f"of {runs[0].path} and {run.path} one has computed orbits and the other observed ones, "
                "which are scored in different ways"
            )
        changed = [text for text in differences(configs[0], config) if text.startswith(_PROTOCOL)]
        if changed:
            is_split = has_study and any(text.startswith("evaluation.train:") for text in changed)
            raise ConfigError(
                f"{runs[0].path} and {run.path} were evaluated by different protocols: "
                f"{'; '.join(changed)}",
                hint="orbitset report compares the methods of a study over its splits"
                if is_split
                else None,
            )
        if _have_other_images(runs[0], run):
            raise ConfigError(
                f"{config.data} held other images when {run.path} was trained than for {runs[0].path}"
            )
    groups: dict[Experiment, dict[int, Run]] = {}
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
        _Group(config, [seeds[seed] for seed in sorted(seeds)], tuple(sorted(seeds)))
        for config, seeds in groups.items()
    ]


def _have_other_images(one: Run, other: Run) -> bool:
    """Whether the images at one place were others, as far as that is known."""
    known = [run.read_json("environment.json").get("data") for run in (one, other)]
    return None not in known and known[0] != known[1]


def _are_paired(groups: Sequence[_Group]) -> bool:
    """Whether all have the same seeds, and more than one."""
    return len(groups[0].seeds) > 1 and len({group.seeds for group in groups}) == 1


def _config(run: Run) -> Experiment:
    """What the run was asked to do, without what has no part in its scores."""
    try:
        config = read_experiment(run.config)
    except ConfigError as error:
        raise RunError(f"{run / 'config.json'} cannot be used: {error}") from None
    train = replace(config.train, checkpoint_every_s=0)
    if isinstance(config, ExperimentConfig):
        evaluation = replace(config.evaluation, tsne_points=0)
        return replace(config, name="", train=train, evaluation=evaluation)
    shown = replace(config.evaluation, tsne_labels=0, pictures=0, seed=0)
    return replace(config, name="", train=train, evaluation=shown)


def _labelled(groups: Sequence[_Group]) -> dict[str, _Group]:
    """Groups by method; where several have the same, by what differs between them if that is short.

    If it is not, by their folders, unless those have long names too, or the same.
    """
    by_settings, by_folder = [], []
    for group in groups:
        method = group.config.method
        rivals = [each.config for each in groups if each.config.method == method]
        settings = (f"{name}={_setting(group.config, name)}" for name in _differing(rivals))
        folder = group.folder if group.folder.startswith(method) else f"{method}, {group.folder}"
        by_settings.append(", ".join([method, *settings]))
        by_folder.append(method if len(rivals) == 1 else folder)
    is_long = max(map(len, by_settings)) > _SHORT >= max(map(len, by_folder))
    labels = by_folder if is_long and len(set(by_folder)) == len(groups) else by_settings
    return dict(zip(labels, groups, strict=True))


def _differing(configs: Sequence[Experiment]) -> list[str]:
    """Dotted names of the settings that are not the same in all."""
    first, *others = configs
    changed = (text for other in others for text in differences(first, other))
    return list(dict.fromkeys(text.split(":")[0] for text in changed))


def _setting(config: Experiment, name: str) -> Any:
    return reduce(operator.getitem, name.split("."), to_dict(config))


def _scores(group: _Group, measure: str) -> Scores:
    splits = group.config.evaluation.splits
    if isinstance(group.config, ExperimentConfig):
        return stopped_scores(group.runs, measure, splits)
    found = (
        stopped_scores(group.runs, measure, splits, least=1)
        if splits
        else final_scores(group.runs, measure)
    )
    return replace(found, repeated="seeds")
