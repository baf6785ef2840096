"""What a training says when memory does not suffice: which batch to try, and how to go on."""

from collections.abc import Iterator
from contextlib import contextmanager

from orbitset.errors import RunError
from orbitset.memory import is_out_of_memory
from orbitset.recipes.experiment import Experiment
from orbitset.run_folder import Run
from orbitset.training.checkpoint import has_checkpoint


@contextmanager
def memory_for(config: Experiment, run: Run, device: str) -> Iterator[None]:
    """Inside, an error for want of memory becomes a sentence; checkpoints stay as they are."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        orbits, members = config.orbits.orbits_per_batch, config.orbits.members_per_batch
        anew = f"start anew with a smaller batch: add --overwrite {_smaller(orbits, members)}"
        if has_checkpoint(run.checkpoints):
            anew = f"{run.ways_on}\nor {anew} (a resumed training keeps its batch)"
        raise RunError(
            f"{device} has too little memory to train with batches of {orbits} orbits x {members} members",
            hint=anew,
        ) from None


def _smaller(orbits: int, members: int) -> str:
    """Settings of a batch of half as many images, as far as there can be one.

    >>> _smaller(30, 4), _smaller(2, 13)
    ('--set orbits.orbits_per_batch=15', '--set orbits.members_per_batch=6 --set orbits.orbits_per_batch=2')
    """
    if orbits > 3:
        return f"--set orbits.orbits_per_batch={orbits // 2}"
    half = max(2, members // 2)
    return f"--set orbits.members_per_batch={half} --set orbits.orbits_per_batch={orbits}"
