import resource

import pytest
import safetensors.torch
import torch
from torch import nn

from orbitset.errors import RunError
from orbitset.training.checkpoint import (
    Learner,
    has_checkpoint,
    load_checkpoint,
    save_checkpoint,
    save_model,
)


def _trained(steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    loss = nn.Linear(4, 2)
    learner = Learner(model, loss, torch.optim.Adam([*model.parameters(), *loss.parameters()]))
    _advance(learner, steps)
    return learner


def _advance(learner, steps):
    for step in range(steps):
        learner.optimizer.zero_grad()
        codes = learner.model(torch.full((5, 3), step + 1.0) + torch.eye(5, 3))
        learner.loss(codes).square().sum().backward()
        learner.optimizer.step()


def _same(one, other):
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def notes():
    return []


@pytest.fixture
def twice(tmp_path):
    """A folder with the checkpoints of steps 1 and 2, and what was trained."""
    learner = _trained(0)
    for step in (1, 2):
        _advance(learner, 1)
        save_checkpoint(tmp_path, learner, {"step": step})
    return tmp_path, learner


def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(tmp_path, notes):
    learner, other = _trained(3), _trained(0)
    save_checkpoint(tmp_path, learner, {"step": 3}, best={"0.weight": torch.ones(2)})
    progress, best = load_checkpoint(tmp_path, other, notes.append)
    _advance(learner, 4)
    _advance(other, 4)
    assert progress == {"step": 3} and notes == []
    assert list(best) == ["0.weight"] and torch.equal(best["0.weight"], torch.ones(2))
    assert _same(learner, other)


def test_the_checkpoint_before_the_latest_is_kept_and_no_other(twice):
    folder, learner = twice
    _advance(learner, 1)
    save_checkpoint(folder, learner, {"step": 3})
    assert {p.name for p in folder.iterdir()} == {"latest.safetensors", "previous.safetensors"}
    other = _trained(0)
    (folder / "latest.safetensors").unlink()  # as a kill between two renames leaves it
    assert has_checkpoint(folder)
    assert load_checkpoint(folder, other, print)[0] == {"step": 2}
    assert _same(other, _trained(0)) is False


def test_a_flipped_bit_is_noticed_wherever_it_is_and_the_older_checkpoint_taken(twice, notes):
    folder, _ = twice
    path = folder / "latest.safetensors"
    whole = path.read_bytes()
    expected = _trained(1)
    for place in range(0, len(whole), max(1, len(whole) // 97)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        notes.clear()
        other = _trained(0)
        progress, _ = load_checkpoint(folder, other, notes.append)
        if not notes:  # spaces at the end of the header, which mean nothing
            assert chr(whole[place]).isspace() and progress == {"step": 2}, place
            continue
        assert progress == {"step": 1} and _same(other, expected)
        (note,) = notes
        assert "latest.safetensors is damaged: " in note
        assert note.endswith("; training goes on from the one before it, at step 1")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:100], lambda data: b"", lambda data: data[:-1]]
)
def test_where_both_checkpoints_are_damaged_both_are_named(twice, damage):
    folder, learner = twice
    for path in folder.iterdir():
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=r"latest\.s.* is damaged: .*previous\.s.* is dam") as caught:
        load_checkpoint(folder, learner, print)
    assert caught.value.hint == "start anew with --overwrite"


def test_a_checkpoint_of_another_model_is_refused(twice):
    folder, learner = twice
    learner.model.append(nn.Linear(4, 4))
    with pytest.raises(RunError, match="is of another model than the configuration's"):
        load_checkpoint(folder, learner, print)


def test_full_disk_leaves_the_previous_checkpoint_and_no_rubbish(tmp_path):
    """A file-size limit makes the write fail as a full disk does: with OSError in the middle."""
    path = tmp_path / "latest.safetensors"
    save_checkpoint(tmp_path, _trained(1), {"step": 1})
    before = path.read_bytes()
    model, loss = nn.Linear(300, 400), nn.Linear(4, 2)
    learner = Learner(model, loss, torch.optim.Adam(model.parameters()))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(RunError, match="step 2 could not be written") as caught:
            save_checkpoint(tmp_path, learner, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "previous checkpoint is intact" in caught.value.hint
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["latest.safetensors"]


def test_first_checkpoint_on_a_full_disk_does_not_promise_an_older_one(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(RunError) as caught:
        save_checkpoint(blocked / "folder", _trained(1), {"step": 1})
    assert caught.value.hint == "make room, then run the same command with --resume"


def test_equal_weights_are_equal_files(tmp_path):
    for name in ("a", "b"):
        save_model(tmp_path / name, _trained(2).model, {"method": "OJ"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    weights = safetensors.torch.load_file(tmp_path / "a")
    assert torch.equal(weights["0.weight"], _trained(2).model[0].weight)
