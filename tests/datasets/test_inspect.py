import json

import numpy as np
import pytest
from PIL import Image

from orbitset.datasets.source import open_source
from orbitset.errors import ConfigError, DataError

ORBIT = ("person", "session", "light")


def test_a_sound_manifest_is_counted(face_manifest):
    check = open_source(str(face_manifest)).check(orbit=ORBIT, canonical="view=front")
    assert check.is_sound and (check.summary["images"], check.summary["sizes"]) == (
        144,
        {"16x16": 144},
    )
    assert check.summary["factors"] == {"person": 6, "session": 4, "view": 3, "light": 2}
    assert check.summary["orbits"] == {"orbits": 48, "fewest": 3, "median": 3, "most": 3}
    assert "48 orbits with 3 members each" in check.lines


def test_whatever_is_wrong_is_listed_with_its_row(face_manifest):
    rows = face_manifest.read_text().splitlines()
    (face_manifest.parent / "empty.png").touch()
    manifest = face_manifest.with_name("wrong.csv")
    wrong = ["empty.png,p9,1,front,0", "gone.png,p9,1,left,0", rows[1], "../x.png,p9,1,left,0"]
    manifest.write_text("\n".join([*rows[:3], *rows[5:], *wrong]))
    check = open_source(str(manifest)).check(orbit=ORBIT, canonical="view=front")
    reasons = [problem["reason"] for problem in check.summary["problems"]]
    assert [problem["row"] for problem in check.summary["problems"]] == [2, 3, 144, 145, 146, 147]
    assert "has no member with view front" in reasons[0]
    assert "empty.png is empty: it has 0 bytes" in reasons[2]
    assert "gone.png does not exist" in reasons[3]
    assert "already" in reasons[4] and "leads out of" in reasons[5]
    assert check.summary["images"] == 142
    assert not check.is_sound and len(json.dumps(check.summary)) > 100


def test_boxes_are_looked_at(face_manifest, tmp_path):
    paths = [row.split(",")[0] for row in face_manifest.read_text().splitlines()[1:]]
    boxes = tmp_path / "boxes.csv"
    edges = ["15.6,0,30,8", "8,0,2,8", *["0,0,8,8"] * (len(paths) - 3)]
    rows = [f"{path},{edge}" for path, edge in zip(paths, edges, strict=False)]
    boxes.write_text("\n".join(["path,left,top,right,bottom", *rows]))
    check = open_source(str(face_manifest)).check(crops=boxes)
    assert [problem["row"] for problem in check.summary["problems"]] == [2, 3, len(paths) + 1]
    assert "has 16x16 px, and its box lies outside" in check.summary["problems"][0]["reason"]
    assert "has no box in" in check.summary["problems"][1]["reason"]
    assert check.summary["images"] == len(paths) - 3


def test_without_an_orbit_only_files_are_looked_at(face_manifest):
    assert open_source(str(face_manifest)).check().summary["orbits"] is None
    with pytest.raises(ConfigError, match="write it as factor=value"):
        open_source(str(face_manifest)).check(orbit=ORBIT, canonical="front")
    with pytest.raises(DataError, match="no column mood"):
        open_source(str(face_manifest)).check(orbit=["mood"])


def test_a_folder_is_looked_at_by_its_sub_folders(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png", "c/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "b/3.png").write_bytes((tmp_path / "b/2.png").read_bytes())
    (tmp_path / "a/notes.txt").write_text("none")
    check = open_source(str(tmp_path)).check()
    assert check.summary["orbits"] == {"orbits": 3, "fewest": 1, "median": 2, "most": 3}
    assert check.summary["copies"] == [["b/2.png", "b/3.png"]]
    assert check.summary["ignored"] == ["a/notes.txt"]
    assert [problem["reason"] for problem in check.summary["problems"]] == [
        "its orbit (orbit c) has 1 member, 2 are needed"
    ]
    assert [len(members) for _, members in check.orbits] == [2, 3, 1]
    assert "the same file: b/2.png, b/3.png" in check.lines
    assert "not images: a/notes.txt" in check.lines


def test_rendered_heads_are_counted_and_not_rendered():
    check = open_source("heads:2x3").check()
    assert check.is_sound and check.summary["images"] == 2 * 4 * 13 * 3
    assert check.summary["factors"] == {"person": 2, "session": 4, "view": 13, "light": 3}
    with pytest.raises(ConfigError, match="lights is 21; give 1 to 20"):
        open_source("heads:2x21").check()
