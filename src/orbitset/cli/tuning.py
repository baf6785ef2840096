"""The command that chooses settings."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from orbitset.cli.options import (
    Device,
    Jobs,
    Json,
    MethodsOption,
    Out,
    Quiet,
    Resume,
    Seed,
    Trust,
    find_device,
    interruptible,
)
from orbitset.errors import ConfigError


def tune(
    source: Annotated[
        str,
        typer.Argument(
            metavar="X", help="A recipe (affine-mnist, affine-digits) or a path of data."
        ),
    ],
    methods: MethodsOption = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Combinations of settings tried for each method. Default: 20."),
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Images to train on in every trial; 2,000,000 by default.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Seeds trained in each trial; the trial's score is their mean. Default: 1."
        ),
    ] = None,
    seed: Seed = None,
    jobs: Jobs = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting to fix, not to search."),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose the settings the paper leaves open by accuracy on validation images, never on test images.

    Example: orbitset tune affine-digits --methods OJ,OE --images 100000
    """
    from orbitset.config import parse_settings
    from orbitset.recipes.affine_mnist import METHODS
    from orbitset.recipes.compose import computed_config
    from orbitset.recipes.methods import parse_method
    from orbitset.run_folder import Run
    from orbitset.runs.tuning import Search, stored_search
    from orbitset.runs.tuning import tune as tune_methods
    from orbitset.training.progress import default_progress

    run = Run(out or Path("runs") / f"tune-{Path(source).absolute().stem}")
    numbers = {"trials": trials, "images": images, "seeds": seeds, "seed": seed}
    if (
        resume
        and run.exists
        and not any(value is not None for value in (methods, settings, *numbers.values()))
    ):
        search = stored_search(run)
        base = next(iter(search.bases.values()))
        if source != base.name and str(Path(source).resolve()) != base.data:
            raise ConfigError(f"{run.path} holds a search of {base.name}, not of {source}")
    else:
        names = METHODS if methods is None else methods.split(",")
        chosen = [parse_method(name.strip()) for name in names]
        for method in chosen:
            if chosen.count(method) > 1:
                raise ConfigError(f"{method} is named twice; name every method once")
        bases = {method: computed_config(source, method, settings or []) for method in chosen}
        search = Search(
            bases=bases,
            fixed=tuple(parse_settings(settings or [])),
            **{name: number for name, number in numbers.items() if number is not None},
        )
    with interruptible(run):
        results = tune_methods(
            search,
            run,
            jobs=jobs,
            device=find_device(device),
            progress=default_progress(quiet=quiet),
            resume=resume,
        )
    print(json.dumps(results) if as_json else _text(results))


def _text(results: dict[str, Any]) -> str:
    """For each method its best and the recipe's value, and the settings to be pasted after `train`."""
    lines = [f"{'method':<8} {'best':>6} {'recipe':>7} {'trials':>7} {'at epoch':>9}"]
    for method, result in results["methods"].items():
        best, trials = result["best"], result["trials"]
        epoch = "–" if best["epoch"] is None else f"{best['epoch']:.3g}"
        lines += [
            f"{method:<8} {best['value']:>6.3f} {trials[0]['value']:>7.3f} {len(trials):>7} {epoch:>9}",
            " \\\n".join(f"  --set {setting}" for setting in best["settings"]),
        ]
    return "\n".join(lines)
