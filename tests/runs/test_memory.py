"""A training that runs out of memory loses nothing, and says which batch to try."""

import pytest
import torch

from orbitset.errors import RunError
from orbitset.orbits.batches import OrbitBatches
from orbitset.run_folder import Run
from orbitset.runs.train import train


@pytest.fixture
def scarce(monkeypatch):
    """Memory suffices for so many batches."""
    batch = OrbitBatches.batch

    def suffices(num, error):
        def get(self, index):
            if index >= num:
                raise error
            return batch(self, index)

        monkeypatch.setattr(OrbitBatches, "batch", get)

    yield suffices


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()], ids=["GPU", "CPU"]
)
def test_the_last_checkpoint_is_kept_and_can_be_gone_on_from(
    small_faces, tmp_path, scarce, monkeypatch, error
):
    config = small_faces("OJ", "train.checkpoint_every_s=0", "train.epochs=2")
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    train(config, whole)
    scarce(3, error)
    with pytest.raises(
        RunError, match=r"cpu has too little memory to train with batches"
    ) as raised:
        train(config, run)
    orbits = config.orbits.orbits_per_batch
    assert f"--set orbits.orbits_per_batch={orbits // 2}" in raised.value.hint
    assert f"go on with it: {run.resume_command}" in raised.value.hint
    assert "a resumed training keeps its batch" in raised.value.hint
    monkeypatch.undo()
    train(config, run, resume=True)
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_smaller_batch_starts_anew_in_the_same_folder(small_faces, tmp_path, scarce, monkeypatch):
    config, run = small_faces("OJ", "train.epochs=1"), Run(tmp_path / "run")
    scarce(0, torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(RunError, match="too little memory") as raised:
        train(config, run)
    assert "start anew with a smaller batch: add --overwrite --set" in raised.value.hint
    monkeypatch.undo()
    smaller = small_faces("OJ", "train.epochs=1", "orbits.orbits_per_batch=3")
    train(smaller, run, overwrite=True)
    assert run.is_finished
