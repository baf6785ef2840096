"""Load a finished run: its model, its images, and what judges it."""

from orbitset.encoders import Encoder
from orbitset.errors import RunError
from orbitset.models.folder import WEIGHTS, load_model_folder, read_description
from orbitset.recipes.experiment import Experiment, read_experiment, resolved
from orbitset.run_folder import Run
from orbitset.runs.begin import other_network
from orbitset.runs.judge import Judge
from orbitset.runs.prepare import Images, build_protocol, open_images

_MOST_NAMED = 3
"""How many of the runs in a folder an error names"""


def load_run(run: Run, *, device: str = "cpu") -> tuple[Encoder, Images, Judge]:
    """The trained model of a finished run, its images, and what judges it."""
    model, config = load_trained(run, device=device)
    images = open_images(config, device)
    return model, images, Judge(config, build_protocol(config, images))


def load_trained(run: Run, *, device: str = "cpu") -> tuple[Encoder, Experiment]:
    """The trained model of a finished run, and how it was trained."""
    run.require().refuse_search("loaded")
    if run.kind != "run":
        runs = run.config["runs"]
        more = f" and {len(runs) - _MOST_NAMED:,} more" if len(runs) > _MOST_NAMED else ""
        raise RunError(
            f"{run.path} holds the runs {', '.join(runs[:_MOST_NAMED])}{more}; name one of them",
            hint=f"{run / runs[0]}",
        )
    config = read_experiment(run.config)
    if not config.keeps_weights:
        raise RunError(f"{run.path} is of private images, so that its weights were not kept")
    run.require_model()
    if not (run / WEIGHTS).is_file():
        raise RunError(
            f"there are no weights at {run / WEIGHTS}: the run is not finished, or they were not kept"
        )
    description = read_description(run.path)
    if other := other_network(description.network.encoder, config.encoder):
        raise RunError(
            f"model.json and config.json of {run.path} are of different networks: {other}"
        )
    config = resolved(config, run.path)
    return load_model_folder(run.path, device=device).network.eval(), config
