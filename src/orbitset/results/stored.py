"""A study as its folder has it."""

from orbitset.config import differences
from orbitset.errors import RunError
from orbitset.recipes.experiment import read_experiment
from orbitset.recipes.study import Line, Study, read_study
from orbitset.run_folder import Run


def stored_study(run: Run) -> Study:
    """The study a folder was started with."""
    config = run.require().config
    if run.kind != "study":
        raise RunError(f"{run.path} holds no study, but a run of {config['name']}", is_usage=True)
    try:
        return read_study(config)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run / 'config.json'} is damaged: {error}") from None


def check_run(study: Study, line: Line, seed: int, run: Run) -> None:
    """Refuse a run in the place of another: copied, or of an earlier study in the same folder."""
    if not run.exists and run.has_results:
        raise RunError(f"{run / 'config.json'} is missing or damaged")
    if run.exists:
        changes = differences(read_experiment(run.config), study.config_of(line, seed))
        if changes:
            raise RunError(
                f"{run.path} is not the run of {line.name}, seed {seed}, that belongs there "
                f"({'; '.join(changes)})",
                hint="remove that folder, or start the study anew with --overwrite",
            )
