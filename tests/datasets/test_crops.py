import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from orbitset.datasets.crops import crop_by_boxes, crop_by_landmarks
from orbitset.datasets.manifest import read_manifest
from orbitset.errors import DataError

NAMES = [f"{subject}_01_01_051_{light}" for subject in ("001", "002") for light in ("00", "07")]


@pytest.fixture
def table(tmp_path):
    for name in NAMES:
        Image.new("L", (8, 6)).save(tmp_path / f"{name}.png")
    manifest = tmp_path / "manifest.csv"
    manifest.write_text("path\n" + "\n".join(f"{name}.png" for name in NAMES))
    return read_manifest(manifest)


def test_crops_come_from_a_file_of_boxes(table, tmp_path):
    rows = [f"{path},1,1,5,5" for path in table.paths]
    boxes = tmp_path / "boxes.csv"
    boxes.write_text("path,left,top,right,bottom\n" + "\n".join(rows))
    assert crop_by_boxes(table, boxes).boxes == ((1.0, 1.0, 5.0, 5.0),) * 4
    boxes.write_text("path,left,top,right,bottom\n" + "\n".join(rows[1:]))
    with pytest.raises(DataError, match=f"row 2: {NAMES[0]}.png has no box in"):
        crop_by_boxes(table, boxes)
    assert len(crop_by_boxes(table, boxes, "skip")) == 3
    wrong = f"{table.paths[0]},5,1,1,5"
    boxes.write_text("path,left,top,right,bottom\n" + "\n".join([wrong, *rows[1:]]))
    left_out = crop_by_boxes(table, boxes, "skip").left_out
    assert len(left_out) == 1 and "its box (5, 1, 1, 5) is not left, top" in str(left_out[0])
    boxes.write_text("path,left,top,right,bottom\n" + "\n".join([wrong, *rows[2:]]))
    left_out = crop_by_boxes(table, boxes, "skip").left_out
    assert str(left_out[1]).endswith(f"{table.paths[1]} has no box in {boxes}")
    boxes.write_text("path\n" + table.paths[0])
    with pytest.raises(DataError, match="has no boxes; it needs the columns left"):
        crop_by_boxes(table, boxes)


def save_landmarks(folder, name, points):
    folder.mkdir(exist_ok=True)
    savemat(folder / f"{name}_lm.mat", {"pts": np.array(points)})


def middle(box):
    left, top, right, bottom = box
    return (left + right) / 2, (top + bottom) / 2


def test_landmarks_of_one_light_serve_all_lights(table, tmp_path):
    folder = tmp_path / "labels"
    save_landmarks(folder, NAMES[0], [[2.0, 1.0], [4.0, 1.0], [3.0, 5.0]])
    save_landmarks(folder, NAMES[3], [[0.0, 0.0], [2.0, 2.0]])
    boxes = crop_by_landmarks(table, folder).boxes
    assert [middle(box) for box in boxes] == [
        pytest.approx(at) for at in [(3, 3)] * 2 + [(1, 1)] * 2
    ]
    left, top, right, bottom = boxes[0]
    assert right - left == bottom - top == pytest.approx(4 * 1.7)


def test_landmarks_of_an_image_itself_come_first(table, tmp_path):
    folder = tmp_path / "labels"
    save_landmarks(folder, NAMES[0], [[0.0, 0.0], [2.0, 2.0]])
    save_landmarks(folder, NAMES[1], [[2.0, 2.0], [4.0, 4.0]])
    boxes = crop_by_landmarks(table, folder, "skip").boxes
    assert [middle(box) for box in boxes] == [pytest.approx((1, 1)), pytest.approx((3, 3))]


def test_images_without_landmarks_are_named(table, tmp_path):
    folder = tmp_path / "labels"
    folder.mkdir()
    with pytest.raises(DataError, match="holds no landmarks"):
        crop_by_landmarks(table, folder)
    save_landmarks(folder, NAMES[2], [[0.0, 0.0], [2.0, 2.0]])
    (folder / f"{NAMES[0]}_lm.mat").write_bytes(b"damaged")
    left = crop_by_landmarks(table, folder, "skip")
    assert [problem.row for problem in left.left_out] == list(table.rows[:2])
    with pytest.raises(DataError, match=f"row 2: {NAMES[0]}.png has no box in"):
        crop_by_landmarks(table, folder)
