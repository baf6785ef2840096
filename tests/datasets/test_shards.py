"""Samples in tars: what they hold, where it lies, and what is wrong with them."""

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orbitset.datasets import shards
from orbitset.datasets.decode import Decoding, image_problems, load_images
from orbitset.datasets.named_images import find_images
from orbitset.datasets.pictures import ImageForm, decoded, open_bytes
from orbitset.datasets.shards import expand, file_at, is_tar, read_shards, scan_shards
from orbitset.datasets.source import Folder, Shards, open_source
from orbitset.datasets.stream import ImageStream
from orbitset.datasets.table import Grouping
from orbitset.errors import ConfigError, DataError
from orbitset.recipes.own_images import OrbitOptions, observed_images

FORM = ImageForm(16)


def picture(seed=0, size=(8, 6)):
    pixels = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def link(target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo()
    member.type, member.linkname = kind, target
    return member


def sparse(size):
    member = tarfile.TarInfo()
    member.pax_headers = {"GNU.sparse.map": f"{size},0", "GNU.sparse.size": str(size)}
    return member


@pytest.fixture
def pack(tmp_path):
    """A tar of (name, content) pairs; what is no bytes is written as JSON."""

    def write(*files, name="x.tar", **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w", **options) as tar:
            for inside, content in files:
                if isinstance(content, tarfile.TarInfo):
                    content.name = inside
                    tar.addfile(content)
                    continue
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                member = tarfile.TarInfo(inside)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return path

    return write


@pytest.fixture
def two_shards(pack):
    """Two orbits of three in each of two shards, which use the same keys."""
    for shard in range(2):
        files = []
        for at in range(6):
            about = {
                "orbit": f"{shard}{at // 3}",
                "view": at % 3,
                "at": [1, 2],
                "is_front": at == 0,
            }
            files += [(f"{at:03}.png", picture(10 * shard + at)), (f"{at:03}.json", about)]
        path = pack(*files, name=f"shards/train-{shard:02}.tar")
    return path.parent


def table_at(path, factors=(), on_problem="stop"):
    return open_source(path).table(factors, on_problem)


def problems_of(path, **options):
    table, problems = scan_shards(str(path), path.parent, [path.name], **options)
    return [problem.reason for problem in problems]


def test_a_sample_is_a_row_called_by_its_shard_and_image(two_shards):
    table = table_at(str(two_shards))
    assert table.paths[:2] == ("train-00.tar/000.png", "train-00.tar/001.png")
    assert table.paths[6] == "train-01.tar/000.png"
    assert table.rows == tuple(range(1, 13))
    assert table.columns["orbit"][:4] == ("00", "00", "00", "01")
    assert table.columns["view"][:3] == ("0", "1", "2")
    assert table.columns["is_front"][:2] == ("true", "false")
    assert list(table.columns) == ["orbit", "view", "is_front"]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_images_are_read_at_their_places_whatever_lies_between(pack, format):
    long = "folder/" * 12 + "größe"
    files = [("readme", b"x" * 700), (f"{long}.png", picture(1)), ("./b.PNG", picture(2))]
    path = pack(*files, ("c.json", {}), ("c.jpeg", picture(3)), format=format)
    table = read_shards("x", path.parent, [path.name])
    assert table.paths == (f"x.tar/{long}.png", "x.tar/b.PNG", "x.tar/c.jpeg")
    for at in range(3):
        with Image.open(io.BytesIO(picture(at + 1))) as expected:
            assert np.array_equal(decoded(table.file(at)), expected)


def test_pixels_are_those_of_the_files_alone(pack, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    contents = [(f"{at:03}.png", picture(at)) for at in range(40)]
    (tmp_path / "files").mkdir()
    for name, content in contents:
        (tmp_path / "files" / name).write_bytes(content)
    packed = find_images([pack(*contents)], FORM).table
    loose = find_images([tmp_path / "files"], FORM).table
    for size_px in (None, 16):
        seen, _ = load_images(packed, size_px=size_px)
        alone, _ = load_images(loose, size_px=size_px, is_cached=False)
        assert np.array_equal(seen.images, alone.images)
        again, _ = load_images(packed, size_px=size_px)
        assert np.array_equal(seen.images, again.images)
    streams = (ImageStream(table, ImageForm(16), batch=7, threads=5) for table in (packed, loose))
    for (_, one), (_, other) in zip(*streams, strict=True):
        assert np.array_equal(one, other)


def test_pixels_are_decoded_anew_when_the_tar_is_another(pack, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen = []
    for files in ([("a.png", picture(1))], [("a.png", picture(2)), ("b.png", picture(3))]):
        images, _ = load_images(find_images([pack(*files)], FORM).table)
        seen.append(images.images)
    assert len(seen[1]) == 2 and not np.array_equal(seen[0][0], seen[1][0])


def test_endings_begin_at_the_first_dot_and_files_need_not_lie_side_by_side(pack):
    path = pack(
        ("a.png", picture(1)),
        ("b.png", picture(2)),
        ("v1.0/a.png", picture(3)),
        ("a.seg.png", picture(4)),
        ("b.cls", b" 7\n"),
        ("a.txt", "größe".encode()),
        ("a.json", {"txt": "not this", "size": 1.50, "tag": None}),
        ("._a.png", b"hidden"),
        (".thumbs/a.png", b"hidden"),
    )
    table = read_shards("x", path.parent, [path.name])
    assert table.paths == ("x.tar/a.png", "x.tar/b.png", "x.tar/v1.0/a.png")
    assert table.columns == {
        "size": ("1.5", "", ""),
        "txt": ("größe", "", ""),
        "cls": ("", "7", ""),
    }


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ([("b.json", {})], "x.tar/b has no image, only b.json"),
        ([("d/b.mp4", b"x"), ("d/b.cls", b"1")], "x.tar/d/b has no image, only b.mp4, b.cls"),
        (
            [("b.png", picture()), ("b.JPG", b"x")],
            "x.tar/b.png is not the only image of its sample: there is b.JPG",
        ),
        ([("b.png", picture()), ("./b.png", picture())], "x.tar/b.png is in it twice"),
        ([("b.png", picture()), ("b.json", {}), ("b.json", {})], "x.tar/b.json is in it twice"),
        ([("b.png", picture()), ("b.json", [1])], "x.tar/b.json is not a JSON object, such as {"),
        ([("b.png", picture()), ("b.json", b"{")], "x.tar/b.json is not JSON: Expecting"),
        ([("b.png", picture()), ("b.json", b"[" * 9999)], "x.tar/b.json is not JSON: "),
        ([("b.png", picture()), ("b.json", b'{"a":NaN}')], "x.tar/b.json is not JSON: NaN is no"),
        ([("b.png", picture()), ("b.json", b'{"a":"\\ud800"}')], "x.tar/b.json is not JSON: "),
        ([("b.png", picture()), ("b.json", b'{"a":"\xff"}')], "x.tar/b.json is not JSON: "),
        ([("b.png", picture()), ("b.cls", b"\xff")], "x.tar/b.cls is not UTF-8"),
        (
            [("b.png", picture()), ("b.txt", b"x" * (1 << 20) + b"x")],
            "x.tar/b.txt has 1,048,577 bytes of factors, more than 1,000,000; ORBITSET_MAX_HEADER_MB",
        ),
        ([("b.png", link("a.png"))], "x.tar/b.png is a link to a.png; pack the file itself"),
        ([("b.png", link("a.png", tarfile.LNKTYPE))], "x.tar/b.png is a link to a.png"),
        ([("b.png", picture()), ("b.json", link("a.json"))], "x.tar/b.json is a link to a.json"),
        ([("b.png", link("", tarfile.FIFOTYPE))], "x.tar/b.png is no ordinary file"),
        ([("b.png", sparse(1 << 40))], "x.tar/b.png is no ordinary file"),
        ([("../b.png", picture())], "x.tar/../b.png leads out of the tar"),
        ([("/b.png", picture())], "x.tar//b.png leads out of the tar"),
    ],
)
def test_bad_samples_are_named_and_stop_or_are_left_out(pack, files, problem):
    path = pack(("a.png", picture(1)), *files, ("c.png", picture(2)))
    (found,) = problems_of(path)
    assert found.startswith(problem)
    left = table_at(str(path), on_problem="skip")
    assert left.paths == ("x.tar/a.png", "x.tar/c.png")
    assert [(one.row, one.reason) for one in left.left_out] == [(2, found)]
    with pytest.raises(DataError, match="has 1 problem: row 2: x.tar/") as caught:
        table_at(str(path), on_problem="stop")
    assert "--on-problem skip" in str(caught.value)


def test_images_that_cannot_be_decoded_are_named_as_files_are(pack):
    path = pack(("a.png", picture()), ("b.png", b""), ("c.png", b"none"), ("d.png", picture()[:60]))
    problems, sizes = image_problems(table_at(str(path)))
    assert sizes == [(6, 8)]
    assert [problem.row for problem in problems] == [2, 3, 4]
    assert problems[0].reason == "x.tar/b.png is empty: it has 0 bytes"
    assert problems[1].reason.startswith(
        "x.tar/c.png cannot be read as an image: it is of no known"
    )
    assert problems[2].reason.startswith("x.tar/d.png cannot be read as an image: ")


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        (512 * 7, None),
        (512 * 6, None),
        (512 * 5 + 20, "x.tar/c.png is cut off: the tar ends after 2,580 bytes"),
        (512 * 5, "x.tar/c.png is cut off: the tar ends after 2,560 bytes"),
        (512 * 4 + 100, "x.tar is damaged or cut off after b.png"),
        (512 * 3 + 5, "x.tar/b.png is cut off: the tar ends after 1,541 bytes"),
    ],
)
def test_of_a_tar_that_was_cut_off_the_rest_is_used(pack, kept, problem):
    files = [(f"{key}.png", picture(at)) for at, key in enumerate("abc")]
    assert all(len(content) < 512 for _, content in files)
    path = pack(*files)
    path.write_bytes(path.read_bytes()[:kept])
    assert problems_of(path) == ([] if problem is None else [problem])
    assert table_at(str(path), on_problem="skip").paths[0] == "x.tar/a.png"


def test_what_is_no_plain_tar_is_named(pack, tmp_path):
    whole = pack(("a.png", picture())).read_bytes()
    for name, content, problem in (
        ("none.tar", b"", "is empty: it has 0 bytes"),
        ("zeros.tar", b"\0" * 10240, "is empty: there is no sample in it"),
        ("text.tar", b"x" * 2000, "is no tar: "),
        ("short.tar", b"x" * 20, "is no tar: truncated header"),
        ("a.tar.gz", gzip.compress(whole), "is compressed; unpack it to a plain .tar"),
        ("a.tgz", gzip.compress(whole), "is compressed; unpack it to a plain .tar"),
        ("called.tar", gzip.compress(whole), "is compressed; unpack it to a plain .tar"),
    ):
        (tmp_path / name).write_bytes(content)
        assert is_tar(name) and isinstance(open_source(str(tmp_path / name)), Shards)
        (found,) = problems_of(tmp_path / name)
        assert found.startswith(f"{name} {problem}")
        for on_problem in ("stop", "skip"):
            with pytest.raises(DataError, match=f"{name} {problem}"):
                table_at(str(tmp_path / name), factors=["person"], on_problem=on_problem)
    broken = whole[:1024] + b"garbage" + whole[1031:]
    (tmp_path / "garbage.tar").write_bytes(broken)
    assert problems_of(tmp_path / "garbage.tar") == [
        "garbage.tar is damaged or cut off after a.png"
    ]
    with pytest.raises(DataError, match=r"there is no shard .*gone\.tar"):
        table_at(str(tmp_path / "gone.tar"))


def test_whatever_is_damaged_nothing_but_problems_comes_of_it(pack, tmp_path):
    files = [("a.png", picture()), ("d/" * 60 + "b.json", {"orbit": "x"}), ("b.png", picture(1))]
    whole = pack(*files, format=tarfile.GNU_FORMAT).read_bytes()
    draw = random.Random(0)
    for at in range(150):
        content = bytearray(whole[: draw.choice([len(whole), draw.randrange(5000)])])
        for _ in range(draw.randrange(4)):
            content[draw.randrange(len(content)) : 0] = draw.randbytes(draw.randrange(1, 9))
        for _ in range(draw.randrange(4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path = tmp_path / f"{at}.tar"
        path.write_bytes(content)
        table, problems = scan_shards("x", tmp_path, [path.name])
        assert table or problems
        image_problems(table)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_long_header_is_not_read(tmp_path, kind):
    member = tarfile.TarInfo("a.png")
    member.type, member.size = kind, 3_000_000
    with (tmp_path / "x.tar").open("wb") as file:
        file.write(member.tobuf())
        file.truncate(3_000_320)
        file.seek(0, 2)
        file.write(tarfile.TarInfo("b.png").tobuf() + bytes(1024))
    (problem,) = problems_of(tmp_path / "x.tar")
    assert problem.endswith("bytes, more than 1,000,000; ORBITSET_MAX_HEADER_MB sets the limit")
    assert problem.startswith("x.tar has a header of 3,000,320")


def test_a_tar_of_very_many_files_is_read_up_to_the_limit(pack, monkeypatch):
    path = pack(("a.png", picture()), ("b.png", picture()), ("c.png", picture()))
    monkeypatch.setenv("ORBITSET_MAX_ROWS", "2")
    assert problems_of(path) == ["x.tar has 3 files, more than 2; ORBITSET_MAX_ROWS sets the limit"]
    assert len(table_at(str(path), on_problem="skip")) == 2


def test_samples_may_not_have_a_factor_each(pack, monkeypatch):
    path = pack(*((f"{at}.json", {f"a{at}": "", f"b{at}": ""}) for at in range(3)),
                *((f"{at}.png", picture()) for at in range(3)))  # fmt: skip
    monkeypatch.setenv("ORBITSET_MAX_FACTORS", "5")
    with pytest.raises(DataError, match="has 6 factors, more than 5; ORBITSET_MAX_FACTORS sets"):
        table_at(str(path))


def test_a_size_below_zero_does_not_lead_round(tmp_path):
    member = tarfile.TarInfo("a.png")
    header = bytearray(member.tobuf())
    header[124:136] = b"\xff" * 12
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "x.tar").write_bytes(bytes(header) * 2 + b"\0" * 1024)
    assert problems_of(tmp_path / "x.tar") == ["x.tar is damaged at a.png"]


def test_only_headers_are_read_and_once(tmp_path, monkeypatch):
    path = tmp_path / "large.tar"
    with path.open("wb") as file:
        for name in "ab":
            member = tarfile.TarInfo(f"{name}.png")
            member.size = 1 << 33
            file.write(member.tobuf(tarfile.GNU_FORMAT))
            file.seek(member.size, io.SEEK_CUR)
        file.write(b"\0" * 1024)
    table = table_at(str(path))
    assert [file.size for file in table.files] == [1 << 33] * 2
    monkeypatch.setattr(shards.tarfile, "open", None)
    assert table_at(str(path)).files == table.files


def test_braces_stand_for_names():
    assert expand("a.tar") == ["a.tar"]
    assert expand("{9..11}.tar") == ["9.tar", "10.tar", "11.tar"]
    assert expand("{09..11}.tar") == ["09.tar", "10.tar", "11.tar"]
    assert expand("{1..0}{x,}.tar") == ["1x.tar", "1.tar", "0x.tar", "0.tar"]
    assert expand("{odd}.tar") == ["{odd}.tar"]
    with pytest.raises(ConfigError, match="means more than 100,000 files"):
        expand("{0..999}/{0..999}.tar")


def test_shards_are_a_tar_a_pattern_or_a_folder_without_images(two_shards, tmp_path):
    names = ["train-00.tar", "train-01.tar"]

    def found(path):
        source = open_source(str(path))
        assert isinstance(source, Shards)
        return source.root, list(source.names)

    assert found(two_shards / "train-00.tar") == (two_shards, names[:1])
    assert found(two_shards / "train-{00..01}.tar") == (two_shards, names)
    assert found(f"{tmp_path}/{{shards,more}}/train-00.tar") == (
        tmp_path,
        ["shards/train-00.tar", "more/train-00.tar"],
    )
    assert found(tmp_path) == (tmp_path, [f"shards/{name}" for name in names])
    assert found(two_shards) == (two_shards, names)
    (two_shards / "a").mkdir()
    (two_shards / "a" / "a.png").write_bytes(picture())
    assert isinstance(open_source(str(two_shards)), Folder)


def test_a_file_may_be_called_like_a_pattern(pack):
    path = pack(("a.png", picture()), name="{0..1}.tar")
    assert table_at(str(path)).paths == ("{0..1}.tar/a.png",)


def test_a_shard_that_is_missing_is_a_problem_like_others(two_shards):
    table = table_at(str(two_shards / "train-{00..02}.tar"), on_problem="skip")
    assert len(table) == 12
    assert [str(one) for one in table.left_out] == ["row 13: train-02.tar does not exist"]


def test_factors_are_needed_of_every_sample(pack):
    files = [(f"{at}.png", picture(at)) for at in range(3)]
    path = pack(*files, ("0.json", {"person": "ann"}), ("2.json", {"person": " "}))
    table = table_at(str(path), factors=["person"], on_problem="skip")
    assert table.paths == ("x.tar/0.png",)
    assert [one.reason for one in table.left_out] == [
        "x.tar/1.png has no person",
        "x.tar/2.png has no person",
    ]
    with pytest.raises(DataError, match=r"no factor persn; it has person \(did you mean person"):
        table_at(str(path), factors=["persn"])


def test_without_an_orbit_the_columns_are_named(pack):
    files = [(f"{at}.png", picture(at)) for at in range(3)]
    path = pack(*files, ("0.json", {"person": "ann", "view": 1}), ("1.cls", b"3"))
    with pytest.raises(ConfigError, match=r"with --orbit; .*x\.tar has person, view, cls"):
        observed_images(open_source(str(path)))
    with pytest.raises(ConfigError, match="bare.tar has no factor at all"):
        observed_images(open_source(str(pack(*files, name="bare.tar"))))


def test_orbits_are_observed_as_those_of_a_manifest(two_shards, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = open_source(str(two_shards / "train-{00..01}.tar"))
    config = observed_images(source, options=OrbitOptions(canonical="view=0"))
    assert (config.name, config.orbits.orbit) == ("shards", ("orbit",))
    assert config.data == str(two_shards / "train-{00..01}.tar")
    grouping = Grouping(orbit=("orbit",), target=("view", "0"))
    seen, left_out = source.load_observed(grouping, Decoding())
    assert (len(seen), left_out) == (12, ())
    assert seen.values["orbit"] == ("00", "01", "10", "11")
    with pytest.raises(ConfigError, match="crops are for image files, and .* has none"):
        source.load_observed(grouping, Decoding(crops="crops.csv"))


def test_shards_are_looked_at_before_anyone_trains(two_shards, pack):
    check = open_source(str(two_shards)).check(canonical="view=0", orbit=["orbit"])
    assert check.is_sound and check.summary["sizes"] == {"6x8": 12}
    assert check.summary["orbits"] == {"orbits": 4, "fewest": 3, "median": 3, "most": 3}
    with open_bytes(file_at(check.orbits[0][1][1][0])) as file:
        assert file.read() == picture(1)
    pack(("a.png", picture(0)), ("b.cls", b"1"), name="shards/train-02.tar")
    check = open_source(str(two_shards)).check()
    assert check.summary["copies"] == [["train-00.tar/000.png", "train-02.tar/a.png"]]
    assert "problem: row 14: train-02.tar/b has no image, only b.cls" in check.lines


def test_images_are_named_beside_files_and_folders(pack, tmp_path):
    path, alone = pack(("d/a.png", picture())), tmp_path / "alone.png"
    alone.write_bytes(picture(1))
    (tmp_path / "bad.tar").touch()
    found = find_images([alone, path, tmp_path / "bad.tar", path], FORM)
    assert found.table.paths == (str(alone), f"{path}/d/a.png")
    assert isinstance(found.table.file(0), Path) and found.table.file(1).size == len(picture())
    (problem,) = found.table.left_out
    assert problem.reason == f"{tmp_path / 'bad.tar'} is empty: it has 0 bytes"
    with pytest.raises(DataError, match="nothing is left of .*bad.tar is empty"):
        find_images([tmp_path / "bad.tar"], FORM)


def test_an_image_is_found_again_by_its_path(pack, tmp_path):
    path = pack(("d/a.png", picture()), ("b.cls", b"1"))
    table = find_images([path], FORM).table
    assert file_at(table.paths[0]) == table.file(0)
    assert find_images([path / "d" / "a.png"], FORM).table.files == table.files
    with pytest.raises(DataError, match="there is no image, folder"):
        find_images([path / "b.png"], FORM)
    for other in (path, path / "b.png", path / "b", tmp_path / "gone.tar" / "a.png", tmp_path):
        assert file_at(other) == other
