"""Training on a manifest, as its users do it."""

import json
import shutil

import pytest

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
    assert {row["metric"] for row in rows} == {"auc", "top1", "auc_stopped", "top1_stopped"}
    assert "an orbit shares person, session, light" in done.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    assert "its person with its" in page and "Retrieval" in page
    done = orbitset("evaluate", tmp_path / "run", "--json")
    assert {"eer", "map", "nmi"} <= {row["metric"] for row in json.loads(done.stdout)["rows"]}
    assert orbitset("report", tmp_path / "run").returncode == 0
    assert orbitset("train", "--resume", *out).returncode == 0
    assert orbitset("train", "--resume", *out, "--label", "person").returncode == 2
    assert orbitset("compare", tmp_path / "run", tmp_path / "run").returncode == 1


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


def test_what_describes_a_manifest_is_for_manifests(orbitset, fails, face_manifest, tmp_path):
    fails(orbitset("train", "affine-digits", "--label", "person"), 2, "--label describe")
    fails(orbitset("train", face_manifest), 2, "with --orbit")
    fails(orbitset("train", "none.csv", *DESCRIBED), 1, "none.csv cannot be read")
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
        (["dedupe", run, photos, "--threshold", 1e9], "9 of them in 1 groups"),
        (["classify", run, one, other, "--examples", photos, "--closed"], "p1"),
        (["export", run, "--onnx", "-o", tmp_path / "model"], "differs from PyTorch by at most"),
        (["search", tmp_path / "model", index, one], "p0/0300.png"),
        (["index", "remove", index, photos / "p0"], "3 removed; 6 images left"),
    ):
        done = orbitset(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert said in done.stdout, (arguments, done.stdout)
    assert len(list((tmp_path / "upright").rglob("*.png"))) == 9
