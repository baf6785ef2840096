"""Evaluate a trained run anew, with other numbers than in training."""

from typing import Any

from orbitset.datasets.table import named
from orbitset.protocols.contract import Numbers, Say, measured
from orbitset.results.row import Row
from orbitset.run_folder import Run
from orbitset.runs.load import load_run
from orbitset.runs.prepare import precision_of
from orbitset.runs.train import data_change


def _silent(message: str) -> None:
    del message


def evaluate_run(
    run: Run, numbers: Numbers | None = None, *, device: str = "cpu", say: Say = _silent
) -> list[dict[str, Any]]:
    """Rows for a trained encoder: what its protocol gives when it is evaluated anew, and the measures
    from outside that the run has."""
    model, images, judge = load_run(run, device=device)
    config = judge.config
    if change := data_change(config.data, images, run):
        say(f"warning: {change}; the scores below are of the images as they are now")
    if images.left_out:
        say(f"left out: {named(images.left_out)}")
    encode = judge.encoding(model)
    scores = judge.protocol.evaluate_anew(encode, numbers or Numbers(), say)
    if judge.measures:
        scores |= measured(judge.protocol.held_out(encode), judge.measures)
    say(f"scores were taken with the network in {precision_of(config, model)}")
    return [Row.of(config.method, metric, score).to_json() for metric, score in scores.items()]
