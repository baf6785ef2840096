"""Commands for one training and what comes of it."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitset.cli.options import (
    CanonicalOption,
    CropsOption,
    Device,
    Json,
    LossOption,
    MeasureOption,
    MethodOption,
    OnProblemOption,
    OrbitOption,
    Out,
    Overwrite,
    ProtocolOption,
    Quiet,
    Resume,
    Seed,
    SettingsOption,
    Trust,
    check_flags,
    find_device,
    interruptible,
    listed,
    method_or_loss,
    print_results,
    say,
)

if TYPE_CHECKING:
    from orbitset.run_folder import Run

_NO_GAIN = "More orbits may help, or a longer training (--epochs), another --method or --encoder."


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("runs/demo"),
    seed: Seed = None,
    epochs: Annotated[float | None, typer.Option(help="Length of the OJ run.", min=0)] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    trusted: Trust = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train OJ, OT and AE on the embedded digits and write a report: a few minutes on two cores.

    Example: orbitset demo --out runs/demo
    """
    from orbitset.report import write_report
    from orbitset.run_folder import Run
    from orbitset.runs.demo import NOTE, demo_configs, run_demo, stored_configs
    from orbitset.training.progress import default_progress

    check_flags(resume, overwrite)
    run = Run(out)
    configs = demo_configs(seed or 0, epochs)
    if resume and run.exists and seed is None and epochs is None:
        configs = stored_configs(run)
    with interruptible(run):
        results = run_demo(
            configs,
            run,
            resume=resume,
            overwrite=overwrite,
            device=find_device(device),
            progress=default_progress(quiet=quiet),
        )
        page = write_report(run)
    print_results(results, as_json)
    say(f"\n{NOTE}\nreport: {page}")


def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="X", help="A recipe (affine-mnist, affine-digits) or a path of data."
        ),
    ] = None,
    method: MethodOption = None,
    loss: LossOption = None,
    protocol: ProtocolOption = None,
    measures: MeasureOption = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over all members.")] = None,
    orbit: OrbitOption = None,
    canonical: CanonicalOption = None,
    label: Annotated[
        str | None, typer.Option(help="Of a manifest: the factor that is to be recognised.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Of a manifest: a factor that some rows have, whose classes are learned beside the orbits."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Of a manifest: FACTOR=TRAIN/TEST or /VALIDATION/TEST, as session=1,2/3/4."
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            help="Of a manifest: FACTOR=VALUES to test on, as session=4; the rest is trained on."
        ),
    ] = None,
    crops: CropsOption = None,
    on_problem: OnProblemOption = None,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL", help="Begin with the weights of a model; its network is taken."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another network than the paper's: timm:resnet18, or package.module:Class.",
        ),
    ] = None,
    seed: Seed = None,
    settings: SettingsOption = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="The config.json of an earlier run.")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one method. X is data if such a path exists, otherwise the name of a recipe.

    Example: orbitset train affine-mnist --method OJ --epochs 0.02

    Example: orbitset train faces.csv --orbit person,light --canonical view=front --label person

    Example: orbitset train products/   (a sub-folder for each product)
    """
    from orbitset.files import file_name
    from orbitset.recipes.compose import Request, compose_config, described
    from orbitset.report import write_report
    from orbitset.report.tables import pixels_do_as_well
    from orbitset.run_folder import Run
    from orbitset.runs.train import train as train_experiment
    from orbitset.training.progress import default_progress

    check_flags(resume, overwrite)
    request = Request(
        source=source,
        method=method_or_loss(method, loss),
        protocol=protocol,
        measures=tuple(measures or ()),
        epochs=epochs,
        seed=seed,
        init=init,
        encoder=encoder,
        settings=tuple(settings or ()),
        observed={
            name: value
            for name, value in (
                ("orbit", listed(orbit)),
                ("canonical", canonical),
                ("label", label),
                ("classes", classes),
                ("split", split),
                ("test", test),
                ("crops", None if crops is None else str(crops.resolve())),
                ("on_problem", on_problem),
            )
            if value is not None
        },
    )
    config = compose_config(
        request,
        config_file=config_file,
        resumed=Run(out) if resume and out is not None else None,
    )
    if not quiet and (chosen := described(config)):
        say(chosen)
    run = Run(out or Path("runs") / file_name(f"{config.name}-{config.method}"))
    with interruptible(run):
        results = train_experiment(
            config,
            run,
            resume=resume,
            overwrite=overwrite,
            device=find_device(device),
            progress=default_progress(quiet=quiet),
        )
        page = write_report(run)
    print_results(results, as_json)
    if no_gain := pixels_do_as_well(results["rows"]):
        say(f"\n{textwrap.fill(f'note: {no_gain}. {_NO_GAIN}', 80)}")
    if (run / "left_out.json").exists():
        say(f"\nleft out: {_left_out(run)}\nall of them: {run / 'left_out.json'}")
    say(f"\nreport: {page}" + (f"\nmodel: {run.path}" if config.keeps_weights else ""))


def _left_out(run: "Run") -> str:
    from orbitset.datasets.table import Problem, named

    rows = run.read_json("left_out.json")["rows"]
    return named([Problem(row["row"], row["reason"], tuple(row["others"])) for row in rows])


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")],
    shots: Annotated[list[int] | None, typer.Option(help="Labelled images per class.")] = None,
    neighbours: Annotated[
        int | None, typer.Option("--k", help="k of the k-NN row; 5 if not given.", min=1)
    ] = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws of the labelled images; 100 if not given.", min=1)
    ] = None,
    gallery: Annotated[
        int | None, typer.Option(help="Labelled images for k-NN and probe; 5,000.", min=10)
    ] = None,
    test_images: Annotated[int | None, typer.Option(help="Queries.", min=1)] = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Evaluate a trained encoder anew: few-shot, k-NN and a linear probe, Euclidean and cosine.

    Runs on observed orbits are evaluated by verification, retrieval and clustering instead.

    Example: orbitset evaluate runs/affine-digits-OJ --shots 1 --shots 5
    """
    from orbitset.protocols import Numbers
    from orbitset.run_folder import Run
    from orbitset.runs.evaluate import evaluate_run

    numbers = Numbers(
        shots=tuple(shots) if shots else None,
        neighbours=neighbours,
        draws=draws,
        gallery_images=gallery,
        test_images=test_images,
    )
    rows = evaluate_run(Run(folder), numbers, device=find_device(device), say=say)
    print_results({"rows": rows}, as_json)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")],
    as_json: Json = False,
) -> None:
    """Rebuild the tables, figures and page of a run from its folder alone.

    Example: orbitset report runs/demo
    """
    from orbitset.report import write_report
    from orbitset.results.stored import stored_study
    from orbitset.results.summary import summarise
    from orbitset.run_folder import Run

    run = Run(folder).require()
    with run.locked():
        new = summarise(run, stored_study(run)) if run.kind == "study" else None
        page = write_report(run, new)
    print_results(run.read_json("results.json"), as_json)
    say(f"\nreport: {page}")
