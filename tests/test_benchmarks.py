"""Benchmarks are run by hand; what they need of the package must not change unnoticed meanwhile."""

import importlib
import itertools
import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orbitset.config import differences

FOLDER = Path(__file__).parents[1] / "benchmarks"
MODULES = sorted(path.stem for path in FOLDER.glob("*.py"))
NO_SCRIPTS = ("record", "networks", "peers")


@pytest.fixture
def benchmark_named(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_can_be_imported(benchmark_named, name):
    assert benchmark_named(name).__doc__


@pytest.mark.parametrize("name", [name for name in MODULES if name not in NO_SCRIPTS])
def test_every_benchmark_says_what_it_takes(monkeypatch, capsys, name):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert not ended.value.code and "usage" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["OJ", "OT", "OE", "EX", "ST", "AE"])
def test_our_part_of_the_training_benchmark_takes_a_step(benchmark_named, method):
    step, how = benchmark_named("training").ours(method, "auto", 16, 20, "cpu")
    assert step() == 16 and how == "reference"


def test_the_ways_to_adapt_a_transformer_are_measured(benchmark_named, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pixels = np.random.default_rng(0).integers(0, 255, (22 * 3, 28, 28, 3), np.uint8)
    for name in ("fruits360", "grocery_store"):
        folder = tmp_path / name
        folder.mkdir()
        rows = ["path,thing"] + [f"{at}.png,thing{at // 3}" for at in range(len(pixels))]
        (folder / "manifest.csv").write_text("\n".join(rows))
        for at, image in enumerate(pixels):
            Image.fromarray(image).save(folder / f"{at}.png")
    adaptation = benchmark_named("adaptation")
    out = tmp_path / "out.json"
    command = ["adaptation.py", "--smoke", "--device", "cpu", "--data", tmp_path, "--out", out]
    monkeypatch.setenv("ORBITSET_COMMIT", "")
    monkeypatch.setattr(sys, "argv", [*map(str, command), "--commit", "abc"])
    adaptation.main()
    written = json.loads(out.read_text())
    assert (written["commit"], written["is_smoke"]) == ("abc", True)
    rows = {row["way"]: row for row in written["rows"]}
    assert list(rows) == list(adaptation.WAYS)
    assert len({row["frozen_auc_test"] for row in rows.values()}) == 1
    same = [rows[way]["trained_auc_test"] for way in ("all", "all, recomputed")]
    assert same[0] == same[1]


def test_trainings_on_own_images_are_recorded_and_go_on(benchmark_named, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = benchmark_named("own_images")
    folder = tmp_path / "fruits360"
    folder.mkdir()
    rows = ["path,thing,view,frame"]
    for thing in range(9):
        for view in range(3):
            name = f"{thing}-{view}.png"
            pixels = np.random.default_rng(thing).integers(0, 255, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).rotate(view).save(folder / name)
            rows.append(f"{name},{thing},{view},{view}")
    (folder / "manifest.csv").write_text("\n".join(rows))
    manifest = own.write_manifest(tmp_path, own.SETS["fruits360"])
    assert manifest.read_text().count("validation") == 9
    tiny = ("encoder.channels=2,4", "encoder.code_size=4")
    job = own.Job("fruits360", "scratch: IN", "IN", 0, 18, None, (*own.SAME, *tiny), False)
    line = {"key": job.key, "row": job.row, "data": job.data, "images": job.images}
    line |= own.scores(job, manifest, "cpu")
    assert set(line["scores"]["va"]) == set(own.MEASURES) == set(line["start"]["te"])
    assert line["shown"] >= 18 and line["curve"][0][0] == 0
    text = own.table([line, {**line, "images": 5}], "va", {"scratch": 18})
    assert text.count("scratch: IN") == 1 and f"{line['scores']['va']['auc']:.3f}" in text
    assert (
        len({job.key for job in own.planned(2, 0.1)})
        == len(list(own.planned(2, 0.1)))
        == 4 + 2 * 64
    )


@pytest.fixture
def made_up_pie32(tmp_path):
    """As many people as there are, with two cameras and two flashes."""
    folder = tmp_path / "data" / "pie32"
    (folder / "images").mkdir(parents=True)
    rows = ["path,identity,camera,flash"]
    for person, camera, flash in itertools.product(range(1, 67), ("c05", "c27"), ("f02", "f03")):
        name = f"images/{person:03d}_{camera}_{flash}.png"
        pixels = np.random.default_rng(person).integers(0, 255, (16, 16), np.uint8)
        Image.fromarray(pixels).rotate(10 * (camera == "c05")).save(folder / name)
        rows.append(f"{name},{person:03d},{camera},{flash}")
    (folder / "manifest.csv").write_text("\n".join(rows))
    return folder.parent


def test_ignoring_is_tested_on_people_that_were_only_trained_on(
    benchmark_named, made_up_pie32, tmp_path
):
    ignoring = benchmark_named("ignoring")
    manifest = ignoring.write_pie32(made_up_pie32, tmp_path / "split")
    part = ignoring.parts_of_pie32(made_up_pie32 / "pie32" / "manifest.csv")
    assert Counter(part.values()) == {"train": 43, "test": 16, "validation": 7}
    before = ignoring.held_out_before(made_up_pie32 / "pie32" / "manifest.csv")
    assert len(before) == 43 and {part[person] for person in before} == {"train"}
    assert ignoring.own.num_trained(manifest) == 43 * 4
    with_, without = (
        ignoring.composed(ignoring.own.Job("pie32", f"OJ{ignore}", "OJ", 0, 172), manifest).config
        for ignore in (", --ignore", "")
    )
    changes = {change.partition(":")[0] for change in differences(without, with_)}
    assert changes == {"orbits.ignore", "orbits.alike", "orbits.alike_values"}


def test_ignoring_is_recorded_and_goes_on(benchmark_named, made_up_pie32, tmp_path, monkeypatch):
    ignoring = benchmark_named("ignoring")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    manifests = {"pie32": ignoring.write_pie32(made_up_pie32, tmp_path / "split")}
    job = next(job for job in ignoring.planned(1, 20) if job.row == "OJ, --ignore")
    result = ignoring.scores(manifests, "cpu", job)
    probe = result["probes"]["te"]
    assert (probe["people"], probe["images"]) == (16, 64)
    assert probe["flash"]["excess"] == pytest.approx(probe["flash"]["accuracy"] - 0.5)
    out = tmp_path / "out.jsonl"
    lines = [{"key": job.key, "row": job.row, "data": job.data, "images": job.images, **result}]
    out.write_text("\n".join(map(json.dumps, lines)))
    left = ignoring.own.missing(ignoring.planned(1, 20), out)
    assert len(left) == 7 and job not in left
    text = ignoring.table(lines, 20)
    assert "pie32, 16 test people" in text and f"{result['scores']['te']['auc']:.3f}" in text
