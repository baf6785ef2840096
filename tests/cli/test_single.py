"""Training on a manifest, as its users do it."""

import csv
import io
import json
import shutil
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image

from orbitset.run_folder import Run

DESCRIBED = ["--orbit", "person,session,light", "--canonical", "view=front", "--label", "person"]
SMALL = ["--set", "encoder.channels=4,8", "--set", "encoder.code_size=16", "--epochs", "1"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_manifest_is_trained_evaluated_and_reported(orbitset, face_manifest, tmp_path):
    out = ["--out", tmp_path / "run"]
    split = ["--split", "session=1,2/3/4"]
    done = orbitset("train", face_manifest, *DESCRIBED, *split, *SMALL, *out, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    names = {"auc", "top1", "accuracy"}
    assert {row["metric"] for row in rows} == names | {f"{name}_stopped" for name in names}
    assert "an orbit shares person, session, light" in done.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    assert "images of the same person with the same light" in page and "Retrieval" in page
    done = orbitset("evaluate", tmp_path / "run", "--exclude", "light:1", "--json")
    assert {"eer", "map", "nmi"} <= {row["metric"] for row in json.loads(done.stdout)["rows"]}
    assert "retrieval leaves out images of the same person nearer than 1 in light" in done.stderr
    assert orbitset("report", tmp_path / "run").returncode == 0
    assert orbitset("train", "--resume", *out).returncode == 0
    assert orbitset("train", "--resume", *out, "--label", "person").returncode == 2
    twice = orbitset("compare", tmp_path / "run", tmp_path / "run")
    assert twice.returncode == 2 and "the same configuration with the same seed" in twice.stderr


def test_problems_stop_it_or_are_left_out_and_said(orbitset, fails, face_manifest, tmp_path):
    rows = face_manifest.read_text().splitlines()
    manifest = face_manifest.with_name("gone.csv")
    manifest.write_text("\n".join([*rows, "gone.png,p0,1,top,0"]))
    command = ["train", manifest, *DESCRIBED, *SMALL, "--method", "AE", "--out", tmp_path / "run"]
    fails(
        orbitset(*command, "--quiet", "--on-problem", "stop"),
        1,
        "1 problem: row 146: gone.png does not exist",
        "--on-problem skip",
    )
    assert not (tmp_path / "run").exists()
    done = orbitset(*command, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "left out: row 146: gone.png does not exist" in done.stderr


def test_a_training_says_where_it_gained_nothing_over_raw_pixels(orbitset, face_manifest, tmp_path):
    still = ["--set", "train.learning_rate=1e-12", "--out", tmp_path / "run", "--json"]
    done = orbitset("train", face_manifest, *DESCRIBED, *SMALL, "--method", "OT", *still)
    assert done.returncode == 0, done.stderr
    means = {(row["method"], row["metric"]): row["mean"] for row in json.loads(done.stdout)["rows"]}
    behind = [m for m in ("auc", "top1") if means["OT", m] <= means["pixels", m]]
    said = " ".join(done.stderr.split())
    assert ("note: raw pixels are " in said) == bool(behind)
    assert ("on 48 test images of 16 orbits" in said) == bool(behind)
    assert "note: The thresholds rest on" in said and "1,000 for 0.1%" in said
    assert all(f"OT {means['OT', measure]:.3f}" in said for measure in behind)


def test_what_describes_a_manifest_is_for_manifests(orbitset, fails, face_manifest, tmp_path):
    fails(orbitset("train", "affine-digits", "--label", "person"), 2, "--label describe")
    fails(orbitset("train", face_manifest), 2, "with --orbit")
    fails(orbitset("train", "none.csv", *DESCRIBED), 2, "none.csv cannot be read")
    fails(orbitset("tune", face_manifest, "--orbit", "person"), 2)
    damaged = ["--on-problem", "ignore"]
    fails(orbitset("train", face_manifest, *DESCRIBED, *damaged), 2, "stop, skip")


def test_what_was_trained_is_used_by_every_other_command(orbitset, face_manifest, tmp_path):
    run, photos = tmp_path / "run", tmp_path / "photos"
    command = ["train", face_manifest, *DESCRIBED, *SMALL, "--test", "session=4", "-q", "-o", run]
    done = orbitset(*command)
    assert done.returncode == 0, done.stderr
    assert f"model: {run}" in done.stderr
    for person in range(3):
        (photos / f"p{person}").mkdir(parents=True)
        for view in range(3):
            name = f"{person}3{view}0.png"
            shutil.copy(face_manifest.parent / name, photos / f"p{person}" / name)
    one, other = photos / "p0" / "0310.png", photos / "p1" / "1310.png"
    index, codes = tmp_path / "index", tmp_path / "codes.parquet"
    for arguments, said in (
        (["embed", run, photos, "-o", codes], "9 codes of 16 numbers"),
        (["index", "add", run, index, photos], "9 added, 0 replaced; 9 images"),
        (["search", run, index, one, "--k", 3, "--sheet", tmp_path / "found.html"], "0310.png"),
        (["rectify", run, photos, "-o", tmp_path / "upright"], "9 images"),
        (["verify", run, one, one, "-o", tmp_path / "pair.png"], "the same: distance 0"),
        (["verify", run, one, other], "threshold"),
        (["dedupe", run, photos, "--threshold", 1e9], "9 of them in 1 group"),
        (["classify", run, one, other, "--examples", photos, "--closed"], "p1"),
        (["export", run, "--onnx", "-o", tmp_path / "model"], "differs from PyTorch by at most"),
        (["search", tmp_path / "model", index, one], "p0/0300.png"),
        (["index", "remove", index, photos / "p0"], "3 removed; 6 images left"),
    ):
        done = orbitset(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert said in done.stdout, (arguments, done.stdout)
    assert len(list((tmp_path / "upright").rglob("*.png"))) == 9


def test_shards_are_checked_trained_on_and_embedded(orbitset, fails, face_manifest, tmp_path):
    with face_manifest.open() as file:
        rows = list(csv.DictReader(file))
    for shard in range(3):
        with tarfile.open(tmp_path / f"faces-{shard:02}.tar", "w") as tar:
            for row in rows[shard::3]:
                path = face_manifest.parent / row.pop("path")
                tar.add(path, path.name)
                about = tarfile.TarInfo(path.with_suffix(".json").name)
                content = json.dumps(row).encode()
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
    (tmp_path / "faces-03.tar").touch()
    shards, run = tmp_path / "faces-{00..03}.tar", tmp_path / "run"
    sheet = tmp_path / "orbits.html"
    done = orbitset("data", "check", shards, *DESCRIBED[:4], "--sheet", sheet)
    assert done.returncode == 1 and "48 orbits with 3 members each" in done.stdout
    assert "problem: row 145: faces-03.tar is empty: it has 0 bytes" in done.stdout
    assert sheet.read_text().count("<img") == 24 and "0000.png" in sheet.read_text()
    assert ": 3 members" in sheet.read_text()
    split = ["--split", "session=1,2/3/4"]
    command = ["train", shards, *DESCRIBED, *split, *SMALL, "-q", "-o", run]
    fails(orbitset("train", shards, "-o", run), 2, "--orbit", "has person, session, view, light")
    fails(orbitset(*command, "--on-problem", "stop"), 1, "faces-03.tar is empty")
    done = orbitset(*command)
    assert "top-1 retrieval\n" in done.stdout and "best on validation" not in done.stdout
    assert done.returncode == 0, done.stderr
    assert "left out: row 145: faces-03.tar is empty" in done.stderr
    done = orbitset("embed", run, shards, "-o", tmp_path / "codes.npy")
    assert "144 codes of 16 numbers" in done.stdout
    assert "faces-03.tar is empty" in done.stderr
    names = (tmp_path / "codes.paths.txt").read_text().splitlines()
    assert names[0] == str(tmp_path / "faces-00.tar" / "0000.png")
    done = orbitset("dedupe", run, shards, "--threshold", 1e9, "--sheet", sheet)
    assert done.returncode == 0 and sheet.read_text().count("<img") == 60
    done = orbitset("verify", run, names[0], face_manifest.parent / "0000.png", "--threshold", 1)
    assert "the same: distance 0" in done.stdout


@pytest.fixture
def album(tmp_path):
    """Forty images that each show something else, and a broken one."""
    folder = tmp_path / "album"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(40):
        pixels = np.kron(rng.random((6, 6, 3)), np.ones((4, 4, 1)))
        Image.fromarray((pixels * 255).astype(np.uint8)).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def test_plain_images_are_learned_by_changing_them(orbitset, fails, album, tmp_path):
    out = tmp_path / "run"
    done = orbitset("train", album, *SMALL, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    assert "every image is an orbit of its own" in done.stderr
    assert "broken.png" in done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["method"] for row in rows if row["metric"] == "top1"] == [
        "pixels", "untrained", "OJ",
    ]  # fmt: skip
    assert "found, among all of them" in (out / "report.html").read_text()
    done = orbitset("embed", out, album, "-o", tmp_path / "codes.npy")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "codes.npy").shape == (40, 16)
    assert orbitset("train", "--resume", "--out", out).returncode == 0
    again = json.loads(orbitset("evaluate", out, "--json").stdout)["rows"]
    assert [row["mean"] for row in again if row["metric"] == "top1"] == [
        row["mean"] for row in rows if (row["method"], row["metric"]) == ("OJ", "top1")
    ]
    refused = orbitset("evaluate", out, "--shots", 1)
    assert refused.returncode == 2 and "no numbers of labelled or test images" in refused.stderr
    fails(orbitset("train", album, "--on-problem", "stop"), 1, "broken.png")
    fails(orbitset("train", album, "--orbit", "person"), 2, "has no sub-folders")
    fails(orbitset("tune", album), 2, "without labels")
    grey = ["train", album, "--init", out, "--set", "orbits.is_colour=false"]
    fails(orbitset(*grey, "--quiet", "--out", tmp_path / "grey"), 2, "another network")
    fails(orbitset("train", album, *SMALL, "--method", "ST", "--quiet"), 2, "labels")


def test_plain_images_are_checked(orbitset, album):
    done = orbitset("data", "check", album)
    assert done.returncode == 1, "an image is broken"
    assert "40 images" in done.stdout and "broken.png" in done.stdout
    assert "every image is an orbit of its own" in done.stdout


def test_a_training_goes_on_from_a_model(orbitset, fails, face_manifest, model_folder, tmp_path):
    command = ["train", face_manifest, *DESCRIBED, "--init", model_folder]
    done = orbitset(*command, "--epochs", "0.01", "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert "16 px, grey" in done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["encoder"]["channels"] == [4, 8]
    assert config["init"] == str(model_folder)
    other = ["--set", "encoder.code_size=8", "--out", tmp_path / "other"]
    fails(orbitset(*command, *other, "--quiet"), 2, "is another network than the one")
    fails(orbitset(*command, "--method", "OT-STN"), 2, "has no spatial transformer")
    fails(orbitset(*command[:-1], tmp_path), 2, "is no model")
    fails(orbitset("train", "--resume", "--out", tmp_path / "run", "--init", tmp_path), 2, "--init")


def test_classes_of_some_rows_are_learned_beside_the_orbits(
    orbitset, fails, face_manifest, tmp_path
):
    rows = list(csv.reader(face_manifest.read_text().splitlines()))
    person = rows[0].index("person")
    kinds = {"p0": "a", "p1": "b", "p2": "a"}
    path = face_manifest.with_name("kinds.csv")

    def write(kind_of):
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [[*rows[0], "kind"], *([*row, kind_of(row)] for row in rows[1:])]
            )

    write(lambda row: kinds.get(row[person], ""))
    out = tmp_path / "run"
    command = ["train", path, *DESCRIBED, *SMALL, "--out", out]
    fails(orbitset(*command, "--classes", "kinds"), 1, "no factor kinds", "did you mean kind?")
    fails(orbitset(*command, "--classes", "kind", "--method", "ST"), 2, "leave out the classes")
    done = orbitset(*command, "--classes", "kind")
    assert done.returncode == 0, done.stderr
    assert "classes of kind are learned beside them" in done.stderr
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["terms"]["classes"] > 0
    assert orbitset("train", "--resume", "--out", out).returncode == 0

    write(lambda row: row[rows[0].index("view")])  # members of an orbit differ
    other = ["--out", tmp_path / "other", "--classes", "kind"]
    fails(orbitset(*command[:-2], *other, "--quiet"), 1, "give an orbit one class")


NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, in_channels):
        super().__init__(nn.Conv2d(in_channels, 6, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
"""


def test_a_network_of_ones_own_is_trained_and_used(
    orbitset, fails, face_manifest, tmp_path, monkeypatch
):
    code = tmp_path / "code"
    code.mkdir()
    (code / "own_net.py").write_text(NET)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(code)
    out = tmp_path / "run"
    command = ["train", face_manifest, *DESCRIBED, *SMALL, "--out", out]
    fails(orbitset(*command, "--encoder", "own_net:Nett"), 2, "did you mean Net?")
    fails(orbitset(*command, "--encoder", "net"), 2, "give vgg, timm:NAME")
    assert not out.exists()
    own = ["--encoder", "own_net:Net", "--set", "train.backbone_rate=0.1"]
    done = orbitset(*command, *own, "--quiet")
    assert done.returncode == 0, done.stderr
    assert orbitset("train", "--resume", "--out", out).returncode == 0
    images = sorted(face_manifest.parent.rglob("*.png"))[:3]
    done = orbitset("embed", out, *images, "-o", tmp_path / "codes.npy")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "codes.npy").shape == (3, 16)
    assert orbitset("export", out, "--onnx", "-o", tmp_path / "onnx").returncode == 0
    assert orbitset("rectify", out, *images, "-o", tmp_path / "upright").returncode == 0
    more = ["--init", out, "--out", tmp_path / "more"]
    fails(
        orbitset(*command[:-2], *more, "--encoder", "own_net:Net"), 2, "takes the model's network"
    )
    assert orbitset(*command[:-2], *more, "--quiet").returncode == 0

    monkeypatch.chdir(tmp_path)  # where that code is not
    monkeypatch.delitem(sys.modules, "own_net")
    wanted = "cannot import the encoder own_net:Net: No module named 'own_net'"
    fails(orbitset("embed", out, *images, "-o", tmp_path / "other.npy"), 1, wanted)


@pytest.fixture
def things(tmp_path):
    """A folder with a sub-folder for each of 8 things, and a manifest of the same images."""
    random, lines = np.random.default_rng(0), ["path,thing,view"]
    for thing in range(8):
        folder = tmp_path / "products" / f"thing{thing}"
        folder.mkdir(parents=True)
        for view in ("front", "left", "right"):
            pixels = random.integers(0, 256, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{view}.png")
            lines.append(f"products/thing{thing}/{view}.png,thing{thing},{view}")
    (tmp_path / "things.csv").write_text("\n".join(lines))
    return tmp_path


def test_a_folder_is_described_by_its_sub_folders(orbitset, things):
    small = ["--set", "encoder.channels=4", "--epochs", "1", "--out", things / "run"]
    done = orbitset("train", things / "products", *small)
    assert done.returncode == 0, done.stderr
    assert (
        "Each sub-folder is an orbit; its target is its medoid, the image nearest to its others.\n"
        in done.stderr
    )
    assert "Trained on 6 orbits (thing0, …), tested on 2 (thing3, thing6).\n" in done.stderr
    assert "retrieval leaves out" not in done.stderr and " members; 1 epoch\n" in done.stderr


def test_what_is_mistyped_is_refused_in_words_that_name_it(orbitset, fails, things, monkeypatch):
    monkeypatch.chdir(things)
    recipes = "there is no file, folder or recipe 'productz'; the recipes are affine-mnist"
    fails(orbitset("train", "productz"), 2, recipes, "did you mean products/?")
    described = ["train", "things.csv", "--orbit", "thing", "--canonical"]
    one_of = "view is 'frnt'; choose one of front, left, right"
    fails(orbitset(*described, "view=frnt"), 2, one_of, "did you mean front?")
    fails(
        orbitset("train", "products", "--epochs", "-3"),
        2,
        "--epochs is -3; give a finite number above",
    )
    for wrong in ("info_nce", "my_losses.py"):
        words = f"--loss is '{wrong}'; write it as MODULE:NAME, such as my_losses:info_nce"
        fails(orbitset("train", "products", "--loss", wrong), 2, words)
    fails(orbitset("evaluate", "--foo"), 2, "orbitset evaluate --help lists its options")
    fails(orbitset("embed", "none", "products", "-o", "c.npy"), 2, "there is no folder none")
    fails(
        orbitset("index", "add", "none", "i", "products", "--kind", "flt"),
        2,
        "--kind is 'flt'; choose one of flat, ivf, hnsw",
        "did you mean flat?",
    )
    fails(orbitset("cache", "--older-than", "-1"), 2, "--older-than is -1; give a number of days")


def test_a_model_of_an_unfinished_run_is_refused_with_how_to_go_on(orbitset, fails, things):
    run = Run(things / "run")
    run.create({"name": "x", "method": "OJ"})
    done = orbitset("embed", run.path, things / "products", "-o", things / "codes.npy")
    fails(done, 2, "holds a run that is not finished", "orbitset train --resume --out")


def test_data_check_says_whether_train_would_take_the_data(orbitset, things, monkeypatch):
    monkeypatch.chdir(things)
    done = orbitset("data", "check", "products")
    assert "8 orbits with 3 members each\n" in done.stdout
    assert done.stdout.endswith("next: orbitset train products\n")
    without = orbitset("data", "check", "things.csv")
    assert (
        "train would refuse this: name the factors that members of an orbit share" in without.stdout
    )
    named = orbitset("data", "check", "things.csv", "--orbit", "thing")
    assert named.stdout.endswith("next: orbitset train things.csv --orbit thing\n")
    flat = things / "flat"
    flat.mkdir()
    for at, path in enumerate(sorted(things.glob("products/*/front.png"))):
        shutil.copy(path, flat / f"{at}.png")
    refused = "train would refuse this: "
    assert refused in orbitset("data", "check", "flat").stdout
    np.save("x.npy", np.random.default_rng(0).random((40, 16, 16)).astype("float32"))
    assert "24 to train, 8 to validate, 8 to test" in orbitset("data", "check", "x.npy").stdout
