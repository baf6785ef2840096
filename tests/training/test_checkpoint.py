import resource
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from orbitset.errors import RunError
from orbitset.training.checkpoint import load_checkpoint, load_model, save_checkpoint, save_model


def _trained(steps, model=None):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    loss = nn.Linear(4, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()])
    _advance(model, loss, optimizer, steps)
    return model, loss, optimizer


def _advance(model, loss, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        loss(model(torch.full((5, 3), step + 1.0) + torch.eye(5, 3))).square().sum().backward()
        optimizer.step()


def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(tmp_path):
    path = tmp_path / "latest.safetensors"
    model, loss, optimizer = _trained(3)
    save_checkpoint(path, model=model, loss=loss, optimizer=optimizer, progress={"step": 3})
    other, other_loss, other_optimizer = _trained(0)
    restored = load_checkpoint(path, model=other, loss=other_loss, optimizer=other_optimizer)
    _advance(model, loss, optimizer, 4)
    _advance(other, other_loss, other_optimizer, 4)
    assert restored == {"step": 3}
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_damaged_checkpoint_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "latest.safetensors"
    model, loss, optimizer = _trained(1)
    save_checkpoint(path, model=model, loss=loss, optimizer=optimizer, progress={"step": 1})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match=r"latest\.safetensors cannot be read"):
        load_checkpoint(path, model=model, loss=loss, optimizer=optimizer)


def test_full_disk_leaves_the_previous_checkpoint_and_no_rubbish(tmp_path):
    """A file-size limit makes the write fail as a full disk does: with OSError in the middle."""
    path = tmp_path / "latest.safetensors"
    model, loss, optimizer = _trained(1)
    save_checkpoint(path, model=model, loss=loss, optimizer=optimizer, progress={"step": 1})
    before = path.read_bytes()
    script = textwrap.dedent(
        """
        import sys, torch
        from pathlib import Path
        from torch import nn
        from orbitset.errors import RunError
        from orbitset.training.checkpoint import save_checkpoint
        model, loss = nn.Linear(300, 400), nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters())
        try:
            save_checkpoint(Path(sys.argv[1]), model=model, loss=loss, optimizer=optimizer,
                            progress={"step": 2})
        except RunError as error:
            print(error, "|", error.hint)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert "step 2 could not be written" in done.stdout, done.stderr
    assert "previous checkpoint is intact" in done.stdout
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["latest.safetensors"]


def test_first_checkpoint_on_a_full_disk_does_not_promise_an_older_one(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    model, loss, optimizer = _trained(1)
    with pytest.raises(RunError) as caught:
        save_checkpoint(
            blocked / "x.safetensors",
            model=model,
            loss=loss,
            optimizer=optimizer,
            progress={"step": 1},
        )
    assert caught.value.hint == "make room, then run the same command with --resume"


def test_saved_model_gives_equal_outputs_and_missing_weights_are_an_error(tmp_path):
    model, *_ = _trained(2)
    save_model(tmp_path / "model.safetensors", model, {"method": "OJ"})
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    load_model(tmp_path / "model.safetensors", other)
    images = torch.randn(6, 3)
    assert torch.equal(model.eval()(images), other.eval()(images))
    with pytest.raises(RunError, match="no weights at"):
        load_model(tmp_path / "none.safetensors", other)
