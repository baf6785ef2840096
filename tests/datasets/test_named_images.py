"""Images by name from everything that `train` takes, and each again by its name."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from orbitset.datasets.named_images import find_images, image_at, open_image
from orbitset.datasets.pictures import ImageForm, decoded
from orbitset.errors import ConfigError, DataError

FORM = ImageForm(8)


def write_manifest(path, lines):
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def boxed(photos):
    """A manifest of two of the photos with boxes, factors and a row whose file is missing."""
    lines = ["path,left,top,right,bottom,thing,view", "ant/1.png,0,0,8,8,ant,1"]
    lines += ["bee/1.png,4,4,12,12,bee,", "gone.png,0,0,8,8,cat,1"]
    yield write_manifest(photos / "boxed.csv", lines)
    (photos / "boxed.csv").unlink()


@pytest.fixture
def arrays(tmp_path):
    """Five grey images as .npz with labels, and without as .npy."""
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(5) // 2)
    np.save(tmp_path / "images.npy", images)
    return images


@pytest.fixture
def clip(tmp_path, monkeypatch):
    """A video of six frames, each a little lighter."""
    av = pytest.importorskip("av")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("ffv1", rate=10)
        stream.width = stream.height = 8
        stream.pix_fmt = "bgr0"
        for at in range(6):
            pixels = np.full((8, 8, 3), 10 * at, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())
    return path


@pytest.fixture
def own_source(tmp_path, monkeypatch):
    (tmp_path / "named_images_data.py").write_text(
        "import numpy as np\n\n\ndef images():\n"
        "    return np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8), {'thing': list('aabb')}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "named_images_data:images"


def test_rows_of_a_manifest_keep_their_boxes_and_factors(boxed, photos):
    table = find_images([boxed], FORM).table
    assert table.paths == (str(photos / "ant/1.png"), str(photos / "bee/1.png"))
    assert table.boxes == ((0, 0, 8, 8), (4, 4, 12, 12))
    assert table.columns == {"thing": ("ant", "bee"), "view": ("1", "")}
    (problem,) = table.left_out
    assert problem.reason == f"{boxed}, row 4: gone.png does not exist"


def test_a_folder_with_a_manifest_is_that_manifest(tmp_path):
    for name in ("a", "b"):
        Image.new("L", (8, 8)).save(tmp_path / f"{name}.png")
    write_manifest(tmp_path / "manifest.csv", ["path,thing", "b.png,cup"])
    assert find_images([tmp_path], FORM).table.paths == (str(tmp_path / "b.png"),)


@pytest.mark.parametrize("name", ["images.npy", "images.npz"])
def test_rows_of_an_array_are_named_by_number(arrays, tmp_path, name):
    table = find_images([tmp_path / name], FORM).table
    assert table.paths == tuple(f"{tmp_path / name}#{at}" for at in range(5))
    for at in range(5):
        assert np.array_equal(FORM.read(table.file(at))[0], arrays[at])
    expected = {"label": ("0", "0", "1", "1", "2")} if name.endswith("z") else {}
    assert table.columns == expected


def test_frames_are_named_by_video_and_number(clip, tmp_path):
    for source in (clip, tmp_path):
        table = find_images([source], FORM).table
        assert table.paths == tuple(f"{clip}#{at}" for at in range(6))
        assert table.columns == {"video": ("clip.mkv",) * 6, "frame": tuple("012345")}
    levels = [int(FORM.read(file).mean()) for file in table.files]
    assert levels == sorted(levels) and levels[-1] > levels[0]


def test_a_damaged_video_is_named_beside_the_others(clip, tmp_path):
    (tmp_path / "zero.mkv").touch()
    table = find_images([tmp_path], FORM).table
    assert len(table) == 6
    assert [problem.reason for problem in table.left_out] == [
        f"{tmp_path / 'zero.mkv'} is empty: it has 0 bytes"
    ]


def test_a_function_gives_images_by_number(own_source):
    table = find_images([own_source], FORM).table
    assert table.paths == tuple(f"{own_source}#{at}" for at in range(4))
    assert table.columns == {"thing": ("a", "a", "b", "b")}


def test_known_sets_have_their_labels():
    table = find_images(["digits"], FORM).table
    assert len(table) == 1797 and table.paths[3] == "digits#3"
    assert set(table.columns["label"]) == set("0123456789")


def test_a_path_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    Image.new("L", (8, 8)).save("digits/a.png")
    assert find_images(["digits"], FORM).table.paths == ("digits/a.png",)


def test_sources_of_all_kinds_come_in_their_order_and_each_image_once(boxed, arrays, tmp_path):
    one = tmp_path / "one.png"
    Image.new("L", (8, 8)).save(one)
    table = find_images([one, tmp_path / "images.npz", boxed, one], FORM).table
    assert table.source == "4 sources" and len(table) == 1 + 5 + 2
    assert table.columns["label"] == ("", "0", "0", "1", "1", "2", "", "")
    assert table.columns["thing"] == ("",) * 6 + ("ant", "bee")
    assert table.boxes[:6] == (None,) * 6 and table.boxes[6] == (0, 0, 8, 8)
    assert table.file(0) == one and not isinstance(FORM.read(table.file(3)), str)


def test_files_and_folders_come_in_the_order_they_are_named_and_once(photos):
    table = find_images([photos / "cat" / "2.png", str(photos), photos / "bee"], FORM).table
    assert len(table) == 9
    assert table.paths[:2] == (str(photos / "cat/2.png"), str(photos / "ant/1.png"))
    assert table.columns["orbit"][:2] == ("", "ant")


def test_a_file_that_is_named_need_not_look_like_an_image(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "scan.dat", "PNG")
    table = find_images([tmp_path / "scan.dat"], FORM).table
    assert table.paths == (str(tmp_path / "scan.dat"),)


def test_what_is_not_there_is_named(tmp_path):
    (tmp_path / "broken.png").symlink_to("gone.png")
    for name in ("gone.png", "broken.png", "gone.mp4", "gone.npy#3", "photos"):
        with pytest.raises(DataError, match=f"there is no image, .*{name}") as refused:
            find_images([tmp_path / name], FORM)
        assert refused.value.exit_code == 2
    for name in ("gone.csv", "gone-{0..3}.tar"):
        with pytest.raises(DataError) as refused:
            find_images([tmp_path / name], FORM)
        assert refused.value.exit_code == 2
    with pytest.raises(DataError, match="no image was named"):
        find_images([], FORM)


def test_an_image_is_found_again_by_its_name(clip, arrays, photos, own_source, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(photos / "ant" / "1.png", "1.png")
    for source in (photos, clip, tmp_path / "images.npz", tmp_path / "x.tar", own_source):
        table = find_images([source], FORM).table
        for at in (0, len(table) - 1):
            pixels = FORM.read(image_at(table.paths[at], FORM))
            assert np.array_equal(pixels, FORM.read(table.file(at)))
    with pytest.raises(DataError, match=r"there is no image .*#5; .*images.npy has 5"):
        image_at(tmp_path / "images.npy#5", FORM)


def test_where_one_image_is_needed_a_source_of_many_is_refused(clip, photos, boxed):
    for name in (clip, photos, boxed):
        with pytest.raises(ConfigError, match="holds more than one image") as refused:
            image_at(name, FORM)
        assert "clip.mp4#12" in refused.value.hint


def test_images_are_opened_to_be_shown(clip, own_source, monkeypatch):
    with Image.open(open_image(f"{clip}#3")) as opened:
        assert opened.size == (160, 160)
    monkeypatch.setenv("ORBITSET_TRUST", "")
    with pytest.raises(ConfigError, match="only if you trust it"):
        open_image(f"{own_source}#0")
    find_images([own_source], FORM)  # the user names it
    with Image.open(open_image(f"{own_source}#0")) as opened:
        assert opened.size == (8, 8)


def test_factors_of_shards_are_there(tmp_path):
    content = io.BytesIO()
    Image.new("L", (8, 8)).save(content, "PNG")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in (("a.png", content.getvalue()), ("a.json", json.dumps({"view": 3}))):
            data = data if isinstance(data, bytes) else data.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    table = find_images([tmp_path / "x.tar"], FORM).table
    assert table.columns == {"view": ("3",)}
    assert decoded(table.file(0)).size == (8, 8)
