"""Evaluate a trained run anew, with other numbers than in training, or on other images."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from orbitset.datasets.source import TableSource, open_source
from orbitset.datasets.table import named
from orbitset.errors import ConfigError, OrbitsetError
from orbitset.evaluation.score import Score
from orbitset.models.description import Input
from orbitset.models.folder import read_description
from orbitset.protocols import PairsSettings, raw_pixels
from orbitset.protocols.contract import Numbers, Say, Scores, measured
from orbitset.protocols.exclusions import Exclusion, left_out_in_words
from orbitset.protocols.images import GroupedImages, decoding, grouping
from orbitset.recipes.exclusions import excluded, requested_exclusions
from orbitset.recipes.experiment import Experiment, read_experiment
from orbitset.recipes.own_images import OrbitOptions, usable
from orbitset.results.row import Row
from orbitset.run_folder import Run
from orbitset.runs.begin import frozen_network
from orbitset.runs.judge import Judge
from orbitset.runs.load import load_trained
from orbitset.runs.prepare import Images, build_protocol, open_images, precision_of
from orbitset.runs.train import data_change
from orbitset.training.fit import TrainConfig


def evaluate_run(
    run: Run,
    numbers: Numbers | None = None,
    *,
    data: str | None = None,
    options: OrbitOptions | None = None,
    device: str = "cpu",
    say: Say = lambda message: None,
) -> list[dict[str, Any]]:
    """Rows for a trained encoder: what its protocol gives when it is evaluated anew, and the measures
    from outside that the run has. Models of grouped images are compared with raw pixels and with the
    pretrained network that they began with.

    `data` are other grouped images, all of which are tested on; `options` are how they are grouped, and what
    retrieval leaves out.
    """
    model, config = load_trained(run, device=device)
    options = options or OrbitOptions()
    images: Images | GroupedImages
    if data is not None:
        input_ = read_description(run.path).input
        config, images = _of_others(config, input_, data, options, device)
    else:
        config = _excluding(config, options)
        images = open_images(config, device)
        if change := data_change(config.data, images, run):
            say(f"warning: {change}; the scores below are of the images as they are now")
    if images.left_out:
        say(f"left out: {named(images.left_out)}")
    if isinstance(images, GroupedImages):
        exclude = config.evaluation.exclude
        what = "no other image"
        if exclude:
            what = f"images of the same {images.label} {left_out_in_words(exclude)}"
        say(f"{images.tested_on}; for each query, retrieval leaves out {what}")
    judge = Judge(config, build_protocol(config, images))
    encode = judge.encoding(model)
    scores = judge.protocol.evaluate_anew(encode, numbers or Numbers(), say)
    if judge.measures:
        scores |= measured(judge.protocol.held_out(encode), judge.measures)
    baselines: dict[str, Scores] = {}
    if isinstance(images, GroupedImages):
        baselines = _baselines(judge, images, _recorded_start(run, config), device, say)
    say(f"scores were taken with the network in {precision_of(config, model)}")
    return [
        Row.of(method, metric, score).to_json()
        for metric in scores
        for method, of_method in {**baselines, config.method: scores}.items()
        if isinstance(score := of_method.get(metric), Score)
    ]


def _excluding(config: Experiment, options: OrbitOptions) -> Experiment:
    """The same with what is to be left out of retrieval."""
    others = replace(options, exclude=None)
    if others.set_options:
        raise ConfigError(f"{others} describe other images; name these after the run")
    if options.exclude is None:
        return config
    if not config.is_observed:
        raise ConfigError("--exclude is for models of grouped images")
    exclude = requested_exclusions(options.exclude)
    return replace(config, evaluation=replace(config.evaluation, exclude=exclude))


def _of_others(
    config: Experiment, input_: Input, data: str, options: OrbitOptions, device: str
) -> tuple[Experiment, GroupedImages]:
    """Other images than those of the run, and the experiment as if it had been tested on them."""
    if config.data in (data, str(Path(data).resolve())):
        raise ConfigError(
            f"the model was trained on a part of {data}; leave it out to evaluate on the held-out part"
        )
    source = open_source(data)
    if not config.is_observed or not isinstance(source, TableSource):
        raise ConfigError(
            "a model of grouped images can be evaluated on other grouped images: a folder with sub-folders, "
            "a manifest or shards; "
            + (f"{data} is none" if config.is_observed else "this model is of single images")
        )
    table, own = source.table(), config.observed
    orbit = tuple(options.orbit or (own.orbit if {*own.orbit} <= {*table.columns} else ["orbit"]))
    label = options.label or (own.label if own.label in table.columns else orbit[0])
    table.require([*orbit, *([label] if label else [])])
    orbits = replace(
        own.showing(size_px=input_.size_px, is_colour=input_.is_colour),
        orbit=orbit,
        label=label,
        canonical="medoid",
        classes=None,
        crops=options.crops,
        alike=None,
        alike_values=1,
        ignore=(),
    )
    table = usable(table, orbits)
    exclude = excluded(table, table, orbits, requested=options.exclude)
    factors = [Exclusion.parse(text).factor for text in exclude]
    images, left_out = source.load_observed(
        grouping(orbits, factors), decoding(orbits, is_private=config.is_private, device=device)
    )
    grouped = GroupedImages(images, left_out, orbits, is_private=config.is_private, device=device)
    values = images.values[grouped.label]
    config = replace(
        config,
        data=data,
        orbits=orbits,
        protocol="pairs",
        evaluation=PairsSettings(split_by=grouped.label, train=("",), test=values, exclude=exclude),
        classify_weight=0.0,
        train=TrainConfig(precision=config.train.precision),
    )
    return config, grouped


def _baselines(
    judge: Judge, images: GroupedImages, recorded: Scores, device: str, say: Say
) -> dict[str, Scores]:
    """The scores of raw pixels, and of the network before training, if that was pretrained: as recorded,
    where its weights are not at hand."""
    baselines, config = {"pixels": judge.scores(raw_pixels)}, judge.config
    if not config.begins_useful:
        return baselines
    try:
        network = frozen_network(config, images, device)
        return {**baselines, config.start: judge.scores(judge.encoding(network))}
    except OrbitsetError as error:
        how = "is as it was recorded in training" if recorded else "is missing"
        say(f"the row {config.start} {how}: {error}")
    return {**baselines, config.start: recorded}


def _recorded_start(run: Run, config: Experiment) -> Scores:
    """The scores before training, if retrieval left out what it is to leave out now."""
    before = read_experiment(run.config)
    records = run.records()
    if before.evaluation != config.evaluation or not records:
        return {}
    first = records[0].get("frozen", records[0])
    return {
        name: Score.from_json(score)
        for name, score in first.items()
        if isinstance(score, dict) and "mean" in score
    }
