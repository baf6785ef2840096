"""Commands for whole experiments."""

from pathlib import Path
from typing import Annotated

import typer

from orbitset.cli.options import (
    Device,
    Json,
    Out,
    Overwrite,
    Quiet,
    Resume,
    check_flags,
    find_device,
    interruptible,
    print_results,
    say,
)


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="affine-mnist")],
    methods: Annotated[
        str | None, typer.Option(help="Some of the methods: OJ,OE,ST-STN. All if not given.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Length of every training.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Trainings of every method; 3 if not given.")
    ] = None,
    test_images: Annotated[int | None, typer.Option(help="Queries; 25,000 if not given.")] = None,
    extras: Annotated[
        bool, typer.Option(help="Other readings of OJ, and accuracy against its weights.")
    ] = True,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of the paper whole: table, tests, figures and page beside its numbers.

    Example: orbitset reproduce affine-mnist --epochs 0.002 --test-images 2000 --seeds 2
    """
    from orbitset.errors import check_choice
    from orbitset.experiments.affine_mnist import affine_mnist_study
    from orbitset.experiments.study import run_study, stored_study
    from orbitset.experiments.summary import summarise
    from orbitset.report import write_report
    from orbitset.runs import Run
    from orbitset.training.progress import default_progress

    check_flags(resume, overwrite)
    check_choice("experiment", name, ("affine-mnist",))
    run = Run(out or Path("runs") / f"reproduce-{name}")
    asked = (methods, epochs, seeds, test_images)
    if resume and run.exists and all(value is None for value in asked) and extras:
        study = stored_study(run)
    else:
        study = affine_mnist_study(
            methods=None if methods is None else [part.strip() for part in methods.split(",")],
            epochs=epochs,
            seeds=3 if seeds is None else seeds,
            test_images=test_images,
            extras=extras,
        )
    with interruptible(run):
        run_study(
            study,
            run,
            resume=resume,
            overwrite=overwrite,
            device=find_device(device),
            progress=default_progress(quiet=quiet),
        )
        results = summarise(run, study)
        page = write_report(run, results)
    print_results(results, as_json)
    say(f"\nreport: {page}")
