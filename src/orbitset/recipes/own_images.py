"""A training on a user's own grouped images: what is not set is read off the table of images, or chosen and
printed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args

import torch

from orbitset.config import with_settings
from orbitset.datasets.decode import fitting_size, is_coloured
from orbitset.datasets.segments import VideoConfig
from orbitset.datasets.source import Outside, Source, TableSource
from orbitset.datasets.table import ImageTable, OnProblem, Problem, named, stop_if_any
from orbitset.encoders.config import EncoderConfig
from orbitset.errors import ConfigError, DataError, check_choice, count_of
from orbitset.orbits.observed import ObservedConfig
from orbitset.protocols import PairsSettings
from orbitset.protocols.images import Opened, decoding, grouping
from orbitset.recipes.exclusions import excluded
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.length import PATIENCE, evaluated_often
from orbitset.recipes.outside_loss import method_named
from orbitset.recipes.unused import belonging
from orbitset.seeds import stream
from orbitset.training.fit import TrainConfig

T = TypeVar("T")
DEFAULT_METHOD = "IM+R"
"""It also rectifies, and is the one method that is level with the best, or nearly, on all development sets
(docs/log.md)"""
IMAGES, _MOST_EPOCHS = 200_000, 100
"""The length of a training, whichever is less"""
_TESTED_SHARE, _FEWEST_LABELS = 0.2, 4
_ENOUGH_LABELS = 20
"""From so many labels on, some more are held out for validation"""
_FEWEST_LEFT = 3
"""Labels to train on, where a network that was trained before is validated on two of few labels"""
_APART = 8
"""Frames of one video that are nearer than this are too easy to retrieve"""
_CLASSIFY = 0.1
"""The default weight of the classification loss"""


@dataclass(frozen=True, kw_only=True)
class OrbitOptions:
    """What the command line says about observed orbits; None where it says nothing."""

    orbit: Sequence[str] | None = None
    """Factors that the members of an orbit share; by default the column of that name"""
    canonical: str | None = None
    """The target of each orbit"""
    label: str | None = None
    """The factor that is recognised"""
    classes: str | None = None
    """A factor with class labels, which are learned beside the orbits"""
    ignore: Sequence[str] | None = None
    """Factors that codes are not to tell"""
    split: str | None = None
    """factor=train/test or factor=train/validation/test, with values between commas"""
    test: str | None = None
    """factor=values to test on; images with other values are trained on"""
    exclude: Sequence[str] | None = None
    """What retrieval leaves out among images of a label; `none` for nothing"""
    crops: str | None = None
    augment: bool | None = None
    """Whether images change in training"""
    on_problem: OnProblem | None = None

    def __post_init__(self) -> None:
        if self.on_problem is not None:
            check_choice("--on-problem", self.on_problem, get_args(OnProblem))
        if self.split is not None and self.test is not None:
            raise ConfigError("--split and --test both say what is tested on; give one of them")

    @property
    def set_options(self) -> dict[str, Any]:
        """The options that say something."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}

    @property
    def arguments(self) -> list[str]:
        """The same as they are typed."""
        words = []
        for name, value in self.set_options.items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", value if isinstance(value, str) else ",".join(value)]
        return words

    def __str__(self) -> str:
        return ", ".join(word for word in self.arguments if word.startswith("--"))


def observed_images(
    source: TableSource,
    method: str = DEFAULT_METHOD,
    options: OrbitOptions | None = None,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    is_pretrained: bool = False,
) -> Experiment:
    """Orbits are rows that share some factors, in a folder its sub-folders.

    If no option says what is held out, a column `split` does; without that a part of the labels is held out
    at random, or of the orbits where there are no labels. The checkpoint is then the one that scores
    best on another part. Where labels are few, only a pretrained network has such a part; its codes
    are kept as they are if training does not improve them. Settings of orbits are heeded, since other choices
    depend on them.
    """
    options = options or OrbitOptions()
    table = source.table()
    orbit = list(options.orbit or ("orbit",))
    if options.orbit is None and "orbit" not in table.columns:
        raise ConfigError(
            "name the factors that members of an orbit share with --orbit; "
            f"{table.source} has {', '.join(table.columns) or 'no factor at all'}"
        )
    table.require(orbit)
    label = options.label or ("label" if "label" in table.columns else orbit[0])
    ignore = tuple(dict.fromkeys(options.ignore or ()))
    table.require([label, *([options.classes] if options.classes else []), *ignore])
    orbits = ObservedConfig(
        orbit=tuple(orbit),
        canonical=options.canonical or "medoid",
        label=label,
        classes=options.classes,
        ignore=ignore,
        size_px=fitting_size(table),
        is_colour=is_coloured(table),
        crops=options.crops,
        on_problem=options.on_problem or "skip",
    )
    orbits = _with_orbits(orbits, options, settings)
    if orbits.target is not None and orbits.target[0] in table.columns:
        factor, value = orbits.target
        check_choice(factor, value, sorted(set(table.columns[factor])))
    whole, table = table, usable(table, orbits)
    evaluation = _evaluation(table, whole, orbits, options, is_pretrained=is_pretrained)
    is_trained = [value in evaluation.train for value in table.columns[evaluation.split_by]]
    trained = table.at([at for at, is_used in enumerate(is_trained) if is_used])
    num_orbits = len(trained.orbits(orbits.orbit))
    if num_orbits < 2:
        raise DataError(f"{source.spec} has {num_orbits} orbits to train on; at least 2 are needed")
    shared = [factor for factor in orbits.ignore if factor in orbits.orbit][:1]
    can_share = bool(shared) and len(trained.orbits(shared)) < num_orbits
    if can_share and orbits.alike is None and orbits.orbits_per_batch > 1:
        orbits = replace(orbits, alike=shared[0], alike_values=2)
    most_members = max(map(len, table.orbits(orbits.orbit).values()))
    return _experiment(
        source, method, orbits, evaluation, settings, (num_orbits, most_members, len(trained))
    )


def observed_videos(
    opened: Opened,
    method: str = DEFAULT_METHOD,
    options: OrbitOptions | None = None,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Experiment:
    """Orbits are segments of videos, their targets the frames in the middle.

    The start of each video is trained on; frames of the rest have to retrieve others of their segment that
    are not too near. Settings of orbits and videos are heeded, since other choices depend on them.
    """
    options = options or OrbitOptions()
    orbits = ObservedConfig(
        orbit=("segment",),
        canonical="middle",
        label="segment",
        size_px=64,
        is_colour=True,
        on_problem=options.on_problem or "skip",
    )
    orbits = _with_orbits(orbits, options, settings)
    if orbits.orbit != ("segment",) or orbits.target is not None or orbits.crops is not None:
        raise ConfigError(
            "the orbits of videos are segments, whose target is their first or middle frame or their medoid; "
            "leave orbits.orbit and orbits.crops as they are"
        )
    video = _with_own(VideoConfig(), settings, "video.")
    source = opened.source
    opened.observed = source.load_observed(
        grouping(orbits), decoding(orbits, video, is_private=is_private(settings))
    )
    trained = opened.observed[0].where("split", ["train"])
    num_orbits = len(trained.factors["segment"].unique())
    if num_orbits < 2:
        raise DataError(
            f"{source.spec} has {num_orbits} segments to train on; at least 2 are needed",
            hint="make them shorter: --set video.segments.length=8",
        )
    parts = PairsSettings(split_by="split", train=("train",), test=("test",), apart=_APART)
    counts = (num_orbits, video.segments.length, len(trained))
    return replace(_experiment(source, method, orbits, parts, settings, counts), video=video)


def is_private(settings: Mapping[str, str]) -> bool:
    """Whether settings say that nothing may be written from which an image could be seen."""
    return settings.get("is_private") == "true"


def _experiment(
    source: Source,
    method_name: str,
    orbits: ObservedConfig,
    evaluation: PairsSettings,
    settings: Mapping[str, str],
    counts: tuple[int, int, int],
) -> Experiment:
    """The rest of the configuration; counts are of orbits that are trained on, of the members of the largest
    orbit, and of images that are trained on."""
    num_orbits, most_members, num_images = counts
    method = method_named(method_name)
    members = min(method.members_per_batch, most_members)
    if "orbits.members_per_batch" in settings:
        members = orbits.members_per_batch
    per_batch = max(1, round(method.images_per_batch / members))
    orbits = replace(orbits, orbits_per_batch=min(per_batch, num_orbits), members_per_batch=members)
    config = Experiment(
        name=_name(source),
        data=source.spec,
        method=method_name,
        protocol="pairs",
        loss=method.settings(),
        orbits=orbits,
        encoder=EncoderConfig(code_size=256),
        classify_weight=_CLASSIFY if orbits.classes else 0.0,
        train=TrainConfig(keep="best", patience=PATIENCE)
        if evaluation.validation
        else TrainConfig(),
        evaluation=evaluation,
    )
    config = with_settings(config, method.default_settings("own-images"))
    return evaluated_often(config, min(_MOST_EPOCHS, IMAGES / num_images))


def _with_orbits(
    orbits: ObservedConfig, options: OrbitOptions, settings: Mapping[str, str]
) -> ObservedConfig:
    """The same with its own settings. Those of one kind of change turn this kind on, --augment both."""
    plain = {name: text for name, text in settings.items() if name.count(".") == 1}
    own = _with_own(orbits, plain, "orbits.")
    size_px = own.size_px or orbits.size_px
    assert size_px is not None
    moderate = own.augmented(size_px)
    for kind in ("affine", "photometric"):
        names = [name for name in settings if name.startswith(f"orbits.{kind}.")]
        if names and options.augment is False:
            raise ConfigError(
                f"--no-augment and {names[0]} contradict each other; give one of them"
            )
        if names or options.augment:
            own = replace(own, **{kind: getattr(moderate, kind)})
    return _with_own(own, settings, "orbits.")


def _with_own(config: T, settings: Mapping[str, str], prefix: str) -> T:
    """The same with those of the settings that begin so."""
    own = {
        name.removeprefix(prefix): text
        for name, text in settings.items()
        if name.startswith(prefix)
    }
    with belonging(is_observed=True, prefix=prefix):
        return with_settings(config, own)


def _name(source: Source) -> str:
    """The name of the folder or manifest; if that is called manifest, or is a pattern, of its folder."""
    if isinstance(source, Outside):
        return source.spec.partition(":")[0]
    path = Path(source.spec).resolve()
    if path.is_dir():
        return path.name
    is_bare = path.stem == "manifest" or "{" in path.stem
    return path.parent.name if is_bare else path.stem


def usable(table: ImageTable, orbits: ObservedConfig) -> ImageTable:
    """The table without rows that cannot be used, which must not choose a split."""
    return grouping(orbits).usable(table.without(table.empty(orbits.factors), "skip"))


def _evaluation(
    table: ImageTable,
    whole: ImageTable,
    orbits: ObservedConfig,
    options: OrbitOptions,
    *,
    is_pretrained: bool,
) -> PairsSettings:
    """How the usable rows are split; the whole table says why there are none."""
    if options.split is not None:
        by, train, validation, test = _parse_split(options.split)
        table.require([by])
    elif options.test is not None:
        by, test = _parse_test(options.test)
        values = set(table.require([by]).columns[by])
        for value in test:
            if value in whole.columns[by] and value not in values:
                raise DataError(f"no image of {by} {value} can be used: {named(table.left_out)}")
            check_choice(by, value, sorted(values))
        validation, train = (), tuple(sorted(values - set(test)))
        if not train:
            reasons = f": {named(table.left_out)}" if table.left_out else ""
            raise DataError(f"no image of another {by} is left to train on{reasons}")
    elif "split" in table.columns:
        by = "split"
        train, validation, test = _column_split(table, orbits)
    else:
        assert orbits.label is not None
        by = orbits.label
        train, validation, test = _random_split(table, by, is_pretrained=is_pretrained)
    return PairsSettings(
        split_by=by,
        train=train,
        validation=validation,
        test=test,
        exclude=excluded(table, table.where(by, test), orbits, by, options.exclude),
    )


Parts = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Values to train on, to validate on and to test on"""


def _column_split(table: ImageTable, orbits: ObservedConfig) -> Parts:
    values = sorted(set(table.columns["split"]))
    validation = tuple(value for value in values if value in ("val", "validation", "va"))
    if not {"train", "test"} <= set(values):
        raise DataError(
            f"the column split of {table.source} has {', '.join(values)}; it needs train and test"
        )
    if orbits.on_problem == "stop":
        in_no_part = [
            Problem(row, f"its split is {value}, none of train, validation and test")
            for row, value in zip(table.rows, table.columns["split"], strict=True)
            if value not in ("train", *validation, "test")
        ]
        stop_if_any(table.source, in_no_part)
    return ("train",), validation, ("test",)


def _random_split(table: ImageTable, label: str, *, is_pretrained: bool) -> Parts:
    values = sorted(set(table.columns[label]))
    if len(values) < _FEWEST_LABELS:
        unusable = f"; left out: {named(table.left_out)}" if table.left_out else ""
        has_others = len(table.columns) > 1
        raise ConfigError(
            f"{label} has {count_of(len(values), 'value')} in {table.source}, too few to train on some and "
            f"test on others: at least {_FEWEST_LABELS} are needed{unusable}",
            hint="say how to split with --split, such as session=1/2" if has_others else None,
        )
    order = torch.randperm(len(values), generator=stream("tested labels")).tolist()
    num_test = max(2, round(len(values) * _TESTED_SHARE))
    num_validation = num_test // 2 if len(values) >= _ENOUGH_LABELS else 0
    if is_pretrained and not num_validation and len(values) >= num_test + 2 + _FEWEST_LEFT:
        num_validation = 2
    num_held_out = num_test + num_validation
    places = (order[num_held_out:], order[num_test:num_held_out], order[:num_test])
    train, validation, test = (tuple(sorted(values[at] for at in part)) for part in places)
    return train, validation, test


def _values(text: str) -> tuple[str, ...]:
    return tuple(value.strip() for value in text.split(",") if value.strip())


def _parse_split(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """
    >>> _parse_split("session=1,2/3/4")
    ('session', ('1', '2'), ('3',), ('4',))
    """
    by, equals, rest = text.partition("=")
    parts = [_values(part) for part in rest.split("/")]
    if not (by.strip() and equals) or len(parts) not in (2, 3) or not (parts[0] and parts[-1]):
        raise ConfigError(
            f"the split {text!r} is not understood; write factor=train/test or "
            "factor=train/validation/test, such as session=1,2/3/4"
        )
    return by.strip(), parts[0], parts[1] if len(parts) == 3 else (), parts[-1]


def _parse_test(text: str) -> tuple[str, tuple[str, ...]]:
    """
    >>> _parse_test("session=3,4")
    ('session', ('3', '4'))
    """
    by, equals, rest = text.partition("=")
    if not (by.strip() and equals and _values(rest)):
        raise ConfigError(f"--test {text!r} is not understood; write factor=values, as session=3,4")
    return by.strip(), _values(rest)
