"""Small studies on the embedded digits."""

import json
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import processes
import pytest

from orbitset.config import with_settings
from orbitset.errors import ConfigError, RunError
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.study import Line, Study
from orbitset.report import write_report
from orbitset.results.recorded import read_recorded, stored_study
from orbitset.results.summary import summarise
from orbitset.run_folder import Run
from orbitset.runs.study import run_study
from orbitset.runs.train import train
from orbitset.training.progress import Silent

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "orbits.members=5",
    "orbits.orbits_per_batch=8",
    "train.epochs=0.03",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.tsne_points=50",
    "evaluation.splits=4",
]


def small_study(methods=("OJ", "OT", "OE", "AE", "OT-STN", "ST-STN"), seeds=(0, 1), **more):
    lines = [
        Line(label=method, config=with_settings(affine_digits(method), SMALL)) for method in methods
    ]
    base = with_settings(affine_digits("OJ"), SMALL)
    variant = with_settings(base, ["loss.margin=3"])
    lines.append(Line(label="OJ, as printed", role="variant", config=variant))
    for ratio in (1.0, 10.0):
        config = with_settings(base, [f"loss.discriminate_weight={1 / ratio}"])
        lines.append(Line(label=f"OJ at {ratio:g}", role="point", config=config))
    return Study(name="digits-study", lines=tuple(lines), seeds=tuple(seeds), **more)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("study") / "run")
    run_study(small_study(cut_down="cut down: tiny"), run)
    write_report(run, summarise(read_recorded(run)))
    return run


def test_every_line_is_trained_with_every_seed_and_points_once(done):
    paths = done.config["runs"]
    assert len(paths) == 7 * 2 + 2
    assert paths[:2] == ["OJ/seed-0", "OT/seed-0"] and paths[-1] == "OJ-at-10/seed-0"
    for path in paths:
        each = Run(done / path)
        assert each.is_finished
        assert not (each / "checkpoint").exists()
        assert each.config["seed"] == int(path[-1])
    drawn = [path for path in paths if "tsne" in np.load(done / path / "arrays.npz")]
    assert drawn == [path for path in paths if path.endswith("seed-0") and "-at-" not in path]


def test_the_study_of_a_folder_is_the_one_it_was_started_with(done):
    assert stored_study(done) == small_study(cut_down="cut down: tiny")


def test_resuming_trains_only_what_is_missing(done, tmp_path):
    shutil.copytree(done.path, tmp_path / "run")
    run = Run(tmp_path / "run")
    shutil.rmtree(run / "OE/seed-1")
    (run / "OT/seed-0/model.safetensors").unlink()  # as a recorded run is kept
    kept = (run / "OT/seed-0/results.json").stat().st_mtime_ns
    before = (done / "OE/seed-1/metrics.jsonl").read_text()
    run_study(stored_study(run), run, resume=True)
    assert (run / "OE/seed-1/metrics.jsonl").read_text() == before
    assert (run / "OT/seed-0/results.json").stat().st_mtime_ns == kept
    assert not (run / "OT/seed-0/model.safetensors").exists()


def test_an_interrupted_study_goes_on_where_it_was(done, tmp_path):
    class Killed(Silent):
        started = 0

        def start(self, label, total, done):
            self.started += 1

        def update(self, done, images, terms):
            if self.started == 3 and done > 3:
                raise KeyboardInterrupt

    run, study = Run(tmp_path / "run"), small_study(cut_down="cut down: tiny")
    with pytest.raises(KeyboardInterrupt):
        run_study(study, run, progress=Killed())
    with pytest.raises(RunError, match="not finished: 14 of 16 runs are missing"):
        summarise(read_recorded(run, study))
    for path in done.config["runs"][4:]:  # what is left after these two
        shutil.copytree(done / path, run / path)
    run_study(study, run, resume=True)
    assert summarise(read_recorded(run, study))["rows"] == done.read_json("results.json")["rows"]


def test_side_by_side_gives_what_one_by_one_gives(done, tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_context", processes.get_context)
    notes = []

    class Notes(Silent):
        def note(self, message):
            notes.append(message)

    study = small_study(methods=("OE", "AE"), seeds=(0,), cut_down="cut down: tiny")
    study = replace(study, lines=study.lines[:2])
    run = Run(tmp_path / "run")
    run_study(study, run, jobs=2, progress=Notes())
    for method in ("OE", "AE"):
        ours, theirs = (Run(each / f"{method}/seed-0") for each in (run, done))
        assert ours.is_finished and not (ours / "checkpoint").exists()
        for a, b in zip(ours.records(), theirs.records(), strict=True):
            assert a["accuracy"]["mean"] == pytest.approx(b["accuracy"]["mean"], abs=0.05)
    complete = [note.split(" complete: ")[0] for note in notes if " complete: " in note]
    assert sorted(complete) == ["1/2", "2/2"]
    notes.clear()
    run_study(study, run, resume=True, jobs=2, progress=Notes())
    assert not notes  # nothing is left to train
    with pytest.raises(ConfigError, match="jobs is 0"):
        run_study(study, run, resume=True, jobs=0)


def test_a_study_is_not_resumed_with_other_settings_nor_overwritten_unasked(done):
    with pytest.raises(
        ConfigError, match=r"other settings \(cut_down: .*, seeds: \(0, 1\) → \(0,\)\)"
    ):
        run_study(small_study(seeds=(0,)), done, resume=True)
    turned = replace(stored_study(done), lines=stored_study(done).lines[::-1])
    with pytest.raises(ConfigError, match="the order of its lines"):
        run_study(turned, done, resume=True)
    with pytest.raises(ConfigError, match="ST-STN left out"):
        run_study(small_study(methods=("OJ",), cut_down="cut down: tiny"), done, resume=True)
    with pytest.raises(RunError, match="holds a run, not a study"):
        run_study(small_study(), Run(done / "OJ/seed-0"), resume=True)
    with pytest.raises(RunError, match="already holds a run"):
        run_study(small_study(), done)
    assert done.resume_command.startswith("orbitset reproduce digits-study --resume --out")


def test_the_page_holds_every_figure_and_says_it_is_cut_down(done):
    page = (done / "report.html").read_text()
    names = {path.stem for path in (done / "figures").glob("*.png")}
    assert names == {"accuracy", "tsne", "orbits", "rectified", "stn", "decoded", "ratio"}
    assert page.count("<img") == len(names)
    assert "cut down: tiny" in page
    assert all(
        row["cut_down"] == "cut down: tiny" for row in done.read_json("results.json")["rows"]
    )
    inside = Run(done / "OJ/seed-0")
    assert "cut down: tiny" in write_report(inside).read_text()
    assert all(row["cut_down"] for row in inside.read_json("results.json")["rows"])


def test_rows_have_one_shape(done):
    rows = done.read_json("results.json")["rows"]
    assert {"pixels", "untrained", "OJ", "OJ, as printed"} <= {row["method"] for row in rows}
    assert len({frozenset(row) for row in rows}) == 1


@pytest.fixture
def copied(done, tmp_path):
    shutil.copytree(done.path, tmp_path / "run")
    return Run(tmp_path / "run")


def _contents(run):
    return {
        path.relative_to(run.path): path.read_bytes()
        for path in [run / "results.json", run / "report.html", *(run / "figures").glob("*.png")]
    }


def _edit_last(run, change):
    path = run / "OE/seed-1/metrics.jsonl"
    *lines, last = path.read_text().splitlines()
    record = json.loads(last)
    change(record["accuracy"])
    path.write_text("\n".join([*lines, json.dumps(record), ""]))


def _edit_rows(run, change):
    path = run / "OJ/seed-0/results.json"
    results = json.loads(path.read_text())
    change(results["rows"])
    path.write_text(json.dumps(results))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (
            lambda run: _edit_last(run, lambda scores: scores.pop("va")),
            "OE/seed-1/metrics.jsonl is damaged: it does not have the scores of 4",
        ),
        (
            lambda run: (run / "OE/seed-1/metrics.jsonl").write_text("nonsense\n"),
            "OE/seed-1/metrics.jsonl is damaged",
        ),
        (
            lambda run: (run / "OE/seed-1/metrics.jsonl").write_text('{"step": "1"}\n'),
            "a step is not a whole number",
        ),
        (
            lambda run: _edit_last(run, lambda scores: scores["te"].__setitem__(0, 1.5)),
            r"OE/seed-1/metrics.jsonl is damaged: 1\.5 is no score",
        ),
        (
            lambda run: _edit_rows(run, lambda rows: rows[0].update(mean=-0.1)),
            "OJ/seed-0/results.json is damaged: -0.1 is no score",
        ),
        (
            lambda run: _edit_rows(run, lambda rows: rows[0].update(mean="high")),
            "OJ/seed-0/results.json is damaged",
        ),
        (
            lambda run: (run / "OJ/seed-0/results.json").write_text("{}"),
            "OJ/seed-0/results.json is damaged",
        ),
        (
            lambda run: (run / "OE/seed-0/environment.json").write_text("[]"),
            "OE/seed-0/environment.json is damaged",
        ),
        (
            lambda run: (run / "OE/seed-0/config.json").unlink(),
            "OE/seed-0/config.json is missing or damaged",
        ),
        (
            lambda run: (run / "AE/seed-0/arrays.npz").write_bytes(b""),
            "AE/seed-0/arrays.npz is damaged",
        ),
    ],
)
def test_damage_is_named_and_nothing_is_overwritten(copied, damage, word):
    before = _contents(copied)
    damage(copied)
    with pytest.raises(RunError, match=word):
        write_report(copied, summarise(read_recorded(copied)))
    changed = {Path("OJ/seed-0/results.json")}
    assert {k: v for k, v in _contents(copied).items() if k not in changed} == before


def test_a_study_goes_on_with_lines_that_it_had_not(copied):
    study = stored_study(copied)
    config = with_settings(study.lines[0].config, ["loss.margin=5"])
    new = Line(label="OJ, wide", role="variant", config=config)
    longer = replace(study, lines=(*study.lines[:-2], new, *study.lines[-2:]))
    before = (copied / "OT/seed-0/results.json").stat().st_mtime_ns
    run_study(longer, copied, resume=True)
    assert stored_study(copied) == longer
    assert [Run(copied / f"OJ-wide/seed-{seed}").is_finished for seed in (0, 1)] == [True, True]
    assert (copied / "OT/seed-0/results.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="OJ, wide left out"):
        run_study(study, copied, resume=True)


def test_a_run_in_the_place_of_another_is_refused(copied):
    shutil.rmtree(copied / "OE/seed-0")
    shutil.copytree(copied / "OJ/seed-0", copied / "OE/seed-0")
    with pytest.raises(RunError, match=r"not the run of OE, seed 0.*method: OJ → OE"):
        summarise(read_recorded(copied))
    with pytest.raises(RunError, match="not the run of OE, seed 0"):
        run_study(stored_study(copied), copied, resume=True)


def test_overwriting_leaves_nothing_of_the_old_study_and_can_be_resumed(copied):
    class Killed(Silent):
        def start(self, label, total, done):
            raise KeyboardInterrupt

    new = small_study(methods=("OJ", "OE"), seeds=(0,), cut_down="cut down: other")
    with pytest.raises(KeyboardInterrupt):
        run_study(new, copied, overwrite=True, progress=Killed())
    assert not (copied / "AE").exists() and not (copied / "OJ/seed-1").exists()
    run_study(new, copied, resume=True)
    labels = {row["method"] for row in summarise(read_recorded(copied, new))["rows"]}
    assert labels == {"pixels", "untrained", "OJ", "OE", "OJ, as printed"}


def test_a_table_can_be_had_before_all_seeds_are_done(copied):
    shutil.rmtree(copied / "OE/seed-1")
    shutil.rmtree(copied / "OJ-at-10/seed-0")
    results = summarise(read_recorded(copied))
    row = next(row for row in results["rows"] if row["method"] == "OJ")
    assert row["seeds"] == 1 and row["seeds_low"] is None
    assert row["cut_down"] == (
        "cut down: tiny; unfinished: 1 of 2 seeds; 1 of 2 points of the curve over weights"
    )
    assert [point["ratio"] for point in results["ratios"]] == [1.0]
    page = write_report(copied, results).read_text()
    assert "unfinished: 1 of 2 seeds" in page


def test_a_table_can_be_had_before_a_variant_is_done(copied):
    shutil.rmtree(copied / "OJ-as-printed/seed-1")
    results = summarise(read_recorded(copied))
    rows = {row["method"]: row for row in results["rows"]}
    assert "OJ, as printed" not in rows and rows["OJ"]["seeds"] == 2
    assert rows["OJ"]["cut_down"] == "cut down: tiny; unfinished: without OJ, as printed"
    page = write_report(copied, results).read_text()
    assert "unfinished: without OJ, as printed" in page and "OJ, as printed, conf" not in page


def test_runs_of_different_kinds_are_told_on_the_page(copied):
    environment = Run(copied / "OE/seed-0").read_json("environment.json")
    Run(copied / "OE/seed-0").write_json("environment.json", {**environment, "commit": "other"})
    results = summarise(read_recorded(copied))
    assert sorted(one["runs"] for one in results["environments"]) == [1, 15]
    assert "Not all runs are of one kind" in write_report(copied, results).read_text()


def test_a_resumed_study_says_so_in_its_environment(copied):
    run_study(stored_study(copied), copied, resume=True)
    assert len(copied.read_json("environment.json")["resumed"]) == 1


@pytest.mark.parametrize(
    ("labels", "word"), [(("OJ, a", "OJ a"), "named twice"), (("!!", "OJ"), "give it a letter")]
)
def test_labels_that_cannot_be_folders_are_refused(labels, word):
    config = with_settings(affine_digits("OJ"), SMALL)
    lines = tuple(Line(label=label, config=config) for label in labels)
    with pytest.raises(ConfigError, match=word):
        Study(name="x", lines=lines, seeds=(0,))


def test_other_commands_do_not_write_into_a_study(copied):
    with pytest.raises(RunError, match="holds a study"):
        train(with_settings(affine_digits("OJ"), SMALL), copied, overwrite=True)


def test_a_folder_without_a_study_is_refused(tmp_path):
    run = Run(tmp_path / "run")
    with pytest.raises(RunError, match="there is no run folder"):
        stored_study(run)
    run.create({"name": "x", "method": "OJ"})
    with pytest.raises(RunError, match="holds no study"):
        stored_study(run)
