import numpy as np
import pytest
from PIL import Image

from orbitset.datasets.inspect import inspect_table
from orbitset.datasets.source import open_source
from orbitset.errors import ConfigError, DataError

ORBIT = ("person", "session", "light")


def test_a_sound_manifest_is_counted(face_manifest):
    found = inspect_table(open_source(str(face_manifest)), orbit=ORBIT, canonical="view=front")
    assert (found.images, found.sizes, found.problems) == (144, {"16x16": 144}, ())
    assert found.factors == {"person": 6, "session": 4, "view": 3, "light": 2}
    assert found.members == {"orbits": 48, "fewest": 3, "median": 3, "most": 3}
    assert "orbits: 48 with 3 to 3 members, median 3" in str(found)


def test_whatever_is_wrong_is_listed_with_its_row(face_manifest):
    rows = face_manifest.read_text().splitlines()
    (face_manifest.parent / "empty.png").touch()
    manifest = face_manifest.with_name("wrong.csv")
    wrong = ["empty.png,p9,1,front,0", "gone.png,p9,1,left,0", rows[1], "../x.png,p9,1,left,0"]
    manifest.write_text("\n".join([*rows[:3], *rows[5:], *wrong]))
    found = inspect_table(open_source(str(manifest)), orbit=ORBIT, canonical="view=front")
    said = [str(problem) for problem in found.problems]
    assert [problem.row for problem in found.problems] == [2, 3, 144, 145, 146, 147]
    assert "has no member with view front" in said[0]
    assert "empty.png is empty: it has 0 bytes" in said[2]
    assert "gone.png does not exist" in said[3]
    assert "already" in said[4] and "leads out of" in said[5]
    assert found.images == 142
    assert len(found.as_dict()["problems"]) == 6


def test_boxes_are_looked_at(face_manifest, tmp_path):
    paths = [row.split(",")[0] for row in face_manifest.read_text().splitlines()[1:]]
    boxes = tmp_path / "boxes.csv"
    edges = ["15.6,0,30,8", "8,0,2,8", *["0,0,8,8"] * (len(paths) - 3)]
    rows = [f"{path},{edge}" for path, edge in zip(paths, edges, strict=False)]
    boxes.write_text("\n".join(["path,left,top,right,bottom", *rows]))
    found = inspect_table(open_source(str(face_manifest)), crops=boxes)
    assert [problem.row for problem in found.problems] == [2, 3, len(paths) + 1]
    assert "has 16x16 px, and its box lies outside" in str(found.problems[0])
    assert "has no box in" in str(found.problems[1])
    assert found.images == len(paths) - 3


def test_without_an_orbit_only_files_are_looked_at(face_manifest):
    assert inspect_table(open_source(str(face_manifest))).members is None
    with pytest.raises(ConfigError, match="write it as factor=value"):
        inspect_table(open_source(str(face_manifest)), orbit=ORBIT, canonical="front")
    with pytest.raises(DataError, match="no column mood"):
        inspect_table(open_source(str(face_manifest)), orbit=["mood"])


def test_a_folder_is_looked_at_by_its_sub_folders(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png", "c/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "b/3.png").write_bytes((tmp_path / "b/2.png").read_bytes())
    (tmp_path / "a/notes.txt").write_text("none")
    found = inspect_table(open_source(str(tmp_path)))
    assert found.members == {"orbits": 3, "fewest": 1, "median": 2, "most": 3}
    assert found.copies == (("b/2.png", "b/3.png"),) and found.ignored == ("a/notes.txt",)
    assert [problem.reason for problem in found.problems] == [
        "its orbit (orbit c) has 1 member, 2 are needed"
    ]
    assert [len(members) for members in found.orbits] == [2, 3, 1]
    assert "the same file: b/2.png, b/3.png" in str(found) and "not images: a/notes.txt" in str(
        found
    )
