"""Small studies on the embedded digits."""

import json
import shutil

import numpy as np
import pytest

from orbitset.config import with_settings
from orbitset.errors import ConfigError, RunError
from orbitset.experiments import affine_digits
from orbitset.experiments.study import Line, Study, run_study, stored_study
from orbitset.experiments.summary import write_summary
from orbitset.report import write_report
from orbitset.runs import Run
from orbitset.training.progress import Silent

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "orbits.orbits_per_batch=8",
    "train.epochs=0.004",
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
    lines.append(Line(label="OJ, as printed", config=with_settings(base, ["loss.margin=3"])))
    for ratio in (1.0, 10.0):
        config = with_settings(base, [f"loss.discriminate_weight={1 / ratio}"])
        lines.append(Line(label=f"OJ at {ratio:g}", ratio=ratio, config=config))
    return Study(name="digits-study", lines=tuple(lines), seeds=tuple(seeds), **more)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("study") / "run")
    run_study(small_study(cut_down="cut down: tiny"), run)
    write_summary(run)
    return run


def test_every_line_is_trained_with_every_seed_and_points_once(done):
    paths = done.config["runs"]
    assert len(paths) == 7 * 2 + 2
    assert paths[:2] == ["OJ/seed-0", "OT/seed-0"] and paths[-1] == "OJ-at-10/seed-0"
    for path in paths:
        each = Run(done / path)
        assert each.is_finished
        assert not each.checkpoint.exists()
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
    with pytest.raises(RunError, match="not finished: 14 of 16|runs are missing"):
        write_summary(run)
    run_study(study, run, resume=True)
    results = write_summary(run)
    assert results["rows"] == done.read_json("results.json")["rows"]


def test_a_study_is_not_resumed_with_other_settings_nor_overwritten_unasked(done):
    with pytest.raises(ConfigError, match=r"other settings \(seeds, AE|other settings"):
        run_study(small_study(seeds=(0,)), done, resume=True)
    with pytest.raises(RunError, match="already holds a run"):
        run_study(small_study(), done)
    assert done.resume_command.startswith("orbitset reproduce digits-study --resume --out")


def test_the_page_holds_every_figure_and_says_it_is_cut_down(done):
    page = write_report(done).read_text()
    names = {path.stem for path in (done / "figures").iterdir()}
    assert names == {"accuracy", "tsne", "orbits", "rectified", "stn", "decoded", "ratio"}
    assert page.count("<img") == len(names)
    assert "cut down: tiny" in page


def test_a_damaged_metrics_file_is_named_and_nothing_is_overwritten(done, tmp_path):
    shutil.copytree(done.path, tmp_path / "run")
    run = Run(tmp_path / "run")
    before = (run / "results.json").read_bytes()
    lines = (run / "OE/seed-1/metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    del record["accuracy"]["va"]
    (run / "OE/seed-1/metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(record), ""]))
    with pytest.raises(RunError, match="OE/seed-1/metrics.jsonl does not hold accuracy by split"):
        write_summary(run)
    (run / "OE/seed-1/metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(RunError, match="OE/seed-1/metrics.jsonl is damaged"):
        write_summary(run)
    assert (run / "results.json").read_bytes() == before


def test_a_folder_without_a_study_is_refused(tmp_path):
    run = Run(tmp_path / "run")
    with pytest.raises(RunError, match="there is no run folder"):
        stored_study(run)
    run.create({"name": "x", "method": "OJ"})
    with pytest.raises(RunError, match="holds no study"):
        stored_study(run)
