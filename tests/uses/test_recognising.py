import shutil

import pytest

import orbitset
from orbitset.errors import ConfigError, DataError
from orbitset.uses import classify
from orbitset.uses.recognising import classes_sheet


@pytest.fixture(scope="module")
def model(model_folder):
    return orbitset.load(model_folder)


@pytest.fixture
def one_each(photos, tmp_path):
    """An image for each of two classes."""
    (tmp_path / "known").mkdir()
    for name in ("ant", "bee"):
        shutil.copy(photos / name / "1.png", tmp_path / "known" / f"{name}.png")
    return tmp_path / "known"


def _labels(result):
    return [one.label for one in result.results]


@pytest.mark.parametrize("by", ["nearest", "mean"])
def test_sub_folders_are_classes(model, photos, by):
    result = classify(model, photos, [photos], by=by)
    assert _labels(result) == ["ant"] * 3 + ["bee"] * 3 + ["cat"] * 3
    assert result.rejects_by == "examples"
    assert result.examples == {name: str(photos / name / "1.png") for name in ("ant", "bee", "cat")}
    assert not result.unknown and not result.problems


def test_an_image_for_each_class_is_enough(model, photos, one_each):
    result = classify(model, str(one_each), [photos / "ant", photos / "cat"])
    assert _labels(result) == ["ant"] * 3 + [None] * 3
    assert (result.reject_above, result.rejects_by) == (0.003, "calibration")


def test_nothing_is_rejected_where_every_image_is_of_a_class(build_model, model, photos, one_each):
    result = classify(model, one_each, [photos / "cat"], is_open=False)
    assert None not in _labels(result)
    assert (result.reject_above, result.rejects_by) == (None, "none")
    result = classify(build_model(calibration=None), one_each, [photos / "cat"])
    assert (result.reject_above, result.rejects_by) == (None, "none")


def test_the_distance_may_be_given(model, photos, one_each):
    result = classify(model, one_each, [photos], reject_above=1e-5)
    assert _labels(result) == ["ant", None, None, "bee"] + [None] * 5
    assert (result.reject_above, result.rejects_by) == (1e-5, "given")


def test_a_class_without_readable_examples_is_named(model, photos, one_each):
    (one_each / "dud").mkdir()
    (one_each / "dud" / "1.png").touch()
    (one_each / "dud" / "notes.txt").touch()
    result = classify(model, one_each, [photos / "ant"])
    assert result.unknown == ("dud",)
    assert [problem.reason for problem in result.problems] == [
        f"{one_each / 'dud' / '1.png'} is empty: it has 0 bytes"
    ]
    with pytest.raises(DataError, match="no image could be read: .*dud"):
        classify(model, one_each / "dud", [photos])


def test_examples_must_have_classes(model, photos, tmp_path):
    with pytest.raises(DataError, match="there is no image, folder"):
        classify(model, tmp_path / "gone", [photos])
    with pytest.raises(DataError, match="there is no image in"):
        classify(model, tmp_path, [photos])
    with pytest.raises(ConfigError, match="no factor label or orbit"):
        classify(model, photos / "ant" / "1.png", [photos])


def test_examples_may_be_rows_of_a_manifest(model, photos):
    lines = ["path,thing,kind", "ant/1.png,ant,insect", "bee/1.png,bee,insect", "cat/1.png,cat,"]
    (photos / "known.csv").write_text("\n".join(lines))
    try:
        result = classify(model, photos / "known.csv", [photos / "cat"], label="thing")
        assert _labels(result) == ["cat"] * 3
        result = classify(model, photos / "known.csv", [photos / "cat"], label="kind")
        assert list(result.examples) == ["insect"]
        with pytest.raises(ConfigError, match="--label: thing, kind"):
            classify(model, photos / "known.csv", [photos / "cat"])
        with pytest.raises(DataError, match="has no factor form"):
            classify(model, photos / "known.csv", [photos / "cat"], label="form")
    finally:
        (photos / "known.csv").unlink()


def test_contradictions_are_refused_before_any_image_is_read(model):
    with pytest.raises(ConfigError, match="contradict each other; give one"):
        classify(model, "gone", ["gone"], reject_above=1, is_open=False)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="give a squared distance"):
            classify(model, "gone", ["gone"], reject_above=wrong)
    with pytest.raises(DataError, match="there is no image, folder or other data gone"):
        classify(model, "gone", ["gone"])


def test_the_sheet_has_a_row_for_each_class_and_one_for_the_rest(model, photos, one_each):
    page = classes_sheet(classify(model, one_each, [photos]))
    assert page.count('<section class="row">') == 3
    assert "none of these" in page and "?" in page
