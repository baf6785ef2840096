"""Commands for whole experiments."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orbitset.cli import options

if TYPE_CHECKING:
    from orbitset.recipes.study import Study
    from orbitset.run_folder import Run


def reproduce(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="affine-mnist, heads, multi-pie, pie32 or pointing04"),
    ],
    methods: options.MethodsOption = None,
    epochs: Annotated[
        float | None, typer.Option(help="Length of every training on affine-mnist; EX: 1 at most.")
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Images to train on in every training on faces.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Trainings of each row of the table. Default: 3 for affine-mnist and pointing04, else 1."
        ),
    ] = None,
    test_images: Annotated[
        int | None, typer.Option(help="Queries of affine-mnist; 25,000 by default.")
    ] = None,
    extras: Annotated[
        bool | None, typer.Option(help="Other readings of OJ, and accuracy against its weights.")
    ] = None,
    settings: options.SettingsOption = None,
    measures: options.MeasureOption = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the faces: Multi-PIE's sessions, or the folder of a manifest.csv."
        ),
    ] = None,
    is_small: Annotated[
        bool | None, typer.Option("--small", help="Few heads, for two cores: ten minutes.")
    ] = None,
    crops: options.CropsOption = None,
    on_problem: options.OnProblemOption = None,
    jobs: options.Jobs = 1,
    out: options.Out = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    trusted: options.Trust = None,
    device: options.Device = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run an experiment of the paper whole: table, tests, figures and page beside its numbers.

    Example: orbitset reproduce affine-mnist --epochs 0.002 --test-images 2000 --seeds 2
    """
    from orbitset.errors import check_choice
    from orbitset.recipes.reproduce import EXPERIMENTS, study_of
    from orbitset.recipes.study import with_changes
    from orbitset.results.recorded import read_recorded
    from orbitset.results.summary import summarise
    from orbitset.run_folder import Run
    from orbitset.runs.study import run_study
    from orbitset.training.progress import default_progress

    options.check_flags(resume, overwrite)
    check_choice("experiment", name, EXPERIMENTS)
    run = Run(out or Path("runs") / f"reproduce-{name}")
    chosen = {
        "methods": options.listed(methods),
        "epochs": epochs,
        "images": images,
        "seeds": seeds,
        "test_images": test_images,
        "extras": extras,
        "root": root,
        "is_small": is_small,
        "crops": None if crops is None else str(crops.resolve()),
        "on_problem": on_problem,
    }
    chosen = {option: value for option, value in chosen.items() if value is not None}
    if resume and run.exists and not (chosen or settings or measures):
        study = begun(name, run)
    else:
        study = with_changes(study_of(name, **chosen), settings or (), measures or ())
    with options.interruptible(run):
        run_study(
            study,
            run,
            resume=resume,
            overwrite=overwrite,
            jobs=jobs,
            device=options.find_device(device),
            progress=default_progress(quiet=quiet),
        )
        recorded = read_recorded(run, study)
        results = summarise(recorded)
        from orbitset.report import write_report  # late: it brings matplotlib

        page = write_report(run, results)
    options.print_results(results, as_json)
    trainings = recorded.trainings.values()
    if lists := [training.file_of("left_out.json") for training in trainings if training.left_out]:
        options.say(f"\nsome of the data could not be used: {lists[0]} says what, and why")
    options.say(f"\nreport: {page}")


def begun(name: str, run: "Run") -> "Study":
    """The study in a folder, to be gone on with as it was started."""
    from orbitset.errors import ConfigError, DataError, RunError
    from orbitset.recipes.reproduce import study_of
    from orbitset.recipes.study import changed, extends
    from orbitset.results.recorded import stored_study

    study = stored_study(run)
    if study.name != name:
        raise RunError(
            f"{run.path} holds {study.name}, not {name}; choose another folder with --out",
            is_usage=True,
        )
    if study.cut_down is None:
        # to options.say what changed it may need options, or data, that were not given again
        with contextlib.suppress(ConfigError, DataError):
            now = study_of(name)
            if extends(now, study):
                return now
            if now.describe() != study.describe():
                options.say(
                    "goes on with the settings it was started with; a new one would have others: "
                    f"{changed(study, now)}"
                )
    return study
