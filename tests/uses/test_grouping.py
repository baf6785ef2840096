import shutil

import pytest

import orbitset
from orbitset.errors import ConfigError, DataError
from orbitset.uses import find_duplicates
from orbitset.uses.grouping import duplicates_sheet


@pytest.fixture(scope="module")
def model(model_folder):
    return orbitset.load(model_folder)


def test_exact_copies_are_grouped(model, photos, tmp_path):
    folder = shutil.copytree(photos, tmp_path / "photos")
    shutil.copy(folder / "ant" / "1.png", folder / "bee" / "copy.png")
    groups, looked = find_duplicates(model, [folder], threshold=1e-9)
    assert len(looked.paths) == 10
    (group,) = groups
    assert set(group.names) == {str(folder / "ant" / "1.png"), str(folder / "bee" / "copy.png")}
    assert group.distances == pytest.approx([0, 0], abs=1e-12)


def test_the_threshold_is_the_models_own_for_a_rate(model, photos):
    groups, _ = find_duplicates(model, [photos])
    assert sorted(len(group) for group in groups) == [3, 3, 3]
    assert all(len({name.split("/")[-2] for name in group.names}) == 1 for group in groups)
    assert find_duplicates(model, [photos], threshold=0)[0] == []
    ((everything,), _) = find_duplicates(model, [photos], threshold=100)
    assert len(everything) == 9


def test_an_image_alone_is_no_group(model, photos):
    assert find_duplicates(model, [photos / "ant" / "1.png"])[0] == []


def test_what_cannot_be_read_is_named(model, photos, tmp_path):
    (tmp_path / "zero.png").touch()
    _, looked = find_duplicates(model, [tmp_path, photos])
    assert [problem.reason for problem in looked.problems] == [
        f"{tmp_path / 'zero.png'} is empty: it has 0 bytes"
    ]
    with pytest.raises(DataError, match="no image could be read"):
        find_duplicates(model, [tmp_path])


@pytest.mark.parametrize("threshold", [-1, float("nan"), float("inf")])
def test_a_threshold_is_checked_before_any_image_is_read(model, threshold):
    with pytest.raises(ConfigError, match="threshold is .*; give a squared distance"):
        find_duplicates(model, ["gone"], threshold=threshold)


def test_a_rate_that_was_not_measured_and_a_model_without_are_refused(build_model, model, photos):
    with pytest.raises(ConfigError, match="rate of 0.3, only"):
        find_duplicates(model, [photos], far=0.3)
    with pytest.raises(ConfigError, match="no measured threshold"):
        find_duplicates(build_model(calibration=None), [photos])


def test_the_sheet_has_a_row_for_each_group(model, photos):
    groups, _ = find_duplicates(model, [photos])
    page = duplicates_sheet(groups)
    assert "<h1>3 groups</h1>" in page
    assert page.count('<section class="row">') == 3 and page.count("<img ") == 9
