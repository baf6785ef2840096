"""From what was typed to one complete configuration."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orbitset.config import with_settings
from orbitset.datasets.named import FACES, MULTI_PIE, is_table, is_video, load_splits
from orbitset.datasets.plain import is_plain, load_plain
from orbitset.encoders.named import check_backbone
from orbitset.encoders.rectifying import PAPERS
from orbitset.errors import ConfigError
from orbitset.experiments.config import (
    Experiment,
    ExperimentConfig,
    ObservedExperiment,
    read_experiment,
    with_method,
)
from orbitset.experiments.faces import evaluated_often
from orbitset.experiments.manifests import described_orbits, observed_images, observed_videos
from orbitset.experiments.methods import Method, parse_method
from orbitset.experiments.recipes import affine_images, described_plain, plain_images, recipe
from orbitset.models.folder import read_description
from orbitset.runs import Run


def compose_config(
    source: str | None,
    *,
    method: str | None,
    epochs: float | None,
    seed: int | None,
    settings: list[str],
    config_file: Path | None,
    resumed: Run | None,
    observed: Mapping[str, Any] | None = None,
    init: Path | None = None,
    encoder: str | None = None,
) -> Experiment:
    """The run's own configuration when resuming, a file's, or a recipe's; the other settings on top.

    `observed` is what was said of a manifest's orbits: see `observed_images`. `init` is a model to begin
    with, whose network and size of images are taken. `encoder` names a network other than the paper's.
    """
    chosen = parse_method(method) if method is not None else None
    if config_file is not None and (source is not None or resumed is not None):
        raise ConfigError("--config describes the whole run; leave out X and --resume beside it")
    if resumed is not None and source is None:
        resumed.require()
    if resumed is not None and resumed.exists:
        if resumed.kind != "run":
            raise ConfigError(f"{resumed.path} holds a {resumed.kind}", hint=resumed.resume_command)
        config: Experiment = read_experiment(resumed.config)
        if source is not None and source != config.name and _path(source) != config.data:
            raise ConfigError(f"{resumed.path} holds a run of {config.name}, not of {source}")
    elif config_file is not None:
        config = read_experiment(_read_config(config_file))
    elif source is None:
        raise ConfigError(
            "nothing to train was named",
            hint="give a recipe or a path: orbitset train affine-digits, or --resume with --out",
        )
    elif source in FACES or source.startswith(MULTI_PIE):
        name = source.partition(":")[0]
        raise ConfigError(f"{name} is an experiment of its own", hint=f"orbitset reproduce {name}")
    elif is_video(source):
        config = _of_videos(source, chosen or "OJ", settings, observed or {})
    elif is_plain(source):
        config, observed = _of_plain_images(source, chosen or "OJ", observed or {}), None
    elif is_table(source):
        config = observed_images(
            Path(source), chosen or "OJ", settings=settings, **(observed or {})
        )
    elif Path(source).exists():
        config = _config_for_path(source, chosen or "OJ")
    else:
        config = recipe(source, chosen or "OJ")
    if observed and (config_file is not None or (resumed is not None and resumed.exists)):
        raise ConfigError(
            f"{_flags(observed)} describe a new training; this one is described by its own configuration",
            hint="change single settings with --set",
        )
    if observed and not isinstance(config, ObservedExperiment):
        raise ConfigError(
            f"{_flags(observed)} describe the orbits of a manifest, a CSV or Parquet file, or of a folder"
        )
    if init is not None and (config_file is not None or (resumed is not None and resumed.exists)):
        raise ConfigError(
            "--init begins a new training; this one is described by its own configuration"
        )
    if chosen is not None:
        config = with_method(config, chosen)
    if init is not None:
        config = _beginning_with(config, init)
    given = []
    if encoder is not None:
        if init is not None:
            raise ConfigError("--init takes the model's network; leave out --encoder beside it")
        given.append(f"encoder.backbone={encoder}")
    if epochs is not None and isinstance(config, ObservedExperiment):
        config = evaluated_often(config, epochs)
    elif epochs is not None:
        given.append(f"train.epochs={epochs}")
    if seed is not None:
        given.append(f"seed={seed}")
    changes = [*given, *settings]
    if isinstance(config, ObservedExperiment):
        config = with_settings(config, changes)
    else:
        config = with_settings(config, changes)
    if config.encoder.backbone != PAPERS:
        check_backbone(config.encoder.backbone)
    return config


def _beginning_with(config: Experiment, folder: Path) -> Experiment:
    """The same with a model's network, and images as it takes them."""
    about = read_description(folder)
    if about.network.has_transformer != config.has_transformer:
        has = "a" if about.network.has_transformer else "no"
        raise ConfigError(
            f"the model in {folder} has {has} spatial transformer; choose a method that has {has} such, by "
            f"{'adding' if about.network.has_transformer else 'leaving out'} -STN"
        )
    init, encoder = str(folder.resolve()), replace(about.network.encoder, is_pretrained=False)
    loss = config.loss
    if encoder.code_norm != config.encoder.code_norm:  # a margin is of one norm's distances
        loss = replace(loss, margin=None)
    size_px, is_colour = about.input.size_px, about.input.is_colour
    if isinstance(config, ObservedExperiment):
        seen = replace(config.orbits, size_px=size_px, is_colour=is_colour)
        return replace(config, orbits=seen, init=init, encoder=encoder, loss=loss)
    orbits = replace(config.orbits, canvas_px=size_px, is_colour=is_colour)
    return replace(config, orbits=orbits, init=init, encoder=encoder, loss=loss)


def described(config: Experiment) -> str:
    """What was chosen for a user's own images, in words; of a recipe nothing."""
    if isinstance(config, ObservedExperiment):
        return described_orbits(config)
    return described_plain(config) if is_plain(config.data) else ""


def _of_videos(
    source: str, method: Method, settings: list[str], observed: Mapping[str, Any]
) -> ObservedExperiment:
    unknown = {name: value for name, value in observed.items() if name != "on_problem"}
    if unknown:
        raise ConfigError(
            f"{_flags(unknown)} describe the orbits of a manifest; those of videos are segments",
            hint="say how long with --set video.segments.length=16",
        )
    return observed_videos(Path(source), method, settings=settings, **observed)


def _flags(observed: Mapping[str, Any]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in observed)


def computed_config(source: str, method: Method, settings: list[str]) -> ExperimentConfig:
    """A recipe or data whose orbits are computed, with settings on top."""
    if is_plain(source):
        raise ConfigError(
            f"{source} has images without labels; settings are searched for by one-shot accuracy"
        )
    if is_table(source) or is_video(source):
        raise ConfigError(f"{source} has observed orbits; settings are searched for computed ones")
    config = compose_config(
        source,
        method=method,
        epochs=None,
        seed=None,
        settings=settings,
        config_file=None,
        resumed=None,
    )
    assert isinstance(config, ExperimentConfig)
    return config


def _config_for_path(source: str, method: Method) -> ExperimentConfig:
    splits = load_splits(_path(source))
    size_px, has_labels = max(splits.train.images.shape[-2:]), splits.train.labels is not None
    num = len(splits.train)
    return affine_images(_path(source), size_px, num, method, has_labels=has_labels)


def _of_plain_images(source: str, method: Method, observed: Mapping[str, Any]) -> ExperimentConfig:
    rest = dict(observed)
    train = load_plain(_path(source), on_problem=rest.pop("on_problem", "skip")).train
    if rest:
        raise ConfigError(
            f"{_flags(rest)} describe orbits, and {source} has no sub-folders: every image there is an orbit"
        )
    num, channels, _, size_px = train.images.shape
    return plain_images(_path(source), size_px, num, method, is_colour=channels == 3)


def _path(source: str) -> str:
    return str(Path(source).resolve())


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no configuration; give the config.json of a run")
    return content
