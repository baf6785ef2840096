"""Commands for one training and what comes of it."""

import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from orbitset.cli import options

if TYPE_CHECKING:
    from orbitset.recipes.experiment import Experiment
    from orbitset.recipes.own_images import OrbitOptions
    from orbitset.run_folder import Run

RunFolder = Annotated[Path, Argument(metavar="RUN", help="Folder of a finished run.")]
PackOption = Annotated[
    Path | None,
    Option(
        "--pack",
        metavar="FOLDER",
        help="Also write what a study recorded into five files in this folder, without weights.",
    ),
]
_NO_GAIN = "More orbits may help, or a longer training (--epochs), another --method or --encoder."


def demo(
    out: Annotated[Path, Option("--out", "-o", help="Folder to write to.")] = Path("runs/demo"),
    seed: options.Seed = None,
    epochs: Annotated[float | None, Option(help="Length of OJ's training.", min=0)] = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    trusted: options.Trust = None,
    device: Annotated[str, Option(help="cpu, cuda or cuda:N.")] = "cpu",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train OJ, OT and AE on small digits and write a report, in a few minutes on two cores.

    Example: orbitset demo --out runs/demo
    """
    from orbitset.run_folder import Run
    from orbitset.runs.demo import NOTE, demo_configs, run_demo, stored_configs
    from orbitset.training.progress import default_progress

    options.check_flags(resume, overwrite)
    run = Run(out)
    configs = demo_configs(seed or 0, epochs)
    if resume and run.exists and seed is None and epochs is None:
        configs = stored_configs(run)
    with options.interruptible(run):
        results = run_demo(
            configs,
            run,
            resume=resume,
            overwrite=overwrite,
            device=options.find_device(device),
            progress=default_progress(quiet=quiet),
        )
        page = _write_report(run)
    options.print_results(results, as_json)
    options.say(f"\n{NOTE}\nreport: {page}")


@options.with_orbit_options
def train(
    source: Annotated[
        str | None,
        Argument(
            metavar="X",
            help="What to train on: a path of images, images of your own such as my_data:images, "
            "or a recipe (affine-mnist, affine-digits).",
        ),
    ] = None,
    named: options.SourceOption = None,
    method: options.MethodOption = None,
    loss: options.LossOption = None,
    protocol: options.ProtocolOption = None,
    measures: options.MeasureOption = None,
    epochs: Annotated[
        float | None, Option(help="Length of the training, in passes over all images.")
    ] = None,
    minutes: Annotated[
        float | None,
        Option(
            help="Time limit of the whole training, in minutes: it is shortened to what this machine does "
            "in it, so that two such trainings differ. Example: 10."
        ),
    ] = None,
    *,
    observed: "OrbitOptions",
    test: Annotated[
        str | None,
        Option(help="Values of a column to test on, such as session=4; all others are trained on."),
    ] = None,
    augment: options.AugmentOption = None,
    init: Annotated[
        Path | None, Option(help="Fine-tune the model in this folder: its network and weights.")
    ] = None,
    encoder: options.EncoderOption = None,
    seed: options.Seed = None,
    settings: options.SettingsOption = None,
    config_file: Annotated[
        Path | None,
        Option("--config", help="Train as an earlier run: its folder, or its config.json."),
    ] = None,
    out: options.Out = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    trusted: options.Trust = None,
    device: options.Device = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train one method on X and write a run folder with the model and a report.

    Options that speak of columns are for images in a CSV or Parquet file; in a folder of images,
    the sub-folders are the orbits.

    Example: orbitset train products/

    Example: orbitset train faces.csv --orbit person,light --canonical view=front --label person

    Example: orbitset train affine-mnist --loss my_losses:info_nce --set loss.temperature=0.2
    """
    from orbitset.files import file_name
    from orbitset.recipes.compose import compose
    from orbitset.recipes.request import Request
    from orbitset.run_folder import Run

    began_at = time.monotonic()
    options.check_flags(resume, overwrite)
    options.check_length(epochs, minutes)
    request = Request(
        source=options.named_source(source, named),
        method=options.method_or_loss(method, loss),
        protocol=protocol,
        measures=tuple(measures or ()),
        epochs=epochs,
        minutes=minutes,
        seed=seed,
        init=init,
        encoder=encoder,
        settings=tuple(settings or ()),
        observed=replace(observed, test=test, augment=augment),
    )
    if out is not None and not resume:
        Run(out).check_free(overwrite=overwrite)
    device = options.find_device(device)
    composed = compose(
        request,
        config_file=config_file,
        resumed=Run(out) if resume and out is not None else None,
    )
    config = composed.config
    if not quiet and str(composed):
        options.say(str(composed))
        if minutes is not None:
            options.say(f"--minutes {minutes:g}: steps are timed first; there may be fewer epochs")
    run = Run(out or Path("runs") / file_name(f"{config.name}-{config.method}"))
    how = {"resume": resume, "overwrite": overwrite, "device": device, "source": composed.source}
    how["ends_at"] = None if minutes is None else began_at + 60 * minutes
    _train_into(run, config, how, as_json=as_json, quiet=quiet)


def _train_into(
    run: "Run", config: "Experiment", how: dict[str, Any], *, as_json: bool, quiet: bool
) -> None:
    """Train into a folder and print what came of it; if the training was stopped, this ends the program."""
    from orbitset.runs.train import train as train_experiment
    from orbitset.training.interruption import Interruption
    from orbitset.training.progress import default_progress

    interruption, progress = Interruption(), default_progress(quiet=quiet)
    with options.interruptible(run):
        results = train_experiment(config, run, progress=progress, interruption=interruption, **how)
        page = _write_report(run)
    _say_results(run, results, page, as_json, has_model=config.keeps_weights)
    if "stopped" in results:
        raise Exit(interruption.exit_code)


def finish(
    folder: Annotated[Path, Argument(metavar="RUN", help="Folder of an interrupted training.")],
    trusted: options.Trust = None,
    device: options.Device = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Make a model of what an interrupted training has learned so far.

    The model has the weights that were best on validation images, or the latest ones where there are no
    such images. The training can still go on with `orbitset train --resume`.

    Example: orbitset finish runs/products-OJ
    """
    from orbitset.recipes.compose import compose
    from orbitset.recipes.request import Request
    from orbitset.run_folder import Run
    from orbitset.runs.train import finish as finish_run
    from orbitset.training.progress import default_progress

    run = Run(folder).require()
    config = compose(Request(), resumed=run).config
    with options.interruptible(run):
        progress = default_progress(quiet=quiet)
        results = finish_run(config, run, device=options.find_device(device), progress=progress)
        page = _write_report(run)
    _say_results(run, results, page, as_json, has_model=config.keeps_weights)


def _say_results(
    run: "Run", results: dict[str, Any], page: Path, as_json: bool, *, has_model: bool
) -> None:
    """Print the results of a training, and say what can be done with it. Where one checkpoint was kept, the
    table for people is of that one alone."""
    of_kept_checkpoint = results
    if has_model and not as_json and run.read_json("config.json")["train"].get("keep") == "best":
        rows = [row for row in results["rows"] if not row["metric"].endswith("_stopped")]
        of_kept_checkpoint = results | {"rows": rows}
    options.print_results(of_kept_checkpoint, as_json)
    _say_notes(run, results, has_model=has_model)
    options.say(f"\nreport: {page}" + (f"\nmodel: {run.path}" if has_model else ""))
    if stopped := results.get("stopped"):
        options.say(
            f"stopped after {stopped['step']:,} of {stopped['steps']:,} steps; the model can be used as it is"
            f"\ngo on with the training: {run.resume_command}"
        )


def _write_report(run: "Run") -> Path:
    from orbitset.report import write_report  # it brings matplotlib, which training can do without

    return write_report(run)


def _say_notes(run: "Run", results: dict[str, Any], *, has_model: bool) -> None:
    """Say where nothing was gained, what thresholds rest on, and what was left out."""
    from orbitset.models.folder import read_description
    from orbitset.report.tables import compared_with_baselines

    if no_gain := compared_with_baselines(results["rows"], results.get("tested_on")):
        options.say(f"\n{textwrap.fill(f'note: {no_gain}. {_NO_GAIN}', 80)}")
    calibration = read_description(run.path).calibration if has_model else None
    if calibration is not None and calibration.about_pairs:
        options.say(f"\n{textwrap.fill(f'note: {calibration.about_pairs}', 80)}")
    if (run / "left_out.json").exists():
        options.say(f"\nleft out: {_left_out(run)}\nall of them: {run / 'left_out.json'}")


def _left_out(run: "Run") -> str:
    from orbitset.datasets.table import Problem, named

    rows = run.read_json("left_out.json")["rows"]
    return named([Problem(row["row"], row["reason"], tuple(row["others"])) for row in rows])


def evaluate(
    folder: RunFolder,
    data: Annotated[
        str | None,
        Argument(
            metavar="[DATA]",
            help="Other grouped images to evaluate the model on: a folder with sub-folders, a "
            "manifest or shards. Default: the images that the run held out.",
        ),
    ] = None,
    orbit: options.OrbitOption = None,
    label: options.LabelOption = None,
    exclude: options.ExcludeOption = None,
    shots: Annotated[
        list[int] | None,
        Option(metavar="N", help="Labelled images per class. Can be repeated; default: 1, 5."),
    ] = None,
    neighbours: Annotated[
        int | None, Option("--k", help="Number of neighbours in k-NN. Default: 5.", min=1)
    ] = None,
    draws: Annotated[
        int | None, Option(help="Random draws of the labelled images. Default: 100.", min=1)
    ] = None,
    gallery: Annotated[
        int | None, Option(help="Labelled images for k-NN and probe. Default: 5,000.", min=10)
    ] = None,
    test_images: Annotated[
        int | None, Option(help="Number of test images, at most. Default: as in training.", min=1)
    ] = None,
    trusted: options.Trust = None,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate a trained model with more measures than in training.

    Models of single images: few-shot recognition, k-NN and a linear probe. Models of grouped images:
    verification, retrieval, one-shot accuracy and clustering, beside raw pixels and the pretrained network
    that training began with.

    Example: orbitset evaluate runs/affine-digits-OJ --shots 1 --shots 5

    Example: orbitset evaluate runs/mine other_products/ --exclude none
    """
    from orbitset.protocols import Numbers
    from orbitset.recipes.own_images import OrbitOptions
    from orbitset.results.row import has_same_cosine
    from orbitset.run_folder import Run
    from orbitset.runs.evaluate import evaluate_run

    numbers = Numbers(
        shots=tuple(shots) if shots else None,
        neighbours=neighbours,
        draws=draws,
        gallery_images=gallery,
        test_images=test_images,
    )
    described = OrbitOptions(
        orbit=options.listed(orbit), label=label, exclude=options.listed(exclude)
    )
    rows = evaluate_run(
        Run(folder),
        numbers,
        data=data,
        options=described,
        device=options.find_device(device),
        say=options.say,
    )
    if not as_json and has_same_cosine(rows):
        rows = [row for row in rows if not row["metric"].endswith("_cosine")]
        options.say("cosine distances give the same scores")
    options.print_results({"rows": rows}, as_json)


def report(
    folder: RunFolder,
    pack_into: PackOption = None,
    as_json: options.Json = False,
) -> None:
    """Write the tables, figures and page of a run or a study anew, from what is in its folder.

    Example: orbitset report runs/demo
    """
    from orbitset.report import write_report
    from orbitset.results.recorded import pack, read_recorded
    from orbitset.results.summary import summarise
    from orbitset.run_folder import Run

    run = Run(folder).require()
    with run.locked():
        recorded = read_recorded(run) if pack_into or run.kind == "study" else None
        page = write_report(run, None if recorded is None else summarise(recorded))
        if recorded is not None and pack_into is not None:
            pack(recorded, pack_into)
    options.print_results(run.read_json("results.json"), as_json)
    options.say(f"\nreport: {page}")
