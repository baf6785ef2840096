"""The demo: three methods on the embedded digits, side by side, in a few minutes on two cores."""

from dataclasses import replace
from typing import Any

from orbitset.config import to_dict
from orbitset.errors import ConfigError, started_otherwise
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.experiment import Experiment, read_experiment
from orbitset.run_folder import Run
from orbitset.runs.train import train
from orbitset.training.progress import Progress

EPOCHS = {"OJ": 7.0, "OT": 2.0, "AE": 2.0}
"""The orbit joint loss is what the demo shows; the others run shorter, for comparison at their length."""
NOTE = (
    "A demo of a few minutes on 997 digits. OJ was trained longer than the others, and the paper's "
    "order of the methods takes far more training than this: the table does not compare methods."
)


def demo_configs(seed: int = 0, epochs: float | None = None) -> list[Experiment]:
    """OJ, OT and AE; `epochs` scales all of them to that length of OJ."""
    factor = 1.0 if epochs is None else epochs / EPOCHS["OJ"]
    return [
        replace(
            affine_digits(method),
            name="demo",
            seed=seed,
            train=replace(affine_digits(method).train, epochs=length * factor),
        )
        for method, length in EPOCHS.items()
    ]


def run_demo(
    configs: list[Experiment],
    run: Run,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train each into a folder of its own inside the run's folder; gives all their rows."""
    description = {
        "name": "demo",
        "note": NOTE,
        "runs": [config.method for config in configs],
        "configs": [to_dict(config) for config in configs],
    }
    if not (resume and run.exists):
        run.check_free(overwrite=overwrite, kind="demo")
    elif run.config != description:
        raise started_otherwise(run.path)
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {}
    with run.locked():
        if not (resume and run.exists):
            run.create(description, overwrite=overwrite, kind="demo")
        for config in configs:
            results = train(
                config,
                Run(run / config.method),
                resume=resume,
                overwrite=overwrite,
                device=device,
                progress=progress,
            )
            is_first = config is configs[0]  # raw pixels and the untrained encoder are shown once
            rows += [r for r in results["rows"] if is_first or r["method"] == config.method]
        results["rows"] = rows
        run.write_json("results.json", results)
    return results


def stored_configs(run: Run) -> list[Experiment]:
    """The configurations a demo was started with."""
    if "configs" not in run.config:
        raise ConfigError(f"{run.path} holds a run of {run.config['name']}, not a demo")
    return [read_experiment(config) for config in run.config["configs"]]
