"""Several methods trained with several seeds each, as data.

A study is a folder of runs, one per line of its table and seed: `OJ/seed-0`, `OJ-as-printed/seed-2`. Where
the data is split in several ways, a method has a line for each: `OJ/12-3-4/seed-0`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any, Literal

from orbitset.config import UnknownSetting, differences, parse_settings, to_dict, with_settings
from orbitset.errors import ConfigError
from orbitset.files import file_name
from orbitset.recipes.experiment import Experiment, read_experiment
from orbitset.recipes.methods import is_outside, parse_method

_MOST_SEEDS = 1000
_DECIDED = {
    "method": "choose methods with --methods",
    "seed": "choose the number of seeds with --seeds",
    "train.epochs": "set the length with --epochs or --images",
    "evaluation.test_images": "use --test-images",
}
"""Settings that every line of a study has of its own, and the options that change them"""
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
        is_shown = (
            line.is_in_table
            and seed == self.seeds[0]
            and line.path(seed) == self.lines_of(line.label)[0].path(seed)
        )
        if not is_shown and config.evaluation is not None:
            fewer = config.evaluation.without_figures()
            config = replace(config, evaluation=replace(config.evaluation, **fewer))
        return replace(config, name=self.name, seed=seed, cut_down=self.cut_down)

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
                    "paper": {name: dict(row) for name, row in line.paper.items()},
                    "runs": [line.path(seed) for seed in self.seeds_of(line)],
                    "config": to_dict(line.config),
                }
                for line in self.lines
            ],
            "runs": [line.path(seed) for line, seed in self.runs()],
        }


def read_study(config: Mapping[str, Any]) -> Study:
    """The study that config.json holds; raises KeyError, TypeError or ValueError where it is damaged."""
    lines = tuple(
        Line(
            config=read_experiment(line["config"]),
            **{name: line[name] for name in ("label", "split", "role", "paper")},
        )
        for line in config["lines"]
    )
    return Study(
        name=config["name"], lines=lines, seeds=tuple(config["seeds"]), cut_down=config["cut_down"]
    )


def extends(new: Study, old: Study) -> bool:
    """Whether the new study has all runs of the old one, in its order, and perhaps more lines."""
    common = [line for line in new.lines if line in old.lines]
    is_alike = (new.name, new.seeds, new.cut_down) == (old.name, old.seeds, old.cut_down)
    return (
        is_alike
        and common == list(old.lines)
        and all(new.config_of(*run) == old.config_of(*run) for run in old.runs())
    )


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
            changes = differences(before[label], after[label])
            parts += [f"{label} {'; '.join(changes)}"] if changes else []
    return ", ".join(parts) or "the order of its lines"


def with_changes(study: Study, settings: Sequence[str], measures: Sequence[str] = ()) -> Study:
    """The same study with settings changed in every line that uses them, and with further measures.

    Changes to methods of the package are named where the study says what makes it another one.
    """
    lines = [
        replace(line, config=replace(line.config, measures=(*line.config.measures, *measures)))
        for line in study.lines
    ]
    marked = []
    for name, text in parse_settings(settings).items():
        if name in _DECIDED:
            raise ConfigError(
                f"{name} cannot be set for a study, which decides it", hint=_DECIDED[name]
            )
        new_lines = _with_setting(lines, {name: text})
        pairs = zip(lines, new_lines, strict=True)
        if any(old != new and not is_outside(old.label) for old, new in pairs):
            marked.append(f"{name}={text}")
        lines = new_lines
    mark = f"changed: {', '.join(marked)}" if marked else None
    cut_down = "; ".join(filter(None, [study.cut_down, mark])) or None
    return replace(study, lines=tuple(lines), cut_down=cut_down)


def _with_setting(lines: Sequence[Line], setting: Mapping[str, str]) -> list[Line]:
    """The lines, changed where they have that setting; an error if none has it."""
    new_lines: list[Line] = []
    errors: list[tuple[float, UnknownSetting, Line]] = []
    for line in lines:
        try:
            new_lines.append(replace(line, config=with_settings(line.config, setting)))
        except UnknownSetting as error:
            new_lines.append(line)
            likeness = SequenceMatcher(None, error.name, error.hint or "").ratio()
            errors.append((likeness, error, line))
    if len(errors) == len(lines):
        _, nearest, line = max(errors, key=lambda entry: entry[0])
        with line.config.belonging():
            raise nearest
    return new_lines


def named_methods(names: Sequence[str] | None, default: Sequence[str]) -> tuple[str, ...]:
    return tuple(default) if names is None else tuple(parse_method(name) for name in names)


def what_is_cut(
    names: Sequence[str] | None, methods: Sequence[str], images: int | None = None, whole: int = 0
) -> list[str]:
    """In words, what is less than in the complete experiment."""
    cuts = []
    if names is not None and (left_out := set(methods) - set(map(parse_method, names))):
        cuts.append(f"{len(methods) - len(left_out)} of {len(methods)} methods")
    if images is not None and images < whole:
        cuts.append(f"{images:,} images per training instead of {whole:,}")
    return cuts


def cut_down_mark(cuts: Sequence[str], separator: str = "; ") -> str | None:
    return f"cut down: {separator.join(cuts)}" if cuts else None


def check_seeds(seeds: int) -> None:
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigError(f"seeds is {seeds}; give 1 to {_MOST_SEEDS}")
