"""From what was typed to one complete configuration."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orbitset.config import with_settings
from orbitset.datasets.decode import Decoding
from orbitset.datasets.source import (
    FACES,
    MULTI_PIE,
    Folder,
    Plain,
    Single,
    Source,
    TableSource,
    UnknownSource,
    Videos,
    is_outside_source,
    open_source,
)
from orbitset.errors import ConfigError
from orbitset.limits import parse_json
from orbitset.models.folder import read_description
from orbitset.protocols.images import Opened
from orbitset.recipes.affine_images import (
    affine_digits,
    affine_images,
    described_plain,
    plain_images,
)
from orbitset.recipes.affine_mnist import affine_mnist
from orbitset.recipes.augmenting import leaves_augmentation_open, with_augmentation
from orbitset.recipes.default_network import default_network
from orbitset.recipes.described import described_network, described_orbits
from orbitset.recipes.experiment import (
    Experiment,
    check_experiment,
    read_experiment,
    with_protocol,
)
from orbitset.recipes.length import evaluated_often
from orbitset.recipes.methods import parse_method
from orbitset.recipes.own_images import (
    DEFAULT_METHOD,
    OrbitOptions,
    is_private,
    observed_images,
    observed_videos,
)
from orbitset.recipes.pretrained import begins_pretrained, with_network
from orbitset.recipes.request import Request
from orbitset.recipes.short import why_short, with_spread_codes
from orbitset.run_folder import Run

RECIPES = {"affine-mnist": affine_mnist, "affine-digits": affine_digits}


@dataclass(frozen=True)
class Composed:
    """A configuration, and the source of its images and what was loaded to make it."""

    config: Experiment
    source: Opened | None = None
    why_network: str | None = None
    """Why its network was chosen, if the user named none"""
    why_augmented: str | None = None
    """Why its images are augmented or not, if the user did not say"""
    why_spread: str | None = None
    """Why its codes are centred, if its length chose that"""
    most_orbits: int | None = None
    """How many orbits a batch can have, where that is known"""

    def __str__(self) -> str:
        """What was chosen for a user's own images, in words; nothing about a recipe."""
        if self.config.is_observed:
            is_folder = self.source is not None and isinstance(self.source.source, Folder)
            words = described_orbits(self.config, is_folder=is_folder)
            network = described_network(self.config, self.why_network)
            return "\n".join(filter(None, (words, self.why_spread, self.why_augmented, network)))
        is_plain = self.source is not None and isinstance(self.source.source, Plain)
        return described_plain(self.config) if is_plain else ""

    @property
    def is_own(self) -> bool:
        """Whether it is on images of the user's own."""
        return self.source is not None and not isinstance(self.source.source, Single)


def compose(
    request: Request, *, config_file: Path | None = None, resumed: Run | None = None
) -> Composed:
    """The run's own configuration when resuming, a file's, or a recipe's, changed as the user asks."""
    request, settings = request.named()
    request.trust_names(settings)
    if config_file is not None and (request.source is not None or resumed is not None):
        raise ConfigError("--config describes the whole run; leave out X and --resume beside it")
    stored = _stored(request.source, config_file, resumed)
    if stored is not None:
        _refuse_another_training(stored, request, settings.pop("encoder.backbone", request.encoder))
        request = replace(request, encoder=None)
    if request.encoder is not None and request.init is not None:
        raise ConfigError("--init takes the model's network; leave out --encoder beside it")
    if stored is not None:
        composed = Composed(stored)
    else:
        request, composed = _begun(request, settings)
    config = composed.config
    if request.protocol is not None and request.protocol != config.protocol:
        config = with_protocol(config, request.protocol)
    if request.measures:
        config = replace(config, measures=request.measures)
    if request.init is not None:
        config = _beginning_with(config, request.init)
    with config.belonging():
        config = _with_numbers(config, request, settings, composed)
    composed = _suited_to_length(replace(composed, config=config), request, settings)
    named_by = request.init or config_file or (None if resumed is None else resumed.path)
    if named_by is not None:
        check_experiment(composed.config, named_by)
    return composed


def _stored(source: str | None, config_file: Path | None, resumed: Run | None) -> Experiment | None:
    """The configuration of the run that goes on, or of a file."""
    if resumed is not None and source is None:
        resumed.require()
    if resumed is not None and resumed.exists:
        return _of_run(resumed, source)
    return None if config_file is None else read_experiment(_read_config(config_file))


def _begun(request: Request, settings: Mapping[str, str]) -> tuple[Request, Composed]:
    """A new training, and the request with the network that was chosen for it, if the user named none."""
    if request.method is not None:
        request = replace(request, method=parse_method(request.method))
    defaults = ("OJ",) if request.source in RECIPES else (DEFAULT_METHOD, "OJ")
    request.check(settings, defaults if request.method is None else (request.method,))
    source = _opened(request.source)
    opened = None if source is None else Opened(source)
    composed = _of_source(opened, request, settings)
    if not _is_network_open(composed.config, request, settings):
        return request, composed
    network, why_network = default_network(composed.config.observed)
    if network is not None:  # few labels are then divided in another way
        request = replace(request, encoder=network)
        composed = _of_source(opened, request, settings)
    return request, replace(composed, why_network=why_network)


def _suited_to_length(
    composed: Composed, request: Request, settings: Mapping[str, str]
) -> Composed:
    """The same with what the length of a training on grouped images decides, unless the user does."""
    source = None if composed.source is None else composed.source.source
    if not isinstance(source, TableSource):
        return composed
    config, why_spread, why_augmented = composed.config, None, None
    short = why_short(source, config, request.minutes)
    if "encoder.code_norm" not in settings:
        config, why_spread = with_spread_codes(config, short)
    if leaves_augmentation_open(request.observed, settings):
        config, why_augmented = with_augmentation(source, config, short)
    return replace(composed, config=config, why_spread=why_spread, why_augmented=why_augmented)


def _refuse_another_training(stored: Experiment, request: Request, network: str | None) -> None:
    """Refuse what a stored training cannot change alone: its other settings were chosen for what it is."""
    of_stored = (None, stored.encoder.backbone, stored.encoder.backbone.partition("@")[0])
    has_method = parse_method(request.method or stored.method) == stored.method
    others = (
        "" if request.init is None else "--init",
        "" if has_method else f"--method {request.method}",
        "" if network in of_stored else f"--encoder {network}",
        str(request.observed),
    )
    for name in filter(None, others):
        raise ConfigError(
            f"{name} describes a new training; this one is described by its own configuration",
            hint="change single settings with --set, or name what to train on: orbitset train X …",
        )


def _is_network_open(config: Experiment, request: Request, settings: Mapping[str, str]) -> bool:
    """Whether nothing that the user says is about the network."""
    is_named = request.encoder is not None or request.init is not None
    is_set = any(name.startswith("encoder.") for name in settings)
    return config.is_observed and not (is_named or is_set or config.has_transformer)


def searched_config(request: Request) -> Experiment:
    """The configuration from which a search for settings begins."""
    if isinstance(_opened(request.source), Plain):
        raise ConfigError(
            f"{request.source} has images without labels; settings are searched for by one-shot accuracy"
        )
    return compose(request).config


def _of_run(run: Run, source: str | None) -> Experiment:
    if run.kind != "run":
        raise ConfigError(f"{run.path} holds a {run.kind}", hint=run.resume_command)
    config = read_experiment(run.config)
    if source is not None and config.data not in (source, _path(source)) and source != config.name:
        raise ConfigError(f"{run.path} holds a run of {config.name}, not of {source}")
    return config


def _opened(spec: str | None) -> Source | None:
    """The source of a name or path; None for a recipe. A path comes before a name."""
    if spec is None:
        raise ConfigError(
            "nothing to train was named",
            hint="give a recipe or a path: orbitset train affine-digits, or --resume with --out",
        )
    if spec in FACES or spec.startswith(MULTI_PIE):
        name = spec.partition(":")[0]
        raise ConfigError(f"{name} is an experiment of its own", hint=f"orbitset reproduce {name}")
    try:
        return open_source(spec if is_outside_source(spec) else _path(spec))
    except UnknownSource:
        if Path(spec).exists():
            raise
    if spec not in RECIPES:
        folder = Path(spec).parent
        beside = (
            [f"{path}/" for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        )
        near = difflib.get_close_matches(spec, [*RECIPES, *beside], 1)
        raise ConfigError(
            f"there is no file, folder or recipe {spec!r}; the recipes are {', '.join(RECIPES)}",
            hint=f"did you mean {near[0]}?" if near else None,
        )
    return None


def _of_source(opened: Opened | None, request: Request, settings: Mapping[str, str]) -> Composed:
    """A new configuration for a recipe or data.

    Observed orbits are learned by `DEFAULT_METHOD` if no method is named, computed ones by the paper's.
    """
    options, source = request.observed, None if opened is None else opened.source
    is_observed = isinstance(source, Videos | TableSource)
    method = request.method or (DEFAULT_METHOD if is_observed else "OJ")
    if opened is None or source is None:
        assert request.source is not None
        _refuse_computed(options)
        return Composed(RECIPES[request.source](method))
    if isinstance(source, Videos):
        hint = "say how long with --set video.segments.length=16"
        _refuse(replace(options, augment=None), "those of videos are segments", hint=hint)
        return Composed(observed_videos(opened, method, options, settings=settings), opened)
    if isinstance(source, TableSource):
        network = settings.get("encoder.backbone", request.encoder)
        is_pretrained = request.init is None and begins_pretrained(network, settings)
        config = observed_images(
            source, method, options, settings=settings, is_pretrained=is_pretrained
        )
        return Composed(config, opened)
    if isinstance(source, Plain):
        _refuse(options, f"{source.spec} has no sub-folders: every image there is an orbit")
        opened.splits = source.load_splits(
            Decoding(
                is_colour=None,
                on_problem=options.on_problem or "skip",
                is_cached=not is_private(settings),
            )
        )
        num, channels, _, size_px = opened.splits.train.images.shape
        config = plain_images(source.spec, size_px, num, method, is_colour=channels == 3)
        return Composed(config, opened, most_orbits=num)
    _refuse_computed(options)
    splits = opened.splits = source.load_splits()
    size_px, has_labels = max(splits.train.images.shape[-2:]), splits.train.labels is not None
    num = len(splits.train)
    config = affine_images(source.spec, size_px, num, method, has_labels=has_labels)
    return Composed(config, opened, most_orbits=num)


def _refuse_computed(options: OrbitOptions) -> None:
    if options.set_options:
        raise ConfigError(
            f"{options} describe the orbits of a manifest, a CSV or Parquet file, or of a folder"
        )


def _refuse(options: OrbitOptions, reason: str, *, hint: str | None = None) -> None:
    wrong = replace(options, on_problem=None)
    if wrong.set_options:
        raise ConfigError(f"{wrong} describe the orbits of a manifest; {reason}", hint=hint)


def _with_numbers(
    config: Experiment,
    request: Request,
    settings: Mapping[str, str],
    composed: Composed,
) -> Experiment:
    """The same with the length, the seed, the network and the settings of the request."""
    values: dict[str, str] = {}
    network = settings.get("encoder.backbone", request.encoder)
    if network is not None and request.init is None:
        config, values = with_network(
            config,
            network,
            settings,
            is_own=composed.is_own,
            is_length_set=request.epochs is not None,
        )
    if request.epochs is not None and config.is_observed:
        config = evaluated_often(config, request.epochs)
    elif request.epochs is not None:
        values["train.epochs"] = str(request.epochs)
    if request.seed is not None:
        values["seed"] = str(request.seed)
    batch = _equal_batch(config, settings, composed.most_orbits)
    return with_settings(config, {**values, **settings, **batch})


def _equal_batch(
    config: Experiment, settings: Mapping[str, str], most_orbits: int | None
) -> dict[str, str]:
    """Where only the members of a batch are set, its orbits change with them: it keeps its number of
    images, if there are as many orbits."""
    members = settings.get("orbits.members_per_batch", "")
    if not members.isdecimal() or "orbits.orbits_per_batch" in settings or int(members) < 1:
        return {}
    images = config.orbits.orbits_per_batch * config.orbits.members_per_batch
    orbits = max(1, round(images / int(members)))
    return {"orbits.orbits_per_batch": str(min(orbits, most_orbits or orbits))}


def _beginning_with(config: Experiment, folder: Path) -> Experiment:
    """The same with a model's network, and images as it takes them."""
    about = read_description(folder)
    if about.network.has_transformer != config.has_transformer:
        has = "a" if about.network.has_transformer else "no"
        raise ConfigError(
            f"the model in {folder} has {has} spatial transformer; choose a method that has {has} such, by "
            f"{'adding' if about.network.has_transformer else 'leaving out'} -STN"
        )
    encoder = replace(about.network.encoder, is_pretrained=False)
    loss = config.loss
    if not encoder.has_free_decoder and not loss.shapes_codes:
        loss = replace(loss, shapes_codes=True)
    if encoder.code_norm != config.encoder.code_norm and config.margin is not None:
        fraction = None if encoder.code_norm == "none" else loss.margin_fraction
        loss = replace(loss, margin=None, margin_fraction=fraction)  # of the other norm's distances
    orbits = config.orbits.showing(size_px=about.input.size_px, is_colour=about.input.is_colour)
    return replace(config, orbits=orbits, init=str(folder.resolve()), encoder=encoder, loss=loss)


def _path(source: str) -> str:
    return str(Path(source).resolve())


def _read_config(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        content = parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no configuration; give the config.json of a run")
    return content
