"""Codes and rectified images of many files, some of which are no images."""

import csv
import os
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

import orbitset
from orbitset.errors import ConfigError, DataError, RunError
from orbitset.models.codes import read_codes
from orbitset.uses import embed, embed_to_file, rectify_to_folder
from orbitset.uses import embedding as embeddings
from orbitset.uses.embedding import embedded_batches


@pytest.fixture(scope="module")
def model(model_folder):
    return orbitset.load(model_folder)


@pytest.fixture
def odd(tmp_path):
    """Four images under odd names, and seven things that are none."""
    folder = tmp_path / "odd"
    (folder / "folder.png").mkdir(parents=True)
    for at, name in enumerate(["-dash.png", "größe 東京.png", "new\nline.png", "with space.png"]):
        Image.new("L", (20, 20), 60 * at).save(folder / name)
    whole = (folder / "-dash.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "text.jpg").write_text("not an image")
    (folder / "zero.png").touch()
    (folder / "notes.txt").touch()
    frames = [Image.new("L", (8, 8), level) for level in (0, 255)]
    frames[0].save(folder / "film.gif", save_all=True, append_images=frames[1:])
    return folder


def _names(paths):
    return [os.path.basename(path) for path in paths]


def test_confidence_is_written_beside_rectified_images(knowing_folder, photos, tmp_path):
    model = orbitset.load(knowing_folder)
    noise = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    summary = rectify_to_folder(model, [photos, tmp_path / "noise.png"], tmp_path / "up")
    assert (summary.done, summary.unlike, summary.left_out) == (10, 1, 0)
    with (tmp_path / "up" / "confidence.csv").open(newline="") as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    assert len(rows) == 10
    assert list(rows[f"{tmp_path}/noise.png"]) == [
        "path",
        "confidence",
        "distance",
        "reencoding",
        "appearance",
    ]
    for path in (photos / "ant" / "1.png", tmp_path / "noise.png"):
        assert float(rows[str(path)]["confidence"]) == pytest.approx(
            model.confidence(path)[0], abs=0.05
        )


def test_images_of_low_confidence_are_left_out_if_asked_for(
    model, knowing_folder, photos, tmp_path
):
    knowing = orbitset.load(knowing_folder)
    noise = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    images = [photos / "ant" / "1.png", tmp_path / "noise.png"]
    rectify_to_folder(knowing, images, tmp_path / "up")
    again = {"overwrite": True, "min_confidence": 0.01}
    summary = rectify_to_folder(knowing, images, tmp_path / "up", **again)
    assert (summary.done, summary.left_out) == (1, 1)
    assert sorted(os.listdir(tmp_path / "up")) == ["1.png", "confidence.csv"]
    with pytest.raises(ConfigError, match="confidence of this model is not known"):
        rectify_to_folder(model, images, tmp_path / "other", min_confidence=0.01)
    with pytest.raises(ConfigError, match="minimum confidence is 2"):
        rectify_to_folder(knowing, images, tmp_path / "other", min_confidence=2)


def test_what_cannot_be_read_is_named_and_the_rest_goes_on(model, odd):
    found = embed(model, [odd])
    assert _names(found.paths) == ["-dash.png", "größe 東京.png", "new\nline.png", "with space.png"]
    assert np.abs(found.codes - model.embed(list(found.paths))).max() < 1e-5
    reasons = [problem.reason.removeprefix(f"{odd}/") for problem in found.problems]
    assert [reason.split(" ")[0] for reason in reasons] == [
        "cut.png",
        "film.gif",
        "loop.png",
        "text.jpg",
        "zero.png",
    ]
    assert "film.gif has 2 frames; give one of them" in reasons
    assert "zero.png is empty: it has 0 bytes" in reasons


def test_both_kinds_of_file_hold_the_same(model, odd, tmp_path):
    summary = embed_to_file(model, [odd], tmp_path / "codes.parquet")
    assert summary.done == 4 and len(summary.problems) == 5
    assert _names(summary.ignored) == ["notes.txt"]
    names, codes = read_codes(tmp_path / "codes.parquet")
    assert np.array_equal(codes, embed(model, [odd]).codes)
    summary = embed_to_file(model, [odd], tmp_path / "codes.npy")
    assert summary.done == 3
    assert "new\nline.png has a line break in its name" in summary.problems[0].reason
    kept = [at for at, name in enumerate(names) if "\n" not in name]
    assert read_codes(tmp_path / "codes.npy")[0] == [names[at] for at in kept]
    assert np.abs(np.load(tmp_path / "codes.npy") - codes[kept]).max() < 1e-5


@pytest.mark.parametrize("name", ["codes.npy", "codes.parquet"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_stopped_in_the_middle_it_leaves_what_was_there(
    model, photos, tmp_path, monkeypatch, name, error
):
    def stop(done, _):
        if done >= 4:
            raise error

    monkeypatch.setattr(embeddings, "_BATCH", 2)
    for overwrite in (False, True):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(error):
            embed_to_file(model, [photos], tmp_path / name, overwrite=overwrite, on_progress=stop)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        embed_to_file(model, [photos], tmp_path / name, overwrite=overwrite)


def test_what_is_there_is_kept_unless_it_may_be_replaced(model, photos, tmp_path):
    out = tmp_path / "codes.npy"
    (tmp_path / "codes.paths.txt").write_text("precious")
    with pytest.raises(RunError, match="codes.paths.txt exists already .*--overwrite"):
        embed_to_file(model, [photos], out)
    assert os.listdir(tmp_path) == ["codes.paths.txt"]
    embed_to_file(model, [photos], out, overwrite=True)
    with pytest.raises(RunError, match="codes.npy exists already"):
        embed_to_file(model, [photos], out)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(RunError, match="folder.npy is a folder"):
        embed_to_file(model, [photos], tmp_path / "folder.npy", overwrite=True)


def test_nothing_readable_is_an_error_and_leaves_no_file(model, tmp_path):
    for at in range(10):
        (tmp_path / f"{at}.png").touch()
    for name in ("codes.npy", "codes.parquet"):
        with pytest.raises(DataError, match="no image could be read: .*0.png is empty.*and 2 more"):
            embed_to_file(model, [tmp_path], tmp_path / "out" / name)
    with pytest.raises(DataError, match="no image could be read"):
        embed(model, [tmp_path / "0.png"])
    with pytest.raises(DataError, match="no image could be read"):
        rectify_to_folder(model, [tmp_path], tmp_path / "out")
    with pytest.raises(DataError, match="there is no image, folder"):
        embed_to_file(model, ["gone.png"], tmp_path / "elsewhere" / "codes.npy")
    assert os.listdir(tmp_path / "out") == []
    assert not (tmp_path / "elsewhere").exists()


def test_progress_counts_what_was_skipped(model, odd, tmp_path):
    for call in (
        lambda **more: embed_to_file(model, [odd], tmp_path / "codes.parquet", **more),
        lambda **more: rectify_to_folder(model, [odd], tmp_path / "upright", **more),
    ):
        told = []
        call(on_progress=lambda done, total, told=told: told.append((done, total)))
        assert told == [(0, 9), (9, 9)]


def test_codes_that_are_no_numbers_are_not_written(build_model, photos, tmp_path):
    model = build_model(code_norm="none")
    for weights in model.network.parameters():
        weights.data.fill_(1e38)
    with pytest.raises(DataError, match=r"the code of .*1.png has entries that are no numbers"):
        embed_to_file(model, [photos], tmp_path / "codes.npy")
    assert not list(tmp_path.glob("*codes*"))


def test_batches_are_gathered(model, photos, monkeypatch):
    monkeypatch.setattr(embeddings, "_BATCH", 2)
    table, problems = embeddings.find_images([photos], model.form).table, []
    parts = list(embedded_batches(model, table, problems, batch=4))
    assert [len(places) for places, _ in parts] == [4, 4, 1]
    assert [at for places, _ in parts for at in places] == list(range(9))


def test_rectified_images_lie_in_the_same_sub_folders(model, photos, tmp_path):
    assert rectify_to_folder(model, [photos], tmp_path / "up").done == 9
    made = {
        path.relative_to(tmp_path / "up").as_posix() for path in (tmp_path / "up").rglob("*.png")
    }
    assert made == {f"{thing}/{at}.png" for thing in ("ant", "bee", "cat") for at in (1, 2, 10)}
    with Image.open(tmp_path / "up" / "bee" / "10.png") as opened:
        assert np.array_equal(opened, model.rectify(photos / "bee" / "10.jpg")[0])
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(photos, ".")
    assert rectify_to_folder(model, [tmp_path / "photos.tar"], tmp_path / "packed").done == 9
    for name in made:
        same = (tmp_path / "up" / name).read_bytes()
        assert (tmp_path / "packed" / name).read_bytes() == same


def test_a_decoder_that_gives_one_picture_is_noticed(build_model, photos, tmp_path, monkeypatch):
    model = build_model()  # untrained: its pictures differ by less than can be seen
    assert rectify_to_folder(model, [photos], tmp_path / "alike").are_alike
    assert not rectify_to_folder(model, [photos / "ant" / "1.png"], tmp_path / "one").are_alike
    copied = lambda images: ((images[:, 0] * 255).byte().numpy(), None)  # noqa: E731
    monkeypatch.setattr(model, "rectify_and_assess", copied)
    assert not rectify_to_folder(model, [photos], tmp_path / "copied").are_alike


def test_a_rectified_image_is_there_whole_or_not_at_all(model, photos, tmp_path, monkeypatch):
    save = Image.Image.save

    def killed(image, file, *options, **settings):
        save(image, file, *options, **settings)
        raise KeyboardInterrupt  # before it is whole on the disk

    monkeypatch.setattr(Image.Image, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        rectify_to_folder(model, [photos / "ant"], tmp_path / "up")
    monkeypatch.undo()
    assert not [path for path in (tmp_path / "up").rglob("*") if path.is_file()]
    left = tmp_path / "up" / f".1.png.{2**22 + 1}.part"
    left.touch()
    rectify_to_folder(model, [photos / "ant"], tmp_path / "up")
    assert not left.exists() and (tmp_path / "up" / "1.png").is_file()


def test_names_that_come_twice_get_a_number_of_their_own(model, tmp_path):
    for at, name in enumerate(["a.png", "a.bmp", "a-2.bmp", "other/a.png"]):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), 80 * at).save(tmp_path / "in" / name)
    sources = [tmp_path / "in" / name for name in ("a.png", "a.bmp", "a-2.bmp", "other/a.png")]
    rectify_to_folder(model, sources, tmp_path / "up")
    for name, source in zip(("a", "a-3", "a-2", "a-4"), sources, strict=True):
        with Image.open(tmp_path / "up" / f"{name}.png") as opened:
            assert np.abs(np.asarray(opened, int) - model.rectify(source)[0]).max() <= 1, name


def test_rectified_images_replace_nothing_unasked_and_never_what_they_are_made_of(
    model, photos, tmp_path
):
    rectify_to_folder(model, [photos / "ant"], tmp_path / "up")
    with pytest.raises(RunError, match=r"1.png exists already, and 2 more .*--overwrite"):
        rectify_to_folder(model, [photos / "ant"], tmp_path / "up")
    with pytest.raises(RunError, match=r"1.png exists already \("):
        rectify_to_folder(model, [photos / "ant" / "1.png"], tmp_path / "up")
    assert rectify_to_folder(model, [photos / "bee"], tmp_path / "up", overwrite=True).done == 3
    (tmp_path / "link").symlink_to(photos)
    before = (photos / "ant" / "1.png").read_bytes()
    for out in (photos, tmp_path / "link"):
        with pytest.raises(RunError, match="is one of the images to rectify"):
            rectify_to_folder(model, [photos], out, overwrite=True)
    assert (photos / "ant" / "1.png").read_bytes() == before


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_batches_encoded_side_by_side_keep_their_order(model, tmp_path, monkeypatch, three_threads):
    rng = np.random.default_rng(0)
    for at in range(23):
        image = Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8))
        image.save(tmp_path / f"{at:02}.png")
    monkeypatch.setattr(embeddings, "_BATCH", 3)
    found = embed(model, [tmp_path])
    alone = [model.embed([path])[0] for path in found.paths]
    np.testing.assert_allclose(found.codes, np.stack(alone), rtol=1e-4, atol=1e-5)


def test_the_number_of_threads_is_as_before(model, tmp_path, three_threads):
    Image.new("L", (16, 16)).save(tmp_path / "a.png")
    embed(model, [tmp_path])
    assert torch.get_num_threads() == 3
