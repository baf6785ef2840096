"""A training on a user's own images, in a manifest or in folders: what is not said is read off the table, or
chosen and printed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import torch

from orbitset.config import with_settings
from orbitset.datasets.decode import fitting_size, is_coloured
from orbitset.datasets.named import has_sub_folders, load_observed, table_at
from orbitset.datasets.table import ImageTable, Problem, named, orbit_problems, stop_if_any
from orbitset.encoders.rectifying import EncoderConfig
from orbitset.errors import ConfigError, DataError, check_choice
from orbitset.orbits.observed import ObservedConfig, OnProblem
from orbitset.protocols import PairsSettings, VideoConfig
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.length import evaluated_often
from orbitset.recipes.outside_loss import method_named
from orbitset.recipes.unused import belonging
from orbitset.seeds import stream
from orbitset.training.fit import TrainConfig

T = TypeVar("T")
IMAGES, _MOST_EPOCHS = 200_000, 100
"""The length of a training, whichever is less"""
_TESTED_SHARE, _FEWEST_LABELS = 0.2, 4
_ENOUGH_LABELS = 20
"""To hold out some more, by which the weights that are kept are chosen"""
_APART = 8
"""Frames of one video that are nearer than this are too easy to find"""

_BATCH = 72
"""Images in a batch, about"""
_CLASSIFY = 0.1
"""The weight of classes that are learned beside the orbits, if nothing else is said"""


def observed_images(
    source: Path,
    method: str = "OJ",
    *,
    orbit: Sequence[str] | None = None,
    canonical: str | None = None,
    label: str | None = None,
    classes: str | None = None,
    split: str | None = None,
    test: str | None = None,
    crops: str | None = None,
    on_problem: str = "skip",
    settings: Sequence[str] = (),
) -> Experiment:
    """Orbits are rows that share the factors in `orbit`, by default the column of that name, in a folder of
    images the sub-folders.

    `split` is factor=train/test or factor=train/validation/test with values between commas, `test` is
    factor=values, the others being trained on. Without them a column `split` says what each row is for;
    without that a part of the labels is held out at random, or of the orbits where there are no labels. The
    weights that are kept are then those best at finding the orbits of another part.
    Of `settings` those about orbits are heeded, since other choices depend on them.
    """
    if split is not None and test is not None:
        raise ConfigError("--split and --test both say what is tested on; give one of them")
    table = table_at(str(source), on_problem="skip")
    fixed = _columns(table, orbit, "orbit", "the factors that members of an orbit share")
    recognised = label or ("label" if "label" in table.columns else fixed[0])
    table.require([*fixed, recognised, *([classes] if classes else [])])
    orbits = ObservedConfig(
        orbit=tuple(fixed),
        canonical=canonical or ("medoid" if has_sub_folders(str(source)) else None),
        label=recognised,
        classes=classes,
        size_px=fitting_size(table),
        is_colour=is_coloured(table),
        crops=crops,
        on_problem=cast(OnProblem, on_problem),
    )
    orbits = _with_own(orbits, settings, "orbits.")
    fixed = list(orbits.orbit)
    whole, table = table, usable(table, orbits)
    evaluation = _evaluation(table, whole, orbits, split, test)
    trained = [has in evaluation.train for has in table.columns[evaluation.split_by]]
    num_orbits = len(
        {key for key, is_used in zip(_keys(table, fixed), trained, strict=True) if is_used}
    )
    if num_orbits < 2:
        raise DataError(f"{source} has {num_orbits} orbits to train on; at least 2 are needed")
    config = _experiment(
        source,
        method,
        orbits,
        evaluation,
        settings,
        num_orbits=num_orbits,
        most_members=_largest(table, fixed),
    )
    return evaluated_often(config, min(_MOST_EPOCHS, IMAGES / sum(trained)))


def observed_videos(
    source: Path, method: str = "OJ", *, on_problem: str = "skip", settings: Sequence[str] = ()
) -> Experiment:
    """Orbits are segments of videos, their targets the frames in the middle. The start of each video is
    trained on, and frames of the rest are to be found by others of their segment that are not too near.
    Of `settings` those about orbits and videos are heeded, since other choices depend on them.
    """
    orbits = ObservedConfig(
        orbit=("segment",),
        canonical="middle",
        label="segment",
        size_px=64,
        is_colour=True,
        on_problem=cast(OnProblem, on_problem),
    )
    orbits = _with_own(orbits, settings, "orbits.")
    if orbits.orbit != ("segment",) or orbits.target is not None or orbits.crops is not None:
        raise ConfigError(
            "the orbits of videos are segments, whose target is their first or middle frame or their medoid; "
            "leave orbits.orbit and orbits.crops as they are"
        )
    video = _with_own(VideoConfig(), settings, "video.")
    seen, _ = load_observed(
        str(source),
        orbit=orbits.orbit,
        size_px=orbits.size_px,
        is_colour=orbits.is_colour,
        on_problem=orbits.on_problem,
        segments=video.segments,
        trained_share=video.trained_share,
        is_kept=not any(text.replace(" ", "") == "is_private=true" for text in settings),
    )
    trained = seen.where("split", ["train"])
    num_orbits = len(trained.factors["segment"].unique())
    if num_orbits < 2:
        raise DataError(
            f"{source} has {num_orbits} segments to train on; at least 2 are needed",
            hint="make them shorter: --set video.segments.length=8",
        )
    config = _experiment(
        source,
        method,
        orbits,
        PairsSettings(split_by="split", train=("train",), test=("test",), apart=_APART),
        settings,
        num_orbits=num_orbits,
        most_members=video.segments.length,
    )
    config = replace(config, video=video)
    return evaluated_often(config, min(_MOST_EPOCHS, IMAGES / len(trained)))


def _experiment(
    source: Path,
    method: str,
    orbits: ObservedConfig,
    evaluation: PairsSettings,
    settings: Sequence[str],
    *,
    num_orbits: int,
    most_members: int,
) -> Experiment:
    """What is left to choose, once it is known what is learned from."""
    chosen = method_named(method)
    names = {text.partition("=")[0].strip() for text in settings}
    members = min(chosen.members_per_batch, most_members)
    if "orbits.members_per_batch" in names:
        members = orbits.members_per_batch
    per_batch = max(1, round(_BATCH / members))
    orbits = replace(orbits, orbits_per_batch=min(per_batch, num_orbits), members_per_batch=members)
    config = Experiment(
        name=_name(source),
        data=str(source.resolve()),
        method=method,
        protocol="pairs",
        loss=chosen.settings(),
        orbits=orbits,
        encoder=EncoderConfig(code_size=256),
        classify_weight=_CLASSIFY if orbits.classes else 0.0,
        train=TrainConfig(keep="best" if evaluation.validation else "last"),
        evaluation=evaluation,
    )
    return with_settings(config, chosen.default_settings("faces"))


def _with_own(config: T, settings: Sequence[str], prefix: str) -> T:
    """The same with those of the settings that begin so."""
    texts = [text.strip() for text in settings]
    own = [text.removeprefix(prefix) for text in texts if text.startswith(prefix)]
    with belonging(is_observed=True, prefix=prefix):
        return with_settings(config, own)


def _name(source: Path) -> str:
    """Of the folder, or of the manifest unless it is just called so; of a pattern's folder."""
    source = source.resolve()
    if source.is_dir():
        return source.name
    is_bare = source.stem == "manifest" or "{" in source.stem
    return source.parent.name if is_bare else source.stem


def _columns(
    table: ImageTable, asked: Sequence[str] | None, default: str, meaning: str
) -> list[str]:
    if asked is None and default not in table.columns:
        known = ", ".join(table.columns) or "no factor at all"
        raise ConfigError(f"name {meaning} with --{default}; {table.source} has {known}")
    chosen = list(asked) if asked is not None else [default]
    table.require(chosen)
    return chosen


def usable(table: ImageTable, orbits: ObservedConfig) -> ImageTable:
    """Without rows that cannot be used, whatever becomes of them later: they must not choose a split."""
    empty = [
        Problem(row, f"its {name} is empty")
        for name in orbits.factors
        for row, value in zip(table.rows, table.require([name]).columns[name], strict=True)
        if not value
    ]
    table = table.without(empty, "skip")
    problems = orbit_problems(table, orbits.orbit, orbits.target, min_members=orbits.min_members)
    return table.without(problems, "skip")


def _evaluation(
    table: ImageTable,
    whole: ImageTable,
    orbits: ObservedConfig,
    split: str | None,
    tested: str | None,
) -> PairsSettings:
    """Of the rows that can be used; the whole table is for saying why there are none."""
    if split is not None:
        by, train, validation, test = _parse(split)
        table.require([by])
    elif tested is not None:
        by, test = _parse_test(tested)
        known = set(table.require([by]).columns[by])
        for value in test:
            if value in whole.columns[by] and value not in known:
                raise DataError(f"no image of {by} {value} can be used: {named(table.left_out)}")
            check_choice(by, value, sorted(known))
        validation, train = (), tuple(sorted(known - set(test)))
        if not train:
            left = f": {named(table.left_out)}" if table.left_out else ""
            raise DataError(f"no image of another {by} is left to train on{left}")
    elif "split" in table.columns:
        by = "split"
        found = sorted(set(table.columns["split"]))
        validation = tuple(name for name in found if name in ("val", "validation", "va"))
        train, test = (tuple(name for name in found if name == part) for part in ("train", "test"))
        if not (train and test):
            raise DataError(
                f"the column split of {table.source} has {', '.join(found)}; it needs train and test"
            )
        if orbits.on_problem == "stop":
            stop_if_any(table.source, _in_no_part(table, {*train, *validation, *test}))
    else:
        assert orbits.label is not None
        by = orbits.label
        values = sorted(set(table.columns[by]))
        if len(values) < _FEWEST_LABELS:
            raise ConfigError(
                f"{by} has {len(values)} values in {table.source}, too few to train on some and test on "
                "others; say how to split with --split, such as session=1/2"
            )
        order = torch.randperm(len(values), generator=stream("tested labels")).tolist()
        count = max(2, round(len(values) * _TESTED_SHARE))
        shuffled = [values[at] for at in order]
        test, rest = tuple(sorted(shuffled[:count])), shuffled[count:]
        kept = count // 2 if len(values) >= _ENOUGH_LABELS else 0
        validation, train = tuple(sorted(rest[:kept])), tuple(sorted(rest[kept:]))
    return PairsSettings(
        split_by=by,
        train=train,
        validation=validation,
        test=test,
        exclude=_too_alike(table.where(by, test), orbits, by),
    )


def _in_no_part(table: ImageTable, known: set[str]) -> list[Problem]:
    return [
        Problem(row, f"its split is {value}, none of train, validation and test")
        for row, value in zip(table.rows, table.columns["split"], strict=True)
        if value not in known
    ]


def _too_alike(table: ImageTable, orbits: ObservedConfig, split_by: str) -> tuple[str, ...]:
    """The factors of the orbits by which two images of a label can be alike: those that vary within one."""
    assert orbits.label is not None
    labels = table.columns[orbits.label]
    named = [*orbits.orbit, *(orbits.target or ())[:1]]
    return tuple(
        name
        for name in named
        if name not in (orbits.label, split_by)
        and len(set(zip(labels, table.columns[name], strict=True))) > len(set(labels))
    )


def described_orbits(config: Experiment) -> str:
    """What was chosen, in words."""
    assert isinstance(config.orbits, ObservedConfig)
    orbits, evaluation = config.orbits, config.evaluation
    colour = "colour" if orbits.is_colour else "grey"
    size = "the images' own size" if orbits.size_px is None else f"{orbits.size_px} px"
    parts = [
        f"an orbit shares {', '.join(orbits.orbit)}; its target is {_target(orbits)}",
        f"{evaluation.split_by} {_few(evaluation.train)} to train, "
        + (f"{_few(evaluation.validation)} to stop, " if evaluation.validation else "")
        + f"{_few(evaluation.test)} to test",
        f"retrieval leaves out images of the same {orbits.label} with the same "
        f"{' or '.join(evaluation.exclude)}"
        if evaluation.exclude
        else f"retrieval leaves out frames nearer than {evaluation.apart}"
        if evaluation.apart
        else "retrieval leaves nothing out",
        *([f"classes of {orbits.classes} are learned beside them"] if orbits.classes else []),
        f"{size}, {colour}; batches of {orbits.orbits_per_batch} orbits x "
        f"{orbits.members_per_batch} members"
        + (f", by {orbits.alike}, {orbits.alike_values} at a time" if orbits.alike else "")
        + f"; {config.train.epochs:g} epochs",
    ]
    return "\n".join(parts)


def _target(orbits: ObservedConfig) -> str:
    if orbits.target is not None:
        return str(orbits.canonical)
    return f"its {orbits.chosen}{'' if orbits.chosen == 'medoid' else ' member'}"


def _few(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 6 else f"{', '.join(values[:5])} … ({len(values)})"


def _parse(split: str) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """
    >>> _parse("session=1,2/3/4")
    ('session', ('1', '2'), ('3',), ('4',))
    """
    by, equals, rest = split.partition("=")
    parts = [
        tuple(value.strip() for value in part.split(",") if value.strip())
        for part in rest.split("/")
    ]
    if not (by.strip() and equals) or len(parts) not in (2, 3) or not (parts[0] and parts[-1]):
        raise ConfigError(
            f"the split {split!r} is not understood; write factor=train/test or "
            "factor=train/validation/test, such as session=1,2/3/4"
        )
    return by.strip(), parts[0], parts[1] if len(parts) == 3 else (), parts[-1]


def _parse_test(text: str) -> tuple[str, tuple[str, ...]]:
    """
    >>> _parse_test("session=3,4")
    ('session', ('3', '4'))
    """
    by, equals, rest = text.partition("=")
    values = tuple(value.strip() for value in rest.split(",") if value.strip())
    if not (by.strip() and equals and values):
        raise ConfigError(f"--test {text!r} is not understood; write factor=values, as session=3,4")
    return by.strip(), values


def _keys(table: ImageTable, orbit: Sequence[str]) -> list[tuple[str, ...]]:
    return list(zip(*(table.columns[name] for name in orbit), strict=True))


def _largest(table: ImageTable, orbit: Sequence[str]) -> int:
    keys = _keys(table, orbit)
    counts: dict[tuple[str, ...], int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return max(counts.values())
