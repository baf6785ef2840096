"""The command that chooses settings."""

import json
import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitset.cli import options
from orbitset.errors import ConfigError

if TYPE_CHECKING:
    from orbitset.recipes.own_images import OrbitOptions
    from orbitset.recipes.request import Request
    from orbitset.runs.tuning import Search


@options.with_orbit_options
def tune(
    source: Annotated[
        str,
        typer.Argument(
            metavar="X",
            help="What to train on, as for train: a path of images, or a recipe (affine-mnist, "
            "affine-digits).",
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods and losses to search, such as OJ,IM+R,my_losses:info_nce. Default: the "
            "paper's methods, and for grouped images the one that train chooses."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Combinations of settings tried for each method. Default: 20."),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            help="Images to train on in every trial. Default: 2,000,000, and for grouped images "
            "as many as train shows."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Seeds trained in each trial; the trial's score is their mean. Default: 1."
        ),
    ] = None,
    *,
    observed: "OrbitOptions",
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment",
            help="Change grouped images in every trial, or in none. Default: both are tried.",
        ),
    ] = None,
    encoder: options.EncoderOption = None,
    seed: options.Seed = None,
    jobs: options.Jobs = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting to fix, not to search."),
    ] = None,
    out: options.Out = None,
    resume: options.Resume = False,
    trusted: options.Trust = None,
    device: options.Device = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Choose settings by validation images, never by test images, and print them as a train command.

    Settings are chosen by one-shot accuracy; for grouped images that is on validation orbits, which need no
    class labels.

    Example: orbitset tune products/ --methods OJ,IN --trials 20

    Example: orbitset tune affine-digits --methods OJ,OE --images 100000
    """
    from orbitset.recipes.request import Request
    from orbitset.run_folder import Run
    from orbitset.runs.tuning import stored_search
    from orbitset.runs.tuning import tune as tune_methods
    from orbitset.training.progress import default_progress

    run = Run(out or Path("runs") / f"tune-{Path(source).absolute().stem}")
    request = Request(
        source=source,
        encoder=encoder,
        settings=tuple(settings or ()),
        observed=replace(observed, augment=augment),
    )
    numbers = {"trials": trials, "images": images, "seeds": seeds, "seed": seed}
    is_described = request != Request(source=source) or methods is not None
    if (
        resume
        and run.exists
        and not (is_described or any(number is not None for number in numbers.values()))
    ):
        search = stored_search(run)
        base = next(iter(search.bases.values()))
        if source != base.name and base.data not in (source, str(Path(source).resolve())):
            raise ConfigError(f"{run.path} holds a search of {base.name}, not of {source}")
    else:
        search = _search(request, methods, numbers)
    with options.interruptible(run):
        results = tune_methods(
            search,
            run,
            jobs=jobs,
            device=options.find_device(device),
            progress=default_progress(quiet=quiet),
            resume=resume,
        )
    print(json.dumps(results) if as_json else _text(results))


def _search(request: "Request", methods: str | None, numbers: Mapping[str, int | None]) -> "Search":
    """The search that the options describe; method and length for grouped images are by default train's."""
    from orbitset.config import parse_settings
    from orbitset.recipes.affine_mnist import METHODS
    from orbitset.recipes.compose import searched_config
    from orbitset.recipes.methods import parse_method
    from orbitset.runs.tuning import Search

    if methods is None:
        base = searched_config(request)
        chosen = [base.method] if base.is_observed else list(METHODS)
    else:
        chosen = [parse_method(name.strip()) for name in methods.split(",")]
    for method in chosen:
        if chosen.count(method) > 1:
            raise ConfigError(f"{method} is named twice; name every method once")
    bases = {method: searched_config(replace(request, method=method)) for method in chosen}
    length_and_seeds: dict[str, Any] = {
        n: number for n, number in numbers.items() if number is not None
    }
    if next(iter(bases.values())).is_observed:
        length_and_seeds.setdefault("images", None)
    arguments = [str(request.source), *request.observed.arguments]
    if request.encoder is not None:
        arguments += ["--encoder", request.encoder]
    if length_and_seeds.get("seed"):
        arguments += ["--seed", str(length_and_seeds["seed"])]
    arguments += [part for setting in request.settings for part in ("--set", setting)]
    fixed = list(parse_settings(request.settings))
    if request.observed.augment is not None:
        fixed += ["orbits.affine", "orbits.photometric"]
    return Search(bases=bases, fixed=tuple(fixed), arguments=tuple(arguments), **length_and_seeds)


def _text(results: dict[str, Any]) -> str:
    """For each method its best and the recipe's value, and the settings to be pasted after `train`; then the
    whole command of the best method."""
    from orbitset.protocols.contract import MEASURES

    by_method = results["methods"]
    best = max((result["best"] for result in by_method.values()), key=lambda best: best["value"])
    words = MEASURES.get(best["measure"], best["measure"])
    lines = [f"scored by {words} on validation images"] if words else []
    lines.append(f"{'method':<8} {'best':>6} {'recipe':>7} {'trials':>7} {'at epoch':>9}")
    for method, result in by_method.items():
        own, trials = result["best"], result["trials"]
        epoch = "–" if own["epoch"] is None else f"{own['epoch']:.3g}"
        lines.append(
            f"{method:<8} {own['value']:>6.3f} {trials[0]['value']:>7.3f} {len(trials):>7} {epoch:>9}"
        )
        if len(by_method) > 1 or not best["command"]:
            lines.append(f"  {_broken(shlex.join(own['options']))}")
    trials = [trial for result in by_method.values() for trial in result["trials"]]
    num_best = sum(trial["value"] == best["value"] for trial in trials)
    if num_best > 1:
        note = (
            f"{num_best} of {len(trials)} trials scored {best['value']:.3f}: the validation images are "
            "too few or too easy to tell these apart"
        )
        lines += ["", textwrap.fill(note, 80)]
    if best["command"]:
        lines += ["", "to train with the best settings:", "", _broken(best["command"])]
    return "\n".join(lines)


def _broken(command: str) -> str:
    """One option to a line, as a shell takes it."""
    return command.replace(" --", " \\\n  --")
