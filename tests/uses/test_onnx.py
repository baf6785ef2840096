"""Exported files give what the model gives. Each export takes seconds, so each model is exported once."""

import contextlib
import io
import sys

import numpy as np
import pytest

from orbitset.errors import OrbitsetError
from orbitset.uses import export_onnx

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def exported(build_model, tmp_path_factory):
    model, folder = build_model(), tmp_path_factory.mktemp("onnx") / "new"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        files = export_onnx(model, folder)
    assert printed.getvalue() == ""
    return model, folder, files


def _run(path, given):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return entry.name, session.run(None, {entry.name: given})[0]


def _images(num, size_px=16, channels=1):
    return np.random.default_rng(1).random((num, channels, size_px, size_px), dtype=np.float32)


def test_encoder_and_decoder_give_what_the_model_gives(exported):
    model, folder, files = exported
    assert [(one.path, one.takes, one.gives) for one in files] == [
        (folder / "encoder.onnx", "images", "codes"),
        (folder / "decoder.onnx", "codes", "rectified"),
    ]
    for one in files:
        assert set(one.largest_difference) == {1, 64}
        assert max(one.largest_difference.values()) < 1e-4
    for num in (1, 3, 64):
        images = _images(num)
        name, codes = _run(folder / "encoder.onnx", images)
        assert name == "images" and np.abs(codes - model.embed(images)).max() < 1e-4
        name, rectified = _run(folder / "decoder.onnx", codes)
        levels = (rectified[:, 0].clip(0, 1) * 255).round()
        assert name == "codes" and np.abs(levels - model.rectify(images)).max() <= 1


def test_nothing_but_the_files_is_left_and_the_model_is_as_before(exported):
    model, folder, _ = exported
    assert {path.name for path in folder.iterdir()} == {"encoder.onnx", "decoder.onnx"}
    assert not model.network.training and next(model.network.parameters()).requires_grad


@pytest.mark.slow
def test_transformer_switches_and_contrast_are_exported_as_encoder_and_rectifier(
    build_model, tmp_path
):
    options = {"size_px": 28, "channels": 3, "has_transformer": True, "unpooling": "switches"}
    options["contrast"] = "local"
    model = build_model(**options)
    files = export_onnx(model, tmp_path)
    assert [one.path.name for one in files] == ["encoder.onnx", "rectifier.onnx"]
    assert all(max(one.largest_difference.values()) < 1e-4 for one in files)
    images = _images(2, 28, 3)
    _, rectified = _run(tmp_path / "rectifier.onnx", images)
    levels = (rectified.transpose(0, 2, 3, 1).clip(0, 1) * 255).round()
    assert np.abs(levels - model.rectify(images)).max() <= 1


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_missing_packages_are_named(build_model, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        OrbitsetError, match=f"exported with {package}, .*pip install onnx onnxscript onnxruntime"
    ):
        export_onnx(build_model(), tmp_path / "new")
    assert not (tmp_path / "new").exists()
