import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import orbitset
from orbitset.config import with_settings
from orbitset.datasets.source import open_source
from orbitset.errors import ConfigError, DataError, RunError
from orbitset.protocols import Numbers
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.experiment import read_experiment
from orbitset.recipes.own_images import OrbitOptions, observed_images
from orbitset.results.recorded import read_training
from orbitset.run_folder import Run
from orbitset.runs.evaluate import evaluate_run
from orbitset.runs.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = ["encoder.channels=4,8", "train.epochs=0.005", "train.evaluations=1"]
    settings += ["evaluation.test_images=60", "evaluation.draws=5", "evaluation.tsne_points=0"]
    run = Run(tmp_path_factory.mktemp("runs") / "OJ")
    train(with_settings(affine_digits("OJ"), settings), run)
    return run


def test_one_shot_gives_the_numbers_of_the_training(run):
    rows = evaluate_run(run, Numbers(shots=(1,), draws=5, gallery_images=100))
    ours = {row["metric"]: row for row in rows}
    trained = [row for row in run.read_json("results.json")["rows"] if row["method"] == "OJ"]
    trained = [row for row in trained if row["metric"].startswith("accuracy")]
    assert [ours[row["metric"]] for row in trained] == trained
    assert len(trained) == 2


def test_whole_gallery_rows_claim_no_spread(run):
    rows = evaluate_run(run, Numbers(shots=(1,), draws=5, gallery_images=100))
    whole = [row for row in rows if row["metric"].startswith(("knn", "probe"))]
    assert len(whole) == 3
    assert all(row["sd"] is None and row["n"] == 1 for row in whole)


def test_more_neighbours_than_labelled_images_and_folders_of_runs_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="k is 101 but only 100"):
        evaluate_run(run, Numbers(shots=(1,), neighbours=101, gallery_images=100))
    demo = Run(tmp_path / "demo")
    demo.create({"name": "demo", "runs": ["OJ", "AE"]})
    with pytest.raises(RunError, match="holds the runs OJ, AE; name one") as refused:
        evaluate_run(demo)
    assert refused.value.hint == str(tmp_path / "demo" / "OJ")
    study = Run(tmp_path / "study")
    study.create({"name": "heads", "runs": [f"OJ/{split}" for split in range(40)]})
    with pytest.raises(RunError, match="holds the runs OJ/0, OJ/1, OJ/2 and 37 more; name one"):
        evaluate_run(study)


def test_images_that_have_changed_are_said_and_not_trained_on(face_manifest, tmp_path):
    folder = tmp_path / "faces"
    shutil.copytree(face_manifest.parent, folder)
    options = OrbitOptions(
        orbit=["person", "session", "light"], canonical="view=front", test="session=4"
    )
    config = observed_images(open_source(str(folder / "faces.csv")), options=options)
    small = ["encoder.channels=4,8", "encoder.code_size=16", "train.epochs=1"]
    config, run = with_settings(config, small), Run(tmp_path / "run")
    train(config, run)
    said = []
    evaluate_run(run, say=said.append)
    assert not any("warning" in text or "left out" in text for text in said)
    precisions = ("float32", "bfloat16")
    assert said[-1] in [f"scores were taken with the network in {name}" for name in precisions]
    lines = (folder / "faces.csv").read_text().splitlines()
    (folder / lines[-1].split(",")[0]).write_bytes(b"")
    evaluate_run(run, say=said.append)
    assert any(
        "have changed since this run was trained, 144 images then, 143 now" in text for text in said
    )
    assert any("left out: row 145: " in text for text in said)
    (run / "results.json").unlink()
    with pytest.raises(RunError, match="cannot go on: the images in .* have changed since"):
        train(config, run, resume=True)


def test_a_run_whose_files_disagree_on_the_network_is_refused(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run.path, other)
    config = json.loads((other / "config.json").read_text())
    config["encoder"]["contrast"] = "local"  # which no weight tells of
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match=r"different networks: encoder\.contrast: given → local"):
        evaluate_run(Run(other))


def test_a_run_without_weights_is_refused_before_its_images_are_made(run, tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(run.path, other)
    (other / "model.safetensors").unlink()
    monkeypatch.setattr("orbitset.runs.load.open_images", None)
    with pytest.raises(RunError, match="no weights at .*not finished, or they were not kept"):
        evaluate_run(Run(other))


RECALL = """
import torch

def recall(codes, labels):
    distances = torch.cdist(codes.double(), codes.double()).fill_diagonal_(torch.inf)
    return (labels[distances.argmin(1)] == labels).double().mean()
"""


@pytest.fixture
def recall(tmp_path, monkeypatch):
    (tmp_path / "recall_measures.py").write_text(RECALL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ORBITSET_TRUST", "recall_measures")
    return "recall_measures:recall"


def _means(rows, name):
    return {row["method"]: row["mean"] for row in rows if row["metric"] == name}


def test_a_measure_from_outside_is_taken_at_every_evaluation(run, recall, tmp_path):
    config = replace(read_experiment(run.config), measures=(recall,))
    other = Run(tmp_path / "run")
    rows = _means(train(config, other)["rows"], "recall")
    values = [record["recall"]["mean"] for record in other.records()]
    assert len(values) == 2 and len({*values, rows["pixels"]}) == 3
    assert rows == {"pixels": rows["pixels"], "untrained": values[0], "OJ": values[-1]}
    assert _means(evaluate_run(other, Numbers(draws=5)), "recall") == {"OJ": values[-1]}
    about = other.read_json("model.json")["trained"]
    assert about["scores"]["recall"] == values[-1]
    assert about["baselines"]["recall"] == rows["pixels"]
    for record, plain in zip(other.records(), run.records(), strict=True):
        assert {name: value for name, value in record.items() if name != "recall"} == plain


def test_a_measure_from_outside_has_the_scores_of_both_sides(small_faces, recall, tmp_path):
    config = replace(small_faces("OJ", "train.epochs=1"), measures=(recall,))
    run = Run(tmp_path / "run")
    train(config, run)
    for record in run.records():
        assert {side: len(record["recall"][side]) for side in ("va", "te")} == {"va": 1, "te": 1}
        assert record["recall"]["te"] == [record["recall"]["mean"]]
    assert "recall" in {row["metric"] for row in evaluate_run(run)}


@pytest.fixture(scope="module")
def faces(tmp_path_factory, small_faces):
    run = Run(tmp_path_factory.mktemp("faces") / "run")
    train(small_faces("OJ", "train.epochs=1"), run)
    return run


def test_raw_pixels_and_the_codes_have_the_rows_of_the_training(faces):
    said = []
    rows = evaluate_run(faces, say=said.append)
    found = {(row["method"], row["metric"]): row["mean"] for row in rows}
    trained = [row for row in faces.read_json("results.json")["rows"] if row["method"] == "pixels"]
    assert {row["metric"] for row in trained} == {"auc", "top1", "accuracy"}
    assert all(found["pixels", row["metric"]] == row["mean"] for row in trained)
    assert ("OJ", "accuracy_cosine") in found and ("untrained", "auc") not in found
    assert "leaves out images of the same person with the same light or view" in said[0]


def test_what_retrieval_leaves_out_may_be_said(faces):
    rows = {}
    for exclude in (["none"], ["light", "view"], ["view", "light:1"]):
        of_rule = evaluate_run(faces, options=OrbitOptions(exclude=exclude))
        rows[exclude[0]] = {(row["method"], row["metric"]): row["mean"] for row in of_rule}
    assert rows["view"]["OJ", "top1"] == _means(evaluate_run(faces), "top1")["OJ"]
    assert rows["light"] == rows["view"]
    assert rows["none"]["OJ", "top1"] >= rows["view"]["OJ", "top1"]
    assert rows["none"]["OJ", "auc"] == rows["view"]["OJ", "auc"]
    with pytest.raises(ConfigError, match="--orbit, --label describe other images"):
        evaluate_run(faces, options=OrbitOptions(orbit=["person"], label="person"))


@pytest.fixture
def others(face_manifest, tmp_path):
    """A folder with a sub-folder for each of three people, whom the run has never seen under these names."""
    for line in face_manifest.read_text().splitlines()[1:]:
        name, person, session, *_ = line.split(",")
        if person in ("p3", "p4", "p5") and session == "1":
            (tmp_path / "others" / person).mkdir(parents=True, exist_ok=True)
            shutil.copy(face_manifest.parent / name, tmp_path / "others" / person / name)
    return tmp_path / "others"


def test_a_model_is_evaluated_on_other_images_of_a_folder(faces, others, face_manifest):
    said = []
    rows = evaluate_run(faces, data=str(others), say=said.append)
    found = {(row["method"], row["metric"]): row["mean"] for row in rows}
    assert (
        said[0] == "18 test images of 3 orbits; for each query, retrieval leaves out no other image"
    )
    again = orbitset.load(faces.path)
    paths = sorted(others.rglob("*.png"))
    codes, people = again.embed(paths), np.array([path.parent.name for path in paths])
    distance = ((codes[:, None].astype(float) - codes) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    assert found["OJ", "top1"] == np.mean(people[distance.argmin(1)] == people)
    assert 0 < found["pixels", "top1"] <= 1 and 0 < found["pixels", "accuracy"] <= 1
    assert {row["method"] for row in rows} == {"pixels", "OJ"}


def test_where_the_model_it_began_with_is_gone_its_recorded_scores_are_shown(
    faces, others, small_faces, tmp_path
):
    shutil.copytree(faces.path, tmp_path / "first")
    run = Run(tmp_path / "run")
    train(replace(small_faces("OJ", "train.epochs=1"), init=str(tmp_path / "first")), run)
    started = _means(evaluate_run(run), "top1")["begun with"]
    assert started == _means(evaluate_run(faces), "top1")["OJ"]
    assert "begun with" in _means(evaluate_run(run, data=str(others)), "accuracy")
    shutil.rmtree(tmp_path / "first")
    said = []
    assert _means(evaluate_run(run, say=said.append), "top1")["begun with"] == started
    assert any("the row begun with is as it was recorded in training: " in text for text in said)
    rows = evaluate_run(run, data=str(others), say=said.append)
    assert {row["method"] for row in rows} == {"pixels", "OJ"}
    assert any("the row begun with is missing: there is no folder" in text for text in said)


def test_what_a_model_cannot_be_evaluated_on_is_refused(
    run, faces, others, face_manifest, tmp_path
):
    with pytest.raises(ConfigError, match="trained on a part of .*faces.csv; leave it out"):
        evaluate_run(faces, data=str(face_manifest))
    with pytest.raises(
        ConfigError, match="other grouped images: .* this model is of single images"
    ):
        evaluate_run(run, data=str(others))
    np.save(tmp_path / "images.npy", np.zeros((4, 8, 8), np.uint8))
    with pytest.raises(ConfigError, match="images.npy is none"):
        evaluate_run(faces, data=str(tmp_path / "images.npy"))
    with pytest.raises(DataError, match="no test image has another of its person .* session"):
        evaluate_run(faces, options=OrbitOptions(exclude=["session"]))
    for person in ("p3", "p4"):
        shutil.rmtree(others / person)
    with pytest.raises(DataError, match="cannot be scored: .* no pair of different labels"):
        evaluate_run(faces, data=str(others))
    with pytest.raises(ConfigError, match="--exclude is for models of grouped images"):
        evaluate_run(run, options=OrbitOptions(exclude=["none"]))


def test_a_measure_that_gives_no_number_is_named_and_its_folder_is_free(run, recall, tmp_path):
    path = tmp_path / "recall_measures.py"
    path.write_text(path.read_text() + "\ndef word(codes, labels):\n    return 'x'\n")
    sys.modules.pop("recall_measures", None)
    config, other = read_experiment(run.config), Run(tmp_path / "run")
    with pytest.raises(ConfigError, match="the measure recall_measures:word gave 'x'; give a num"):
        train(replace(config, measures=("recall_measures:word",)), other)
    assert other.exists and not other.is_begun
    train(replace(config, measures=(recall,)), other)
    assert other.is_begun


def test_a_measure_of_a_name_that_is_taken_is_refused(run, recall, tmp_path):
    taken = tmp_path / "recall_measures.py"
    taken.write_text(RECALL + "\naccuracy = recall\n")
    config = read_experiment(run.config)
    for names in (("recall_measures:accuracy",), (recall, recall)):
        with pytest.raises(ConfigError, match="two measures are called"):
            train(replace(config, measures=names), Run(tmp_path / "run"))


@pytest.fixture
def damaged(run, tmp_path):
    """A copy of the run, and what flips a bit of one of its files, at a share of its length."""
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)

    def flip(name, share):
        content = bytearray((run / name).read_bytes())
        content[int(share * (len(content) - 1))] ^= 16
        (folder / name).write_bytes(content)

    return Run(folder), flip


@pytest.mark.parametrize("share", [0, 0.3, 0.5, 0.8, 1])
def test_one_flipped_bit_of_the_weights_is_refused(damaged, share):
    run, flip = damaged
    flip("model.safetensors", share)
    messages = []
    for load in (evaluate_run, lambda run: orbitset.load(run.path)):
        with pytest.raises(
            RunError, match=r"model\.safetensors (has the id|cannot be read)"
        ) as refused:
            load(run)
        messages.append((refused.value.message, refused.value.hint))
    assert messages[0] == messages[1]
    if share == 1:
        assert messages[0][0].endswith("is damaged, or they do not belong together")
        assert messages[0][1].startswith("copy both anew from where the model came from, or train")


def test_weights_without_the_description_they_belong_to_are_refused(damaged):
    run, _ = damaged
    (run / "model.json").unlink()
    with pytest.raises(RunError, match=r"is no model: it has no model\.json"):
        evaluate_run(run)


def test_a_flipped_bit_of_the_arrays_is_refused_or_changes_nothing(damaged):
    run, flip = damaged
    whole, refused = read_training(run).arrays, 0
    for number in range(200):
        flip("arrays.npz", number / 199)
        try:
            changed = read_training(run).arrays
        except RunError as error:
            assert "arrays.npz is damaged" in str(error)
            refused += 1
        else:
            assert whole.keys() == changed.keys()
            assert all(np.array_equal(whole[name], changed[name]) for name in whole)
    assert refused > 150
