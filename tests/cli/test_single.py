"""Training on a manifest, as its users do it."""

import json

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
