"""Embedding, rectifying, verifying and exporting as their users do it."""

import json
import os
import sys

import numpy as np
import pytest
from PIL import Image

import orbitset as package
from orbitset.models.codes import read_codes
from orbitset.uses.onnx import Exported


@pytest.fixture
def mixed(tmp_path):
    """Two images, one under a nasty name, a file that is none, and a note."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for level, name in enumerate(["-a.png", "b\n\x1b[31m.png"]):
        Image.new("RGB", (20, 30), (200 * level, 100, 50)).save(folder / name)
    (folder / "text.jpg").write_text("not an image")
    (folder / "notes.txt").touch()
    return folder


def _only_json(done):
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def test_codes_are_written_and_what_was_skipped_is_said(orbitset, model_folder, mixed, tmp_path):
    out = tmp_path / "codes.parquet"
    done = orbitset("embed", model_folder, mixed, "-o", out)
    assert done.returncode == 0
    assert done.stdout == f"2 codes of 16 numbers: {out}\n"
    skipped = f"skipped: {mixed}/text.jpg cannot be read as an image: it is of no known format\n"
    assert skipped in done.stderr and f"ignored, not an image: {mixed}/notes.txt\n" in done.stderr
    names, codes = read_codes(out)
    assert names == [f"{mixed}/-a.png", f"{mixed}/b\n\x1b[31m.png"]
    assert np.abs(codes - package.load(model_folder).embed(names)).max() < 1e-5


def test_json_is_all_that_is_printed(orbitset, model_folder, mixed, tmp_path):
    done = orbitset("embed", model_folder, mixed, "-o", tmp_path / "codes.npy", "--json")
    found = _only_json(done)
    assert found["images"] == 1 and found["code_size"] == 16
    assert [text.split(" ")[1] for text in found["skipped"]] == ["has", "cannot"]
    assert found["ignored"] == [f"{mixed}/notes.txt"]
    assert "b\\n\\x1b[31m.png has a line break in its name" in done.stderr
    assert "\x1b" not in done.stderr
    found = _only_json(orbitset("rectify", model_folder, mixed, "-o", tmp_path / "up", "--json"))
    assert found["images"] == 2 and len(found["skipped"]) == 1


def test_codes_are_replaced_only_if_asked_for(orbitset, fails, model_folder, photos, tmp_path):
    command = ["embed", model_folder, photos, "-o", tmp_path / "codes.npy", "--quiet"]
    assert orbitset(*command).stderr == ""
    fails(orbitset(*command), 2, "codes.npy exists already", "--overwrite")
    assert orbitset(*command, "--overwrite").returncode == 0


def test_names_that_begin_with_a_dash_come_after_two(
    orbitset, fails, model_folder, mixed, tmp_path, monkeypatch
):
    monkeypatch.chdir(mixed)
    fails(orbitset("embed", model_folder, "-a.png", "-o", tmp_path / "codes.npy"), 2, "-a")
    done = orbitset("embed", "-o", tmp_path / "codes.npy", model_folder, "--", "-a.png")
    assert done.returncode == 0, done.stderr


def test_ctrl_c_leaves_nothing(orbitset, model_folder, photos, tmp_path, monkeypatch):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("orbitset.models.Model.encode", pressed)
    done = orbitset("embed", model_folder, photos, "-o", tmp_path / "codes.parquet")
    assert done.returncode == 130 and done.stdout == ""
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_rectified_images_are_written(orbitset, fails, model_folder, photos, tmp_path):
    command = ["rectify", model_folder, photos, "-o", tmp_path / "up"]
    assert orbitset(*command).stdout == f"9 images: {tmp_path / 'up'}\n"
    with Image.open(tmp_path / "up" / "cat" / "10.png") as opened:
        assert opened.size == (16, 16)
    fails(orbitset(*command), 2, "exists already, and 8 more", "--overwrite")
    assert orbitset(*command, "--overwrite").returncode == 0
    over = ["rectify", model_folder, photos, "-o", photos, "--overwrite"]
    fails(orbitset(*over), 2, "is one of the images to rectify")


def test_rectifying_says_what_is_unlike_anything_trained_on(
    orbitset, fails, knowing_folder, model_folder, photos, tmp_path
):
    noise = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    command = [knowing_folder, photos, tmp_path / "noise.png"]
    done = orbitset("rectify", *command, "-o", tmp_path / "up", "--min-confidence", 0.01)
    listed = tmp_path / "up" / "confidence.csv"
    assert done.stdout.splitlines() == [
        f"9 images: {tmp_path / 'up'}",
        f"1 image unlike anything trained on (confidence below 1%), 1 left out: {listed}",
    ]
    two = [photos / "ant" / "1.png", tmp_path / "noise.png"]
    done = orbitset("verify", knowing_folder, *two)
    assert f"{tmp_path}/noise.png is unlike anything trained on: confidence 0.0%" in done.stdout
    older = orbitset("rectify", model_folder, photos, "-o", tmp_path / "older")
    assert "confidence: not known" in older.stderr
    lower = ["-o", tmp_path / "other", "--min-confidence"]
    fails(orbitset("rectify", model_folder, photos, *lower, 0.01), 2, "is not known")
    fails(orbitset("rectify", model_folder, photos, *lower, 2), 2, "from 0 to 1")


def test_two_images_are_compared(orbitset, model_folder, photos, tmp_path):
    one, other = photos / "ant" / "1.png", photos / "bee" / "1.png"
    done = orbitset("verify", model_folder, one, one)
    assert done.stdout.startswith("the same: distance 0, threshold 0.002 (false accept rate 1.0%")
    assert done.stderr == ""
    pair = tmp_path / "new" / "pair.png"
    found = _only_json(
        orbitset("verify", model_folder, one, other, "--far", 0.05, "--out", pair, "--json")
    )
    assert found["same"] is False and 0.003 < found["distance"] < 0.1
    assert (found["threshold"], found["far"], found["tar"]) == (0.003, 0.05, 0.8)
    with Image.open(pair) as opened:
        assert opened.size == (32, 32)
    found = _only_json(orbitset("verify", model_folder, one, other, "--threshold", 1, "--json"))
    assert found["same"] is True and found["far"] is None


def test_comparisons_that_make_no_sense_are_refused(orbitset, fails, model_folder, photos):
    pair = [photos / "ant" / "1.png", photos / "bee" / "1.png"]
    verify = ["verify", model_folder, *pair]
    fails(orbitset(*verify, "--far", 0.02), 2, "only 0.001, 0.01, 0.05")
    fails(orbitset(*verify, "--far", 0.01, "--threshold", 1), 2, "give one")
    for wrong in ("nan", "inf", "-1"):
        fails(orbitset(*verify, "--threshold", wrong, "--json"), 2, "give a squared distance")
    fails(orbitset(*verify, "--out", "pair.jpg"), 2, "is not a .png file")
    fails(orbitset(*verify, "--out", pair[0]), 2, "is one of the two images")
    fails(
        orbitset("verify", model_folder, pair[0], photos), 2, "more than one image", "clip.mp4#12"
    )
    fails(orbitset("verify", model_folder, pair[0]), 2, "B")


def test_a_model_is_exported_alone(orbitset, fails, model_folder, photos, tmp_path, monkeypatch):
    out = tmp_path / "model"
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    export = ["export", model_folder, "-o", out]
    fails(
        orbitset(*export, "--onnx"),
        1,
        "onnxscript, which is not installed",
        "pip install onnx onnxscript",
    )
    assert not out.exists()
    found = _only_json(orbitset(*export, "--json"))
    assert found["id"] == package.load(out).id and found["onnx"] == []
    fails(orbitset(*export), 2, "already holds a model")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("precious")
    fails(orbitset("export", model_folder, "-o", tmp_path / "mine"), 2, "README.md exists already")
    assert (tmp_path / "mine" / "README.md").read_text() == "precious"


def test_onnx_files_lie_beside_the_model(orbitset, model_folder, tmp_path, monkeypatch):
    def exported(_, folder):
        return [Exported(folder / "encoder.onnx", "images", "codes", {1: 1e-7, 64: 2e-7})]

    pytest.importorskip("onnxscript")
    monkeypatch.setattr("orbitset.uses.onnx.export_onnx", exported)
    done = orbitset("export", model_folder, "-o", tmp_path / "model", "--onnx")
    assert "encoder.onnx: images to codes, any batch, opset 18" in done.stdout
    assert "1.0e-07 at batch 1, 2.0e-07 at batch 64" in done.stdout
    found = _only_json(orbitset("export", model_folder, "-o", tmp_path / "2", "--onnx", "--json"))
    (file,) = found["onnx"]
    assert file["path"] == str(tmp_path / "2" / "encoder.onnx")
    assert file["largest_difference"] == {"1": 1e-7, "64": 2e-7}


@pytest.fixture
def arrays(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16), np.uint8)
    np.save(tmp_path / "images.npy", images)
    return tmp_path / "images.npy"


def test_a_manifest_is_embedded_with_its_boxes_and_factors(
    orbitset, fails, model_folder, photos, arrays, tmp_path
):
    import pyarrow.parquet

    manifest = photos / "boxed.csv"
    lines = ["path,left,top,right,bottom,thing,code", "ant/1.png,0,0,8,8,ant,7"]
    manifest.write_text("\n".join([*lines, "bee/1.png,2,2,9,9,,8", "gone.png,0,0,8,8,cat,9"]))
    try:
        out = tmp_path / "codes.parquet"
        done = orbitset("embed", model_folder, manifest, arrays, "-o", out)
        assert done.stdout == f"6 codes of 16 numbers: {out}\n", done.stderr
        assert done.stderr.endswith(f"skipped: {manifest}, row 4: gone.png does not exist\n")
        table = pyarrow.parquet.read_table(out)
        assert table.column_names == ["path", "code", "thing", "factor_code"]
        assert table["thing"].to_pylist() == ["ant"] + [None] * 5
        assert table["factor_code"].to_pylist() == ["7", "8"] + [None] * 4
        names, codes = read_codes(out)
        assert names[:2] == [str(photos / "ant/1.png"), str(photos / "bee/1.png")]
        with Image.open(photos / "bee/1.png") as opened:
            cut = package.load(model_folder).embed(opened.crop((2, 2, 9, 9)))
        assert np.abs(codes[1] - cut[0]).max() < 1e-5
        up = tmp_path / "up"
        assert orbitset("rectify", model_folder, manifest, arrays, "-o", up).returncode == 0
        made = sorted(path.relative_to(up).as_posix() for path in up.rglob("*.png"))
        assert made == ["ant/1.png", "bee/1.png", *(f"images-{at}.png" for at in range(4))]
        fails(orbitset("verify", model_folder, manifest, arrays), 2, "more than one image")
    finally:
        manifest.unlink()


def test_rows_of_arrays_are_compared_searched_for_and_removed(
    orbitset, fails, model_folder, arrays, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = _only_json(orbitset("verify", model_folder, "images.npy#1", "images.npy#1", "--json"))
    assert found["distance"] == 0
    pair = ["verify", model_folder, "images.npy#0", "images.npy#3", "--out", "pair.png"]
    assert orbitset(*pair).returncode == 0
    fails(orbitset("verify", model_folder, "images.npy#1", "images.npy#4"), 2, "images.npy has 4")
    assert orbitset("index", "add", model_folder, "index", "images.npy").returncode == 0
    search = ["search", model_folder, "index", "images.npy#2", "--sheet", "page.html"]
    done = orbitset(*search)
    assert done.stdout.splitlines()[1] == str(tmp_path / "images.npy#2"), done.stderr
    assert "images.npy#2" not in "".join(done.stdout.splitlines()[2:])
    assert (tmp_path / "page.html").read_text().count("data:image/png") == 5
    assert orbitset("dedupe", model_folder, "images.npy", "--sheet", "same.html").returncode == 0
    assert orbitset("index", "remove", "index", "images.npy").stdout.startswith("4 removed; 0")


@pytest.mark.parametrize("command", ["embed", "rectify"])
def test_failures_and_wrong_usage_are_told_apart(
    orbitset, fails, model_folder, photos, mixed, tmp_path, command
):
    out = ["-o", tmp_path / "out.npy"]
    fails(orbitset(command, tmp_path / "gone", photos, *out), 2, "there is no folder")
    fails(orbitset(command, photos, photos, *out), 2, "is no model: it has no model.json")
    fails(orbitset(command, model_folder, tmp_path / "gone.png", *out), 2, "there is no image, ")
    fails(orbitset(command, model_folder, mixed / "text.jpg", *out), 1, "no image could be read")
    fails(orbitset(command, model_folder, photos), 2, "--out")
    fails(orbitset(command, model_folder, *out), 2, "IMAGES")
    fails(orbitset(command, model_folder, photos, *out, "--device", "tpu"), 2, "tpu")
    assert not (tmp_path / "out.npy").is_file()


def test_other_endings_and_precisions_are_refused(orbitset, fails, model_folder, photos, tmp_path):
    embed = ["embed", model_folder, photos, "-o"]
    fails(orbitset(*embed, tmp_path / "codes.csv"), 2, "as .parquet or .npy")
    fails(orbitset(*embed, tmp_path / "codes.npy", "--precision", "half"), 2, "bfloat16")
    fails(orbitset(*embed, photos / "ant" / "1.png" / "codes.npy"), 1, "1.png")
