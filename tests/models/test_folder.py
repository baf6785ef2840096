"""A model folder that is whole loads to the same codes; every other one is refused for what is wrong."""

import json
import os
import pickle
import shutil
import sys

import numpy as np
import pytest
import safetensors.torch

import orbitset
from orbitset.errors import ConfigError, RunError
from orbitset.files import write_atomically
from orbitset.models import folder as folders
from orbitset.models import load_model_folder, save_model_folder

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 16, 16), dtype=np.uint8)


@pytest.fixture
def copy(model_folder, tmp_path):
    """A model folder to damage."""
    return shutil.copytree(model_folder, tmp_path / "copy")


def _change(folder, *place, value):
    description = json.loads((folder / "model.json").read_text())
    part = description
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (folder / "model.json").write_text(json.dumps(description))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"channels": 3, "code_norm": "batch"},
        {"size_px": 28, "has_transformer": True},
        {"unpooling": "switches", "pool": 4, "code_norm": "unit"},
    ],
)
def test_what_is_loaded_gives_the_same_codes_bit_for_bit(build_model, tmp_path, options):
    model = build_model(**options)
    save_model_folder(model, tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "model.json",
        "model.safetensors",
        "README.md",
    }
    loaded = orbitset.load(tmp_path / "model")
    assert np.array_equal(loaded.embed(IMAGES), model.embed(IMAGES))
    assert np.array_equal(loaded.rectify(IMAGES), model.rectify(IMAGES))
    assert loaded.calibration == model.calibration
    assert not loaded.network.training


def test_weights_made_on_the_way_are_kept(build_model, tmp_path):
    model = build_model(code_norm="batch")
    model.network.train()(model.prepare(IMAGES))
    model.network.eval()
    save_model_folder(model, tmp_path / "model")
    assert np.array_equal(orbitset.load(str(tmp_path / "model")).embed(IMAGES), model.embed(IMAGES))


def test_loading_unpickles_nothing_and_needs_no_experiments(model_folder, monkeypatch):
    def refuse(*_):
        pytest.fail("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setitem(sys.modules, "orbitset.experiments", None)
    monkeypatch.setitem(sys.modules, "orbitset.training", None)
    assert orbitset.load(model_folder).embed(IMAGES).shape == (5, 16)


def test_a_saved_model_can_be_saved_again_and_keeps_its_id(model_folder, tmp_path):
    loaded = orbitset.load(model_folder)
    save_model_folder(loaded, tmp_path / "again")
    assert orbitset.load(tmp_path / "again").id == loaded.id


def test_nothing_that_is_there_is_written_over(build_model, model_folder, tmp_path):
    with pytest.raises(RunError, match="already holds a model; choose another folder"):
        save_model_folder(build_model(), model_folder)
    for name in ("README.md", "model.safetensors"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("precious")
        with pytest.raises(RunError, match=f"{name} exists already"):
            save_model_folder(build_model(), folder)
        assert [path.read_text() for path in folder.iterdir()] == ["precious"]


@pytest.mark.parametrize("whole_files", [0, 1, 2, 3])
def test_after_a_kill_the_same_model_can_be_saved_again(
    build_model, knowing_folder, tmp_path, monkeypatch, whole_files
):
    model, folder, files = orbitset.load(knowing_folder), tmp_path / "model", []

    def killed(path, content):
        if len(files) == whole_files:
            path.parent.mkdir(exist_ok=True)
            path.with_name(f".{path.name}.{2**22 + 1}.part").write_bytes(content[:10])
            raise KeyboardInterrupt
        files.append(path.name)
        write_atomically(path, content)

    monkeypatch.setattr(folders, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        save_model_folder(model, folder)
    monkeypatch.undo()
    with pytest.raises(RunError, match="is no model: it has no model.json"):
        load_model_folder(folder)
    if whole_files:
        with pytest.raises(RunError, match="model.safetensors exists already; choose another"):
            save_model_folder(build_model(seed=5), folder)
    save_model_folder(model, folder)
    assert load_model_folder(folder).id == model.id
    assert {path.name for path in folder.iterdir()} == {
        path.name for path in knowing_folder.iterdir()
    }


def test_what_is_no_folder_of_a_model_is_named(tmp_path):
    (tmp_path / "file").touch()
    for name, what in (
        ("gone", "there is no folder .*gone"),
        ("file", "is no model"),
        ("", "is no model"),
    ):
        with pytest.raises(RunError, match=what) as caught:
            load_model_folder(tmp_path / name)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "known.safetensors"])
def test_a_named_pipe_is_no_file_of_a_model(copy, name):
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    with pytest.raises(RunError, match=rf"{name} cannot be read: it is no ordinary file$"):
        load_model_folder(copy)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "model.json cannot be read: Expecting property name"),
        ("", "model.json cannot be read: Expecting value"),
        ("[" * 100_000, "model.json cannot be read: it is nested more than 50 deep"),
        ('{"a":' * 900 + "1" + "}" * 900, "model.json cannot be read: it is nested more than 50"),
        (" " * 1_000_001, "model.json cannot be read: it has 1,000,001 bytes, more than 1,000,000"),
        ("[]", "does not describe a model of orbitset"),
        ('{"kind": "bert"}', "does not describe a model of orbitset"),
    ],
)
def test_a_damaged_description_is_refused(copy, content, reason):
    (copy / "model.json").write_text(content)
    with pytest.raises(RunError, match=reason):
        load_model_folder(copy)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (["format"], 2, "has format 2; this version of orbitset reads format 1"),
        (["format"], None, "has format None"),
        (["more"], 1, "is damaged: there is no setting 'more'"),
        (["input", "more"], 1, "is damaged: there is no setting 'input.more'"),
        (["input", "size_px"], "large", "is damaged: input.size_px is 'large'"),
        (["input", "size_px"], 17, "describes no network: images of 17 px cannot be halved"),
        (["input", "size_px"], 32, "is of another network"),
        (["input", "channels"], 3, "is of another network"),
        (["network", "encoder", "code_size"], 10**12, "is of another network"),
        (["network", "encoder", "channels"], [10**15] * 2, "describes no network"),
        (["network", "encoder", "channels"], [10**25], "describes no network"),
        (["network", "encoder", "code_size"], 10**40, "describes no network"),
        (["input", "size_px"], 16 * 10**40, "describes no network"),
        (["network", "encoder", "code_norm"], "none", "is of another network"),
        (["network", "has_transformer"], True, "describes no network: .* too small"),
        (["trained"], {}, "is damaged: the setting trained.name is missing"),
        (["calibration", "auc"], float("nan"), "is damaged: calibration.auc is nan"),
        (["id"], "0" * 16, r"model.json says 0{16}: one of them is damaged, or"),
    ],
)
def test_a_description_of_something_else_is_refused(copy, place, value, reason):
    _change(copy, *place, value=value)
    with pytest.raises(RunError, match=reason):
        load_model_folder(copy)


def test_weights_of_another_model_are_refused(copy, build_model, tmp_path):
    save_model_folder(build_model(seed=1), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", copy)
    with pytest.raises(RunError, match="they do not belong together"):
        load_model_folder(copy)
    save_model_folder(build_model(code_size=8), tmp_path / "smaller")
    shutil.copy(tmp_path / "smaller" / "model.safetensors", copy)
    with pytest.raises(RunError, match="is of another network than model.json describes"):
        load_model_folder(copy)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_truncated_weights_are_refused(copy, kept):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(RunError, match="model.safetensors cannot be read"):
        load_model_folder(copy)


def test_missing_and_foreign_weights_are_refused(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(safetensors.torch.save({}))
    with pytest.raises(RunError, match="is of another network"):
        load_model_folder(copy)
    weights.unlink()
    with pytest.raises(RunError, match="has no model.safetensors: the weights"):
        load_model_folder(copy)
    weights.mkdir()
    with pytest.raises(RunError, match="model.safetensors cannot be read"):
        load_model_folder(copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(build_model, tmp_path, value):
    model = build_model()
    name, weights = next(iter(model.network.named_parameters()))
    weights.data.view(-1)[3] = value
    save_model_folder(model, tmp_path / "model")
    with pytest.raises(RunError, match=f"has weights that are no numbers, in {name}"):
        load_model_folder(tmp_path / "model")


def test_a_device_that_is_not_there_is_refused(model_folder):
    with pytest.raises(ConfigError, match="device 'nope' cannot be used here"):
        load_model_folder(model_folder, device="nope")
