"""Write model.json and a card, with which the model of a run can be used without the run."""

import math
from pathlib import Path

from orbitset.encoders import Encoder, without_transformer
from orbitset.errors import DataError
from orbitset.evaluation.verification import verify
from orbitset.files import write_atomically
from orbitset.models import Calibration, Description, Input, Network, Point, Trained, describe_card
from orbitset.models.description import identify
from orbitset.models.folder import write_description
from orbitset.models.known import known_of, save_known
from orbitset.protocols import Protocol, encoding_with
from orbitset.recipes.experiment import Experiment
from orbitset.results.row import Row
from orbitset.run_folder import Run
from orbitset.runs.prepare import Images, precision_of

_FARS = (0.001, 0.01, 0.05)
_KNOWN, _HELD_OUT = 500, 300
"""Most images of which a model's confidence is made"""


def describe_model(
    config: Experiment,
    images: Images,
    protocol: Protocol,
    run: Run,
    model: Encoder,
    rows: list[Row],
    *,
    num_images: int,
    kept_codes: str | None = None,
) -> None:
    """Write model.json, model-card.md and what the model knows beside the weights, which were trained on so
    many images. `kept` says what was kept instead, if that is so."""
    channels, size_px = images.image_shape
    environment = run.read_json("environment.json")
    input_ = Input(size_px=size_px, channels=channels, image_px=images.image_px)
    network = Network(
        encoder=config.encoder,
        has_transformer=config.has_transformer,
        architecture=without_transformer(model).architecture,
    )
    measures = [*protocol.about.curves, *(name.partition(":")[2] for name in config.measures)]
    if "accuracy" in measures:
        measures.append("accuracy_cosine")
    description = Description(
        id=identify(model.state_dict(), network, input_),
        input=input_,
        network=network,
        trained=Trained(
            name=config.name,
            data=Path(config.data).name,
            method=config.method,
            seed=config.seed,
            images=num_images,
            init=environment.get("init"),
            commit=environment["commit"],
            versions=environment["versions"],
            scores=_means(rows, config.method, measures),
            measures=dict(protocol.about.measures),
            baselines=_means(rows, "pixels", measures),
            start=config.start if config.begins_useful else None,
            start_scores=_means(rows, config.start, measures) if config.begins_useful else {},
            precision=precision_of(config, model),
            kept_codes=kept_codes,
        ),
        calibration=_calibrated(protocol, model),
    )
    write_atomically(run / "model-card.md", describe_card(description).encode())
    known = known_of(model, images.sample("train", _KNOWN), images.sample("test", _HELD_OUT))
    save_known(known, run.path, description.id)
    write_description(run.path, description)


def _means(rows: list[Row], method: str, measures: list[str]) -> dict[str, float]:
    return {
        row.metric: row.mean
        for row in rows
        if row.method == method and row.metric in measures and math.isfinite(row.mean)
    }


def _calibrated(protocol: Protocol, model: Encoder) -> Calibration | None:
    """What distances of test images mean; None where there are no pairs of the same thing, or none of
    different ones."""
    pairs = protocol.pairs(encoding_with(model))
    if pairs is None:
        return None
    codes, on = pairs
    try:
        verified = verify(codes, fars=_FARS)
    except (ValueError, DataError):
        return None
    return Calibration(
        auc=verified.auc,
        equal_error_rate=verified.eer,
        pairs=verified.num_same + verified.num_different,
        different=verified.num_different,
        on=on,
        points=tuple(
            Point(
                far=point.max_far,
                tar=point.tar,
                threshold=point.threshold,
                accepted=round(point.far * verified.num_different),
            )
            for point in verified.points
            if point.threshold > -math.inf
        ),
    )
