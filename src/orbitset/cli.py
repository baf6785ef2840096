"""The command line: parses and prints. Progress and messages go to stderr, data to stdout."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitset.errors import ConfigError, OrbitsetError

# GNU OpenMP threads that wait by spinning starve each other when anything else runs on the machine.
# Read when torch is loaded, so it must be set before; a user's own choice stays.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from orbitset.runs import Run

app = typer.Typer(
    name="orbitset",
    help="Image embeddings learned from orbit sets: discriminate-and-rectify encoders.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Look at the data there is.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run folder to write.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Seed = Annotated[
    int | None, typer.Option(help="Of weights, orbits and batches; 0 if not given.", min=0)
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("runs/demo"),
    seed: Seed = None,
    epochs: Annotated[float | None, typer.Option(help="Length of the OJ run.", min=0)] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train OJ, OT and AE on the embedded digits and write a report: a few minutes on two cores.

    Example: orbitset demo --out runs/demo
    """
    from orbitset.experiments.demo import NOTE, demo_configs, run_demo, stored_configs
    from orbitset.report import write_report
    from orbitset.runs import Run
    from orbitset.training.progress import default_progress

    _check_flags(resume, overwrite)
    run = Run(out)
    configs = demo_configs(seed or 0, epochs)
    if resume and run.exists and seed is None and epochs is None:
        configs = stored_configs(run)
    with _interruptible(run):
        results = run_demo(
            configs,
            run,
            resume=resume,
            overwrite=overwrite,
            device=_device(device),
            progress=default_progress(quiet=quiet),
        )
        page = write_report(run)
    _print_results(results, as_json)
    _say(f"\n{NOTE}\nreport: {page}")


@app.command()
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="X", help="A recipe (affine-mnist, affine-digits) or a path of data."
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="OJ, OT, OE, ST, EX or AE.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over all members.")] = None,
    seed: Seed = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, e.g. loss.margin=0.3."),
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="The config.json of an earlier run.")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one method. X is data if such a path exists, otherwise the name of a recipe.

    Example: orbitset train affine-mnist --method OJ --epochs 0.02
    """
    from orbitset.experiments.compose import compose_config
    from orbitset.experiments.single import train as train_experiment
    from orbitset.report import write_report
    from orbitset.runs import Run
    from orbitset.training.progress import default_progress

    _check_flags(resume, overwrite)
    config = compose_config(
        source,
        method=method,
        epochs=epochs,
        seed=seed,
        settings=settings or [],
        config_file=config_file,
        resumed=Run(out) if resume and out is not None else None,
    )
    run = Run(out or Path("runs") / f"{config.name}-{config.method}")
    with _interruptible(run):
        results = train_experiment(
            config,
            run,
            resume=resume,
            overwrite=overwrite,
            device=_device(device),
            progress=default_progress(quiet=quiet),
        )
        page = write_report(run)
    _print_results(results, as_json)
    _say(f"\nreport: {page}")


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")],
    shots: Annotated[list[int] | None, typer.Option(help="Labelled images per class.")] = None,
    neighbours: Annotated[int, typer.Option("--k", help="k of the k-NN row.", min=1)] = 5,
    draws: Annotated[int, typer.Option(help="Draws of the labelled images.", min=1)] = 100,
    gallery: Annotated[
        int, typer.Option(help="Labelled images for k-NN and probe.", min=10)
    ] = 5000,
    test_images: Annotated[int | None, typer.Option(help="Queries.", min=1)] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Evaluate a trained encoder anew: few-shot, k-NN and a linear probe, Euclidean and cosine.

    Example: orbitset evaluate runs/affine-digits-OJ --shots 1 --shots 5
    """
    from orbitset.experiments.reevaluate import evaluate_run
    from orbitset.runs import Run

    rows = evaluate_run(
        Run(folder),
        shots=tuple(shots or (1, 5)),
        neighbours=neighbours,
        draws=draws,
        gallery_images=gallery,
        test_images=test_images,
        device=_device(device),
        say=_say,
    )
    _print_results({"rows": rows}, as_json)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")],
    as_json: Json = False,
) -> None:
    """Rebuild the tables, figures and page of a run from its folder alone.

    Example: orbitset report runs/demo
    """
    from orbitset.report import write_report
    from orbitset.runs import Run

    run = Run(folder)
    page = write_report(run)
    _print_results(run.read_json("results.json"), as_json)
    _say(f"\nreport: {page}")


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """Name the data sets, what is in them and whether they are here.

    Example: orbitset data list
    """
    from orbitset.datasets.mnist import data_root, is_mnist_folder

    folder = data_root() / "mnist"
    sets = {
        "digits": {"images": 1797, "size_px": 16, "here": True, "where": "embedded"},
        "mnist": {
            "images": 70000,
            "size_px": 28,
            "here": is_mnist_folder(folder),
            "where": str(folder),
        },
    }
    if as_json:
        print(json.dumps({"data": sets}))
        return
    for name, about in sets.items():
        here = "here" if about["here"] else "not here"
        print(
            f"{name:<8} {about['images']:>6,} images, {about['size_px']} px  {here}: {about['where']}"
        )


@data_app.command("check")
def data_check(
    source: Annotated[str, typer.Argument(metavar="X", help="mnist, digits or a path of data.")],
    as_json: Json = False,
) -> None:
    """Read data whole, verify it and say what was found; fetches MNIST where it is absent.

    Example: orbitset data check mnist
    """
    from orbitset.datasets.named import load_splits

    splits = load_splits(source)
    shape = list(splits.train.images.shape[1:])
    labels = splits.train.labels
    found = {
        "data": source,
        "train": len(splits.train),
        "validation": len(splits.validation),
        "test": len(splits.test),
        "shape": shape,
        "classes": None if labels is None else len(labels.unique()),
    }
    if as_json:
        print(json.dumps(found))
        return
    classes = "no labels" if labels is None else f"{found['classes']} classes"
    size = f"{shape[1]}x{shape[2]} px, {'grey' if shape[0] == 1 else 'colour'}"
    print(
        f"{source}: {len(splits.train):,} to train, {len(splits.validation):,} to label from, "
        f"{len(splits.test):,} to test; {size}, {classes}"
    )


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from orbitset import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; every expected error is one sentence on stderr and an exit code."""
    try:
        code = app(standalone_mode=False)
    except OrbitsetError as error:
        sys.exit(_fail(error.message, error.hint, error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        sys.exit(_fail(f"{error.strerror or error}{where}", None, 1))
    except (MemoryError, RuntimeError) as error:
        is_memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
        if not is_memory and "out of memory" not in str(error):
            raise
        sys.exit(_fail("there is not enough memory for this", "lower the sizes that were set", 1))
    except Exception as error:  # what typer's parser raises; its classes move between versions
        if not hasattr(error, "format_message"):
            raise
        hint = "orbitset --help lists the commands, orbitset COMMAND --help their options"
        sys.exit(_fail(error.format_message(), hint, getattr(error, "exit_code", 2)))
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _interruptible(run: "Run") -> Iterator[None]:
    """Ctrl-C inside says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        is_begun = run.exists
        _say(f"\ninterrupted; go on with: {run.resume_command}" if is_begun else "\ninterrupted")
        raise


def _device(name: str | None) -> str:
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if torch.device(name).type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from None
    return name


def _check_flags(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; give one of them")


def _print_results(results: dict[str, Any], as_json: bool) -> None:
    from orbitset.report import text_table
    from orbitset.runs import without_nan

    rows = results["rows"]
    print(json.dumps({"rows": without_nan(rows)}, allow_nan=False) if as_json else text_table(rows))


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _fail(message: str, hint: str | None, code: int) -> int:
    _say(f"error: {message}" + (f"\n\nhint: {hint}" if hint else ""))
    return code


if __name__ == "__main__":
    main()
