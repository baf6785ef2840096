"""What users bring from outside works in an empty folder, without a change to any file of the package.

Every test writes one file of at most 40 lines into an empty folder and runs the installed program there.
"""

import json
import os
import sys

import numpy as np
import processes
import pytest
from PIL import Image

from orbitset import OrbitEncoder
from orbitset.datasets.mnist import data_root, is_mnist_folder

LOSSES = """
def info_nce(codes, batch, *, temperature: float = 0.1):
    logits = (codes @ codes.T / temperature).fill_diagonal_(-1e9)
    same = batch.orbits[:, None] == batch.orbits
    same.fill_diagonal_(False)
    return -logits.log_softmax(1)[same].mean()
"""
NETWORKS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, in_channels):
        layers = nn.Conv2d(in_channels, 6, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        super().__init__(*layers)
"""
MEASURES = '''
import torch

def purity(codes, labels):
    """How often the nearest other code has the same label."""
    nearest = torch.cdist(codes, codes).fill_diagonal_(float("inf")).argmin(1)
    return (labels[nearest] == labels).float().mean()
'''
SOURCES = """
import numpy as np

def images():
    rng = np.random.default_rng(0)
    things = rng.integers(0, 256, (8, 1, 1, 16, 16), dtype=np.uint8)
    noise = rng.integers(0, 20, (8, 2, 3, 16, 16), dtype=np.uint8)
    thing, place = np.repeat(np.arange(8), 6), np.tile(np.repeat(np.arange(2), 3), 8)
    return (things // 2 + noise).reshape(-1, 16, 16), {"thing": thing, "place": place}
"""
PROTOCOLS = """
from dataclasses import dataclass

import torch
from orbitset.evaluation import Labelled, verify
from orbitset.protocols import About, Protocol, Score

@dataclass(frozen=True)
class Settings:
    orbits: int = 50

class Mine(Protocol):
    orbits = "computed"
    Settings = Settings
    about = About(how="AUC over <all> pairs.", measures={"auc": "pairs, mine"}, curves=("auc",))

    def __init__(self, images, settings, *, margin=None):
        self.test, self.settings = images.test, settings

    def held_out(self, encode):
        orbit = torch.arange(self.settings.orbits).repeat_interleave(4)
        member = torch.arange(4).repeat(self.settings.orbits)
        return {"te": Labelled(encode(self.test.members(orbit, member)), orbit)}

    def scores(self, codes, encode):
        return {"auc": Score(mean=verify(codes["te"], fars=()).auc)}
"""
TRUST = ["--trust", "my_losses,my_networks,my_measures,my_protocols,my_sources"]
TINY = ["--set", "encoder.channels=4,8", "--set", "encoder.code_size=16"]
QUICK = ["evaluation.test_images=60", "evaluation.draws=5", "evaluation.tsne_points=0"]
SHORT = [*TINY, "--epochs", "0.01", "--set", "train.evaluations=2", "-q"]
EVALUATE = ["--test-images", "60", "--draws", "5"]
ONE_SHOT = [part for setting in QUICK for part in ("--set", setting)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, which is the current one; what is imported from it is forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in [path.stem for path in tmp_path.glob("*.py")]:
        sys.modules.pop(name, None)


@pytest.fixture
def started(folder):
    """Runs the program in a process of its own, in that folder; gives its rows of results."""

    def start(*arguments):
        process = processes.started(*arguments, "--json")
        printed, said = process.communicate()
        assert process.returncode == 0, said
        return json.loads(printed)["rows"]

    return start


@pytest.fixture
def rows_of(orbitset, folder):
    """Runs the program in this process, which is quicker; gives its rows of results."""

    def call(*arguments):
        done = orbitset(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["rows"]

    return call


def write(folder, name, text):
    assert len(text.strip().splitlines()) <= 40
    (folder / name).write_text(text)


def methods_in(rows, metric="accuracy"):
    return [row["method"] for row in rows if row["metric"] == metric]


def test_a_loss_of_ones_own_is_trained_resumed_evaluated_and_compared(
    folder, started, rows_of, orbitset, fails
):
    write(folder, "my_losses.py", LOSSES)
    loss = ["--loss", "my_losses:info_nce"]
    train = ["train", "affine-digits", *SHORT, *ONE_SHOT]
    own = [*train, *loss, "-o", "mine", "--set", "loss.temperature=0.2"]
    rows = started(*own)
    assert methods_in(rows) == ["pixels", "untrained", "my_losses:info_nce"]
    config = json.loads((folder / "mine/config.json").read_text())
    assert (config["method"], config["loss"]) == ("my_losses:info_nce", {"temperature": 0.2})
    assert started("evaluate", "mine", *TRUST, *EVALUATE)[0]["method"] == "my_losses:info_nce"
    assert rows_of(*own, "--resume") == rows
    assert "info_nce" in (folder / "mine/report.html").read_text()

    rows_of(*train, "--method", "OJ", "-o", "oj")
    compared = json.loads(orbitset("compare", "oj", "mine", "--json").stdout)
    assert methods_in(compared["rows"]) == ["OJ", "my_losses:info_nce"]
    assert {test["against"] for test in compared["tests"]} == {"my_losses:info_nce"}

    train += [*loss, "-o", "wrong"]
    fails(orbitset(*train, "--set", "loss.temprature=0.2"), 2, "did you mean loss.temperature?")
    warm = "loss.temperature is 'warm'; give a number"
    fails(orbitset(*train, "--set", "loss.temperature=warm"), 2, warm)
    margin = "my_losses:info_nce does not use loss.margin"
    fails(orbitset(*train, "--set", "loss.margin=1"), 2, margin)


@pytest.mark.skipif(not is_mnist_folder(data_root() / "mnist"), reason="MNIST is not here")
def test_a_loss_of_ones_own_is_reproduced_beside_the_papers_method(
    folder, started, rows_of, orbitset, fails
):
    write(folder, "my_losses.py", LOSSES)
    study = ["reproduce", "affine-mnist", "--methods", "OJ,my_losses:info_nce", "--no-extras"]
    short = ["--epochs", "0.0003", "--seeds", "1", "--test-images", "60", *TINY, *ONE_SHOT[2:]]
    rows = started(*study, *short, "--set", "loss.temperature=0.2", "-q", "-o", "study")
    mine = {row["method"]: row for row in rows if row["metric"] == "accuracy"}
    assert {"pixels", "untrained", "OJ", "my_losses:info_nce"} == set(mine)
    assert mine["my_losses:info_nce"]["repeated"] == "splits"
    assert mine["my_losses:info_nce"]["epoch"] is not None, "it was stopped early, as OJ was"
    assert mine["my_losses:info_nce"]["p_corrected"] is not None, "it was tested against OJ"
    assert "changed: encoder.channels=4,8" in mine["OJ"]["cut_down"]
    configs = [json.loads(path.read_text()) for path in folder.glob("study/*/seed-0/config.json")]
    assert {"temperature": 0.2} in [config["loss"] for config in configs] and len(configs) == 2
    resume = ["reproduce", "affine-mnist", "--resume", "-o", "study", *TRUST]
    assert rows_of(*resume) == rows_of("report", "study") == rows
    assert "info_nce" in (folder / "study/report.html").read_text()
    wrong = orbitset(*study, "--set", "loss.temprature=0.2", "-o", "other")
    fails(wrong, 2, "did you mean loss.temperature?")


def test_a_loss_of_ones_own_is_tuned(folder, orbitset):
    pytest.importorskip("optuna")
    write(folder, "my_losses.py", LOSSES)
    search = ["tune", "affine-digits", "--methods", "my_losses:info_nce", "-q", "-o", "search"]
    short = ["--trials", "2", "--images", "200", *TINY, *ONE_SHOT[:4], "--json"]
    methods = json.loads(orbitset(*search, *short).stdout)["methods"]
    settings = methods["my_losses:info_nce"]["best"]["settings"]
    assert any(setting.startswith("loss.temperature=") for setting in settings)


def test_the_estimator_takes_a_loss_of_ones_own(folder):
    write(folder, "my_losses.py", LOSSES)
    images, orbits = np.random.default_rng(0).random((12, 8, 8)), np.repeat([0, 1, 2], 4)
    settings = {"loss_settings": {"temperature": 0.2}, "channels": (4,), "epochs": 1}
    encoder = OrbitEncoder(method="my_losses:info_nce", **settings)
    assert encoder.fit(images, orbits).transform(images).shape == (12, 64)
    with pytest.raises(ValueError, match="did you mean loss_settings.temperature"):
        encoder.set_params(loss_settings={"temprature": 0.2}).fit(images, orbits)


def test_a_network_of_ones_own_is_trained_evaluated_and_used(folder, started, rows_of):
    write(folder, "my_networks.py", NETWORKS)
    train = ["train", "affine-digits", "--encoder", "my_networks:Net", *SHORT, *ONE_SHOT]
    rows = started(*train, "-o", "run")
    config = json.loads((folder / "run/config.json").read_text())
    assert config["encoder"]["backbone"] == "my_networks:Net"
    assert methods_in(rows) == ["pixels", "untrained", "OJ"]
    assert methods_in(rows_of("evaluate", "run", *TRUST, *EVALUATE)) == ["OJ"]


def test_a_measure_of_ones_own_is_in_table_curve_and_json(folder, started, rows_of, orbitset):
    write(folder, "my_measures.py", MEASURES)
    measure = ["--measure", "my_measures:purity"]
    rows = started("train", "affine-digits", *measure, *SHORT, *ONE_SHOT, "-o", "run")
    assert methods_in(rows, "purity") == ["pixels", "untrained", "OJ"]
    assert json.loads((folder / "run/config.json").read_text())["measures"] == measure[1:]
    records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert all(0 <= record["purity"]["mean"] <= 1 for record in records) and len(records) == 3
    (folder / "run/figures/purity.png").unlink()
    assert "purity\n" in orbitset("report", "run").stdout
    assert "purity" in (folder / "run/tables/results.md").read_text()
    assert "Purity during training" in (folder / "run/report.html").read_text()
    assert (folder / "run/figures/purity.png").stat().st_size > 1_000
    again = {row["metric"]: row["mean"] for row in rows_of("evaluate", "run", *TRUST, *EVALUATE)}
    assert again["purity"] == records[-1]["purity"]["mean"]


def test_a_protocol_of_ones_own_judges_reports_and_evaluates(
    folder, started, rows_of, orbitset, fails
):
    write(folder, "my_protocols.py", PROTOCOLS)
    train = ["train", "affine-digits", "--protocol", "my_protocols:Mine", *SHORT, "-o", "run"]
    rows = started(*train, "--set", "evaluation.orbits=30")
    assert methods_in(rows, "auc") == ["pixels", "untrained", "OJ"] and len(rows) == 3
    config = json.loads((folder / "run/config.json").read_text())
    assert (config["protocol"], config["evaluation"]) == ("my_protocols:Mine", {"orbits": 30})
    assert rows_of("train", "--resume", "-o", "run", *TRUST) == rows_of("report", "run") == rows
    page = (folder / "run/report.html").read_text()
    assert "AUC over &lt;all&gt; pairs." in page and (folder / "run/figures/auc.png").exists()
    again = rows_of("evaluate", "run", *TRUST)
    assert [row["mean"] for row in again] == [rows[-1]["mean"]]
    wrong = orbitset(*train, "--set", "evaluation.draws=3", "--overwrite")
    fails(wrong, 2, "does not use evaluation.draws")


def test_images_of_ones_own_are_checked_trained_on_and_evaluated(
    folder, started, rows_of, orbitset, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    write(folder, "my_sources.py", SOURCES)
    assert "48" in orbitset("data", "check", "my_sources:images", "--orbit", "thing,place").stdout
    orbits = ["--orbit", "thing,place", "--label", "thing", "--test", "thing=6,7"]
    train = ["train", "my_sources:images", *orbits, *TINY, "--epochs", "1", "-q", "-o", "run"]
    rows = started(*train)
    assert methods_in(rows, "auc") == ["pixels", "untrained", "IM+R"]
    assert json.loads((folder / "run/config.json").read_text())["data"] == "my_sources:images"
    assert rows_of("train", "--resume", "-o", "run", *TRUST) == rows_of("report", "run") == rows
    again = {row["metric"]: row["mean"] for row in rows_of("evaluate", "run", *TRUST)}
    assert again["auc"] == [row["mean"] for row in rows if row["metric"] == "auc"][-1]


def test_a_folder_of_images_is_listed_once_for_a_training(folder, rows_of, monkeypatch):
    rng = np.random.default_rng(0)
    for thing in range(6):
        (folder / "things" / str(thing)).mkdir(parents=True)
        for at in range(3):
            pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "things" / str(thing) / f"{at}.png")
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": listed.append(str(path)) or scandir(path))
    rows_of("train", "things", *TINY, "--epochs", "1", "-q", "-o", "mine")
    assert listed.count(str(folder / "things")) == 1
    assert listed.count(str(folder / "things" / "3")) == 1
