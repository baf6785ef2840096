"""What a training begins with, seen by what it records before its first step."""

import csv
import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from orbitset.encoders.hugging_face import HubNetwork
from orbitset.models import load_model_folder
from orbitset.run_folder import Run
from orbitset.runs.decoder import decoder_share
from orbitset.runs.evaluate import evaluate_run

NET = """
import torch
from torch import nn

class Known(nn.Module):
    size_px, mean, sd, is_pretrained = 16, (0.5,) * 3, (0.25,) * 3, True
    constructed = 0

    def __init__(self):
        super().__init__()
        Known.constructed += 1
        torch.manual_seed(5)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 5, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()
        )

    def forward(self, images):
        return self.layers(images)
"""
SPLIT = ["--orbit", "person", "--label", "person", "--split", "person=p0,p1/p2,p3/p4,p5"]
SHORT = [
    *("--set", "encoder.channels=4,8", "--set", "evaluation.pictures=0"),
    *("--set", "evaluation.tsne_labels=0", "--epochs", "0.2", "--set", "train.precision=float32"),
]


@pytest.fixture
def known(tmp_path, monkeypatch):
    (tmp_path / "known_net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    yield "known_net:Known"
    sys.modules.pop("known_net", None)


@pytest.fixture
def train(orbitset, face_manifest, known, tmp_path):
    def call(*options):
        out = tmp_path / "run"
        command = ["train", face_manifest, *SPLIT, "--encoder", known, *SHORT, *options]
        done = orbitset(*command, "--out", out, "--overwrite")
        assert done.returncode == 0, done.stderr
        return Run(out), done

    return call


def _frozen(manifest, people):
    """AUC and top-1 of the network's own features by cosine, in plain torch."""
    from known_net import Known

    with manifest.open() as file:
        rows = [row for row in csv.DictReader(file) if row["person"] in people]
    grey = np.stack([np.asarray(Image.open(manifest.parent / row["path"])) for row in rows])
    images = torch.from_numpy(grey / 255).float()[:, None].expand(-1, 3, -1, -1)
    with torch.no_grad():
        codes = Known().eval()((images - 0.5) / 0.25)
    codes = torch.nn.functional.normalize(codes.double(), dim=1)
    distance = (codes[:, None] - codes).square().sum(2)
    label = torch.tensor([people.index(row["person"]) for row in rows])
    is_same = label[:, None] == label
    pairs = torch.triu_indices(len(rows), len(rows), 1)
    same, other = (
        distance[pairs[0], pairs[1]][is_same[pairs[0], pairs[1]] == truth]
        for truth in (True, False)
    )
    auc = (same[:, None] < other).double().mean()
    nearest = distance.fill_diagonal_(torch.inf).argmin(1)
    return {"auc": float(auc), "top1": float((label[nearest] == label).double().mean())}


def test_a_network_of_your_own_is_constructed_once(train):
    train("--method", "OT")
    from known_net import Known

    assert Known.constructed == 1


@pytest.mark.parametrize("method", ["OT", "OJ"])
def test_before_training_codes_retrieve_as_the_frozen_network_does(train, face_manifest, method):
    run, _ = train("--method", method)
    first, frozen = run.records()[0], _frozen(face_manifest, ["p4", "p5"])
    for name, value in frozen.items():
        assert first[name]["mean"] == pytest.approx(value, abs=1e-6)
    rows = run.read_json("results.json")["rows"]
    named = {(row["method"], row["metric"]): row["mean"] for row in rows}
    assert named["frozen", "auc"] == first["auc"]["mean"]
    assert {"pixels", "frozen", method} == {row["method"] for row in rows}


def test_its_size_mean_and_spread_of_images_are_its_own(train):
    run, done = train("--method", "OT")
    assert "16 px, colour" in done.stderr
    encoder = run.read_json("config.json")["encoder"]
    assert (encoder["code_size"], encoder["is_pretrained"]) == (72, True)


def test_smaller_codes_begin_as_principal_components(train, face_manifest):
    """What that loses is said, and the features themselves are what is compared with."""
    run, done = train("--method", "OT", "--set", "encoder.code_size=4")
    assert re.search(
        r"codes of 4 numbers begin as (whitened )?principal components of 72 features: "
        r"one-shot accuracy \d\.\d{3} on validation images, all features \d\.\d{3}",
        done.stderr,
    )
    frozen = _frozen(face_manifest, ["p4", "p5"])
    rows = run.read_json("results.json")["rows"]
    named = {(row["method"], row["metric"]): row["mean"] for row in rows}
    assert named["frozen", "auc"] == pytest.approx(frozen["auc"], abs=1e-6)
    assert run.records()[0]["auc"]["mean"] != named["frozen", "auc"]


def test_frozen_codes_are_kept_where_training_does_not_beat_them(train):
    """A learning rate that spoils the network: the weights before training are the best."""
    run, done = train(
        "--method", "OT", "--set", "train.learning_rate=1000", "--epochs", "1", "--augment"
    )
    records, rows = run.records(), run.read_json("results.json")["rows"]
    validated = [record["accuracy"]["va"][0] for record in records]
    assert max(validated[1:]) <= validated[0]
    named = {(row["method"], row["metric"]): row["mean"] for row in rows}
    assert named["OT", "auc"] == named["frozen", "auc"] == records[0]["auc"]["mean"]
    assert "did not retrieve validation images better than the frozen network" in done.stderr


@pytest.fixture
def spoiled(orbitset, face_manifest, known, tmp_path):
    """A command that trains a network at a rate at which it forgets; and a folder."""
    rates = ("--set", "train.backbone_rate=1e5", "--set", "train.head_rate=1e5")
    length = ("--epochs", "9", "--augment")
    return ["train", face_manifest, *SPLIT, "--encoder", known, *SHORT, *rates, *length], tmp_path


def _rectified(folder):
    """The frozen codes are kept; and how much rectified images of two people differ."""
    model = load_model_folder(folder).network.eval()
    images = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    from known_net import Known

    plain = Known().eval()((images - 0.5) / 0.25)
    assert torch.allclose(model.encode(images), torch.nn.functional.normalize(plain), atol=1e-6)
    return model.rectify(images).var(0).mean().item()


def test_a_decoder_learns_the_frozen_codes_that_are_kept(spoiled, orbitset):
    command, tmp_path = spoiled
    done = orbitset(*command, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    sentence = (
        r"training did not retrieve validation images better than the frozen network, whose codes are kept; "
        r"after \d+ steps of training the decoder learned from them for [\d]+ more steps?"
    )
    *_, note = Run(tmp_path / "run").read_json("results.json")["notes"]
    assert re.fullmatch(sentence, note)
    assert note[1:] in (tmp_path / "run/model-card.md").read_text()
    assert _rectified(tmp_path / "run") > 1e-4, "not one picture of all"


@pytest.mark.parametrize(("kept", "learns"), [(1, True), (-1, False)])
def test_a_decoder_learns_from_codes_of_the_first_half_that_are_kept(
    train, monkeypatch, kept, learns
):
    def best(self, records):
        return records[min(kept, len(records) - 1)]

    monkeypatch.setattr("orbitset.runs.judge.Choice.best", best)
    run, done = train("--method", "IN+R", "--epochs", "3", "--set", "train.patience=null")
    records = run.records()
    step = records[kept]["step"]
    note = f"the codes of step {step} are kept, which retrieve validation images best; after "
    assert (
        any(text.startswith(note) for text in run.read_json("results.json").get("notes", []))
        == learns
    )
    monkeypatch.setenv("ORBITSET_TRUST", "known_net")
    anew = {(row["method"], row["metric"]): row["mean"] for row in evaluate_run(run)}
    assert anew["IN+R", "auc"] == pytest.approx(records[kept]["auc"]["mean"], abs=1e-6)


def test_a_kill_while_the_decoder_learns_changes_nothing(spoiled, orbitset, monkeypatch):
    """Neither where the training is resumed, nor where it is finished."""
    command, tmp_path = spoiled
    assert orbitset(*command, "--out", tmp_path / "whole").returncode == 0

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("orbitset.runs.decoder._DecoderAlone.decode", stop)
        assert orbitset(*command, "--out", tmp_path / "resumed").returncode != 0
    shutil.copytree(tmp_path / "resumed", tmp_path / "finished")
    trust = ("--trust", "known_net")
    assert orbitset("train", "--resume", "--out", tmp_path / "resumed", *trust).returncode == 0
    assert orbitset("finish", tmp_path / "finished", *trust).returncode == 0
    for name in ("model.safetensors", "results.json", "metrics.jsonl"):
        whole, *others = (
            (tmp_path / folder / name).read_bytes() for folder in ("whole", "resumed", "finished")
        )
        assert others == [whole, whole]


@pytest.mark.parametrize(
    ("method", "init", "share"), [("IN+R", "model", 0.05), ("IN", "model", 0), ("IN+R", None, 0)]
)
def test_the_time_of_a_training_has_room_for_its_decoder(small_faces, method, init, share):
    config = replace(small_faces(method, "encoder.decoder=free"), init=init)
    loss = config.loss.build(config.loss_context(num_orbits=2, num_classes=0))
    assert decoder_share(config, loss) == share


@pytest.mark.parametrize("size", ["null", "4"])
def test_evaluating_anew_has_the_frozen_network_beside_the_codes(train, size, monkeypatch):
    run, _ = train("--method", "OT", "--set", f"encoder.code_size={size}")
    monkeypatch.setenv("ORBITSET_TRUST", "known_net")
    found = {(row["method"], row["metric"]): row["mean"] for row in evaluate_run(run)}
    rows = run.read_json("results.json")["rows"]
    assert {row["method"] for row in rows} == {"pixels", "frozen", "OT"}
    for row in [row for row in rows if not row["metric"].endswith("_stopped")]:
        assert found[row["method"], row["metric"]] == pytest.approx(row["mean"], abs=1e-6)
    assert "| frozen network |" in (run / "model-card.md").read_text()


def test_it_is_used_and_resumed_like_any_other(train, orbitset, known, face_manifest, tmp_path):
    run, _ = train("--method", "OT")
    before = (run / "model.safetensors").read_bytes()
    assert orbitset("train", "--resume", "--out", run.path, "--trust", "known_net").returncode == 0
    assert (run / "model.safetensors").read_bytes() == before
    image = next(face_manifest.parent.glob("*.png"))
    done = orbitset("embed", run.path, image, "-o", tmp_path / "codes.npy", "--trust", "known_net")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "codes.npy").shape == (1, 72)


@pytest.mark.parametrize("setting", ["lora=4", "layer_decay=0.5"])
def test_what_a_network_has_no_blocks_for_is_refused_before_anything_is_written(
    orbitset, face_manifest, tmp_path, setting
):
    (tmp_path / "plain_net.py").write_text(
        "from torch import nn\n\nclass Plain(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.one = nn.Conv2d(1, 4, 3)\n\n"
        "    def forward(self, images):\n        return self.one(images)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        command = ["train", face_manifest, *SPLIT, "--encoder", "plain_net:Plain", *SHORT]
        done = orbitset(*command, "--set", f"train.{setting}", "--out", tmp_path / "none")
    assert done.returncode == 2 and "numbered blocks" in done.stderr
    assert not (tmp_path / "none").exists()


def test_low_rank_additions_are_merged_into_the_model(
    orbitset, face_manifest, tmp_path, monkeypatch
):
    """A resumed training ends as one that was never stopped, and what is kept is a plain network, whose codes
    are those that were scored."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    network = transformers.Dinov2Model(
        transformers.Dinov2Config(image_size=28, patch_size=14, **sizes)
    )
    network.save_pretrained(tmp_path / "dino")
    processing = {"crop_size": 28, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "dino/preprocessor_config.json").write_text(json.dumps(processing))
    how = ["lora=4", "average=0.9", "layer_decay=0.8", "unfreeze=0.2", "recompute=true"]
    command = ["train", face_manifest, *SPLIT, "--encoder", f"hf:{tmp_path / 'dino'}", *SHORT]
    command += ["--method", "IN", *(part for text in how for part in ("--set", f"train.{text}"))]
    constructed, construct = [], HubNetwork.__init__

    def counted(self, *parts):
        constructed.append(self)
        construct(self, *parts)

    with monkeypatch.context() as patch:
        patch.setattr(HubNetwork, "__init__", counted)
        assert orbitset(*command, "--out", tmp_path / "a").returncode == 0
    assert len(constructed) == 1

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("orbitset.runs.train._finish", stop)
        assert orbitset(*command, "--out", tmp_path / "b").returncode != 0
    assert orbitset("train", "--resume", "--out", tmp_path / "b").returncode == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    rows = json.loads(orbitset("evaluate", tmp_path / "a", "--json").stdout)["rows"]
    anew = {row["metric"]: row["mean"] for row in rows if row["method"] == "IN"}
    kept = Run(tmp_path / "a").read_json("results.json")["rows"]
    auc = next(r["mean"] for r in kept if (r["method"], r["metric"]) == ("IN", "auc"))
    assert anew["auc"] == auc


def test_it_can_be_trained_from_random_weights(train):
    run, _ = train("--method", "OT", "--set", "encoder.is_pretrained=false")
    methods = {row["method"] for row in run.read_json("results.json")["rows"]}
    assert methods == {"pixels", "untrained", "OT"}


def test_components_are_of_images_as_they_are_not_of_augmented_ones(train):
    begun = [
        train("--set", "encoder.code_size=5", option)[0].records()[0]
        for option in ("--augment", "--no-augment")
    ]
    assert begun[0] == begun[1]
