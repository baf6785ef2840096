"""What a study is, before anything is trained."""

import json
from dataclasses import replace

import pytest

from orbitset.config import with_settings
from orbitset.errors import ConfigError
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.study import (
    Line,
    Study,
    changed,
    check_seeds,
    cut_down_mark,
    named_methods,
    read_study,
    what_is_cut,
    with_changes,
)


def line(label, method="OJ", *settings, **options):
    return Line(label=label, config=with_settings(affine_digits(method), settings), **options)


@pytest.fixture
def study():
    lines = (
        line("OJ", split="a", paper={"accuracy": {"mean": 0.66, "sd": 0.027}}),
        line("OJ", split="b"),
        line("OE", "OE", split="a"),
        line("OJ, printed", role="variant"),
        line("OJ at 10", role="point"),
        line("OJ", split="c", role="curve"),
    )
    return Study(name="digits", lines=lines, seeds=(4, 5), cut_down="cut down: tiny")


def test_lines_are_trained_in_the_order_of_their_worth(study):
    runs = [(line.name, seed) for line, seed in study.runs()]
    assert runs == [
        *[("OJ, a", 4), ("OJ, b", 4), ("OE, a", 4)],
        *[("OJ, a", 5), ("OJ, b", 5), ("OE, a", 5)],
        *[("OJ, printed", 4), ("OJ, printed", 5)],
        *[("OJ at 10", 4), ("OJ, c", 4)],
    ]
    assert study.labels == ["OJ", "OE", "OJ, printed"]
    assert [each.split for each in study.lines_of("OJ")] == ["a", "b"]


def test_a_run_lies_in_a_folder_of_its_line_and_seed(study):
    first, *_, printed, at_ten, _ = study.lines
    assert first.path(4) == "OJ/a/seed-4"
    assert (printed.path(5), at_ten.path(4)) == ("OJ-printed/seed-5", "OJ-at-10/seed-4")


def test_only_the_first_run_of_a_method_keeps_what_figures_are_drawn_from(study):
    kept = [
        (each.name, seed)
        for each, seed in study.runs()
        if study.config_of(each, seed).evaluation.tsne_points
    ]
    assert kept == [("OJ, a", 4), ("OE, a", 4), ("OJ, printed", 4)]
    config = study.config_of(study.lines[1], 5)
    assert (config.name, config.seed, config.cut_down) == ("digits", 5, "cut down: tiny")


def test_a_study_is_read_as_it_was_described(study):
    assert read_study(json.loads(json.dumps(study.describe()))) == study
    with pytest.raises(KeyError):
        read_study({**study.describe(), "lines": [{"label": "OJ"}]})


def test_what_differs_is_said_in_words(study):
    lines = study.lines
    assert changed(study, replace(study, seeds=(4,))) == "seeds: (4, 5) → (4,)"
    assert changed(study, replace(study, lines=lines[:2] + lines[3:])) == "OE, a left out"
    slow = replace(lines[0], config=with_settings(lines[0].config, ["train.learning_rate=0.5"]))
    assert changed(study, replace(study, lines=(slow, *lines[1:]))) == (
        "OJ, a train.learning_rate: 0.003 → 0.5"
    )
    assert changed(study, replace(study, lines=lines[::-1])) == "the order of its lines"


@pytest.mark.parametrize(
    ("lines", "seeds", "words"),
    [
        ((), (0,), "at least one method and one seed"),
        ((line("OJ"),), (), "at least one method and one seed"),
        ((line("OJ", role="point"),), (0,), "at least one method and one seed"),
        ((line("OJ"), line("OJ")), (0,), "OJ is named twice; name every method once"),
        ((line("/"),), (0,), "'/' cannot be the name of a folder; give it a letter"),
    ],
)
def test_studies_that_cannot_be_are_refused(lines, seeds, words):
    with pytest.raises(ConfigError, match=words):
        Study(name="x", lines=lines, seeds=seeds)


def test_methods_are_named_in_any_case_or_by_default():
    assert named_methods(None, ("OJ", "OT")) == ("OJ", "OT")
    assert named_methods(["ot-stn", "my_losses:Loss"], ()) == ("OT-STN", "my_losses:Loss")
    with pytest.raises(ConfigError, match="method is 'OX'; choose one of"):
        named_methods(["OX"], ())


def test_what_is_less_than_the_whole_is_said():
    whole = ("OJ", "OT", "OE")
    assert (
        what_is_cut(None, whole, None, 300_000)
        == what_is_cut(["oj", "ot", "oe"], whole, None, 9)
        == []
    )
    assert what_is_cut(["oj", "my:loss"], whole, 1_000, 300_000) == [
        "1 of 3 methods",
        "1,000 images per training instead of 300,000",
    ]
    assert what_is_cut(None, whole, 300_000, 300_000) == []
    assert cut_down_mark([]) is None
    assert cut_down_mark(["a", "b"]) == "cut down: a; b"
    assert cut_down_mark(["a", "b"], ", ") == "cut down: a, b"


@pytest.mark.parametrize("seeds", [0, -1, 1001])
def test_a_number_of_seeds_is_checked(seeds):
    with pytest.raises(ConfigError, match=f"seeds is {seeds}; give 1 to 1000"):
        check_seeds(seeds)
    check_seeds(1)
    check_seeds(1000)


def test_a_setting_is_changed_in_the_lines_that_use_it():
    study = Study(name="x", lines=(line("OJ"), line("OE", "OE")), seeds=(0,), cut_down="short")
    changed = with_changes(study, ["loss.mining=all", "encoder.code_size=8"], ["my:purity"])
    joint, encode = (line.config for line in changed.lines)
    assert joint.loss.mining == "all" and not hasattr(encode.loss, "mining")
    assert joint.encoder.code_size == encode.encoder.code_size == 8
    assert joint.measures == encode.measures == ("my:purity",)
    assert changed.cut_down == "short; changed: loss.mining=all, encoder.code_size=8"
    assert with_changes(study, []) == study


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.epochs=3", "train.epochs cannot be set for a study, .*--epochs or --images"),
        ("loss.reductoin=sum", "there is no setting .*did you mean loss.reduction?"),
        ("loss.margin=1", "[AO]E does not use loss.margin, which belongs to OJ, OT and ST"),
    ],
)
def test_a_setting_that_no_line_uses_is_refused(setting, words):
    study = Study(name="x", lines=(line("AE", "AE"), line("OE", "OE")), seeds=(0,))
    with pytest.raises(ConfigError, match=words):
        with_changes(study, [setting])
