"""A study that was just trained and its packed record are read as the same values."""

import json
import shutil

import numpy as np
import pytest

from orbitset.config import to_dict, with_settings
from orbitset.errors import RunError
from orbitset.protocols import OneShot
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.study import Line, Study
from orbitset.results.recorded import pack, read_recorded, read_training
from orbitset.results.summary import summarise
from orbitset.run_folder import Run
from orbitset.runs.study import run_study


def made_study(run):
    """A study's folder with random scores, without pictures."""
    lines = [
        Line(
            label=method,
            config=with_settings(
                affine_digits(method), ["train.epochs=1", "evaluation.tsne_points=0"]
            ),
        )
        for method in ("OJ", "OE")
    ]
    study = Study(name="made-up", lines=tuple(lines), seeds=(0, 1))
    rng = np.random.default_rng(0)
    run.create(study.describe(), kind="study")
    run.write_json("environment.json", {"command": "orbitset reproduce made-up"})
    for line, seed in study.runs():
        each = Run(run / line.path(seed))
        each.create(to_dict(study.config_of(line, seed)))
        for at in range(3):
            va, te = rng.random((2, 10)).tolist()
            score = {"mean": rng.random(), "sd": None, "va": va, "te": te}
            each.append("metrics.jsonl", {"step": at, "epoch": float(at), "accuracy": score})
            each.append("timing.jsonl", {"step": at, "elapsed_s": rng.random()})
        row = {"method": "pixels", "metric": "accuracy", "mean": 0.1, "sd": 0.01, "n": 5,
               "repeated": "draws", "seeds": 1}  # fmt: skip
        about = {"rows": [row], "protocol": OneShot.about.to_json()}
        each.write_json("results.json", about)
        each.write_json("environment.json", {"device": "a", "commit": None, "seed": seed})
        np.savez(each / "arrays.npz", members=rng.integers(0, 255, (2, 3), np.uint8))
    Run(run / "OE/seed-1").write_json("left_out.json", {"rows": [{"row": 3, "reason": "cut off"}]})
    return study


@pytest.fixture
def folders(tmp_path):
    made_study(Run(tmp_path / "trained"))
    pack(read_recorded(Run(tmp_path / "trained")), tmp_path / "packed")
    return Run(tmp_path / "trained"), Run(tmp_path / "packed")


def test_a_packed_study_is_a_few_files_and_gives_the_same_values(folders):
    trained, packed = map(read_recorded, folders)
    names = ["arrays.npz", "config.json", "environment.json", "metrics.jsonl", "trainings.jsonl"]
    assert sorted(path.name for path in folders[1].path.iterdir()) == names
    assert packed.study == trained.study and packed.environment == trained.environment
    assert list(packed.trainings) == list(trained.trainings) and len(packed.trainings) == 4
    for path, training in trained.trainings.items():
        other = packed.trainings[path]
        for name in ("config", "environment", "results", "records", "times", "left_out"):
            assert getattr(other, name) == getattr(training, name), name
        assert other.arrays.keys() == training.arrays.keys() == {"members"}
        assert np.array_equal(other.arrays["members"], training.arrays["members"])
    assert summarise(packed) == summarise(trained)


def test_packing_again_gives_the_same_bytes(folders, tmp_path):
    pack(read_recorded(folders[1]), tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes(), path.name
    pack(read_recorded(folders[0]), tmp_path / "again")  # which holds a packed study


def test_a_packed_study_is_complete_and_goes_on_only_with_what_is_new(folders, monkeypatch):
    trained = []
    monkeypatch.setattr(
        "orbitset.runs.workers.train", lambda config, run, **_: trained.append(run.path.name)
    )
    study = read_recorded(folders[1]).study
    run_study(study, folders[1], resume=True)
    assert trained == []
    longer = Study(
        name=study.name,
        seeds=study.seeds,
        lines=(*study.lines, Line(label="AE", config=affine_digits("AE"))),
    )
    run_study(longer, folders[1], resume=True)
    assert trained == ["seed-0", "seed-1"]


def test_a_training_with_a_folder_is_read_from_there_beside_the_packed_ones(folders):
    shutil.copytree(folders[0] / "OJ/seed-1", folders[1] / "OJ/seed-1")
    Run(folders[1] / "OJ/seed-1").write_json("environment.json", {"device": "b"})
    recorded = read_recorded(folders[1])
    assert recorded.trainings["OJ/seed-1"].environment == {"device": "b"}
    assert recorded.trainings["OJ/seed-0"].environment["device"] == "a"


def test_overwriting_a_packed_study_leaves_nothing_of_it(folders, monkeypatch):
    monkeypatch.setattr("orbitset.runs.workers.train", lambda *_, **__: None)
    run_study(read_recorded(folders[1]).study, folders[1], overwrite=True)
    assert not read_recorded(folders[1]).trainings


def test_a_folder_with_other_things_is_not_packed_into(folders, tmp_path):
    recorded = read_recorded(folders[0])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("mine")
    for folder in (folders[0].path, tmp_path / "notes", tmp_path / "notes/a.txt"):
        with pytest.raises(RunError, match="choose another folder"):
            pack(recorded, folder)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainings.jsonl", "nonsense\n"),
        ("trainings.jsonl", '{"training": "OJ/seed-0"}\n'),
        ("trainings.jsonl", "[]\n"),
        ("metrics.jsonl", '{"step": 1}\n'),
        ("metrics.jsonl", ""),
        ("environment.json", "[]"),
    ],
)
def test_damage_of_a_packed_study_is_named(folders, name, content):
    (folders[1] / name).write_text(content)
    with pytest.raises(RunError, match=f"packed/{'trainings.jsonl' if 'jsonl' in name else name}"):
        read_recorded(folders[1])


def test_a_damaged_file_of_arrays_is_named(folders):
    for content in (b"", b"PK", b"nonsense"):
        (folders[0] / "OJ/seed-0/arrays.npz").write_bytes(content)
        with pytest.raises(RunError, match=r"arrays\.npz is damaged"):
            assert read_training(Run(folders[0] / "OJ/seed-0")).arrays


def test_arrays_that_are_far_larger_than_their_file_are_refused(folders, monkeypatch):
    np.savez_compressed(folders[0] / "OJ/seed-0/arrays.npz", zeros=np.zeros(200_000, np.uint8))
    monkeypatch.setenv("ORBITSET_DECODING_GB", "1e-4")
    with pytest.raises(
        RunError, match=r"arrays\.npz is damaged: it unpacks to 200,128 bytes, more"
    ):
        assert read_training(Run(folders[0] / "OJ/seed-0")).arrays


def test_numbers_that_json_cannot_hold_are_packed_as_nothing(folders, tmp_path):
    recorded = read_recorded(folders[0])
    recorded.trainings["OJ/seed-0"].records[0]["accuracy"]["mean"] = float("nan")
    pack(recorded, tmp_path / "again")
    first = json.loads((tmp_path / "again/metrics.jsonl").read_text().splitlines()[0])
    assert first["training"] == "OJ/seed-0" and first["accuracy"]["mean"] is None
