import json
import shutil
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from orbitset.config import with_settings
from orbitset.datasets.source import Single
from orbitset.errors import ConfigError, OrbitsetError, RunError
from orbitset.protocols import ProtocolSettings
from orbitset.recipes.affine_images import affine_digits, affine_images
from orbitset.recipes.experiment import read_experiment
from orbitset.run_folder import Run
from orbitset.runs.prepare import open_images
from orbitset.runs.train import train
from orbitset.runs.tuning import Search, check_searchable, stored_search, tune
from orbitset.training.progress import Silent

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "orbits.canvas_px=16",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
]
IMAGES = 250


def _bases(*methods, settings=()):
    return {m: with_settings(affine_digits(m), [*SMALL, *settings]) for m in methods}


def _tune(bases, run, *, jobs=1, progress=None, resume=False, **search):
    return tune(Search(bases=bases, **search), run, jobs=jobs, progress=progress, resume=resume)


def _trial(run, method, number):
    return Run(run / f"trials/{method}/{number:03}/seed-0")


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("search") / "run")
    return run, _tune(_bases("OJ", "AE"), run, trials=2, images=IMAGES)


def test_every_method_gets_as_many_trials_and_images(search):
    run, results = search
    for method in ("OJ", "AE"):
        trials = results["methods"][method]["trials"]
        assert [(t["number"], t["state"]) for t in trials] == [(i, "complete") for i in range(2)]
        for number in range(2):
            shown = _trial(run, method, number).records()[-1]["images"]
            assert IMAGES <= shown < IMAGES + 2 * 64
    assert results == run.read_json("results.json")
    assert "torch" in run.read_json("environment.json")["versions"]


def test_a_trial_is_worth_its_best_accuracy_after_the_first_step(search):
    run, results = search
    for trial in results["methods"]["OJ"]["trials"]:
        records = _trial(run, "OJ", trial["number"]).records()[1:]
        means = [record["accuracy"]["mean"] for record in records]
        assert trial["value"] == max(means)
        assert trial["epoch"] == records[means.index(max(means))]["epoch"]
    best = results["methods"]["OJ"]["best"]
    assert best["value"] == max(t["value"] for t in results["methods"]["OJ"]["trials"])
    assert best["settings"] == results["methods"]["OJ"]["trials"][best["trial"]]["settings"]


def test_what_is_reported_is_what_was_trained(search):
    run, results = search
    base = replace(_bases("OJ")["OJ"].evaluation, on="validation", tsne_points=0)
    for trial in results["methods"]["OJ"]["trials"]:
        trained = read_experiment(_trial(run, "OJ", trial["number"]).config)
        assert trained == with_settings(trained, trial["settings"])
        assert trained.evaluation == base


def test_the_first_trial_is_the_recipes_own(search):
    run, _ = search
    for method, base in _bases("OJ", "AE").items():
        first = read_experiment(_trial(run, method, 0).config)
        assert (first.encoder, first.orbits) == (base.encoder, base.orbits)
        assert first.margin == base.margin
        if method == "AE":
            assert first.loss == base.loss
        else:  # a number in place of the usual fraction
            assert replace(first.loss, margin=None, margin_fraction=None) == base.loss
        assert replace(first.train, epochs=base.train.epochs) == base.train
        assert _trial(run, method, 1).config != _trial(run, method, 0).config


def test_only_the_records_of_a_trial_are_kept(search):
    run, _ = search
    names = {path.name for path in _trial(run, "OJ", 1).path.iterdir()}
    assert {"config.json", "metrics.jsonl", "results.json"} <= names
    assert not {"model.safetensors", "arrays.npz", "checkpoint"} & names


def test_no_test_image_is_needed(tmp_path, monkeypatch):
    real = Single.load_splits
    monkeypatch.setattr(Single, "load_splits", lambda *data: replace(real(*data), test=None))
    with pytest.raises(AttributeError):
        train(_bases("OE")["OE"], Run(tmp_path / "test"))
    results = _tune(_bases("OE"), Run(tmp_path / "run"), trials=2, images=100)
    assert len(results["methods"]["OE"]["trials"]) == 2


def test_trials_that_diverge_count_and_do_not_stop_the_search(tmp_path):
    notes = []

    class Notes(Silent):
        def note(self, message):
            notes.append(message)

    run = Run(tmp_path / "run")
    bases = _bases("AE", settings=["train.learning_rate=1e30", "encoder.code_norm=none"])
    results = _tune(bases, run, trials=3, images=IMAGES, progress=Notes())
    trials = results["methods"]["AE"]["trials"]
    assert len(trials) == 3
    failed = {"state": "failed", "value": 0.0, "epoch": None}
    assert {name: trials[0][name] for name in failed} == failed
    assert any("counts as 0: " in note for note in notes)
    assert not (_trial(run, "AE", 0) / "checkpoint").exists()


@pytest.mark.parametrize("moment", ["start", "update", "note"])
def test_an_interrupted_search_ends_as_if_it_had_not_been(tmp_path, search, moment):
    calls = []

    class Stop(Silent):
        def _call(self, name):
            calls.append(name)
            if calls.count(moment) == 4 and name == moment:
                raise KeyboardInterrupt

        def start(self, label, total, done):
            self._call("start")

        def update(self, done, images, terms):
            self._call("update")

        def note(self, message):
            self._call("note")

    run = Run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        _tune(_bases("OJ", "AE"), run, trials=2, images=IMAGES, progress=Stop())
    results = _tune(_bases("OJ", "AE"), run, trials=2, images=IMAGES, resume=True)
    assert results == search[1]
    assert len(run.read_json("environment.json")["resumed"]) == 1


def _forget_value(run, trial):
    """What a kill leaves that came after the training, before it was written down what the trial is worth."""
    path = run / f"trials/{trial}/trial.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({name: record[name] for name in ("point", "settings")}))


@pytest.mark.parametrize(
    ("killed", "moment"), [("OJ/000", "proposed"), ("OJ/001", "trained"), ("AE/001", "proposed")]
)
def test_a_search_killed_before_a_trial_was_settled_goes_on_with_it(
    tmp_path, search, killed, moment
):
    run = Run(tmp_path / "run")
    shutil.copytree(search[0].path, run.path)
    order = ["OJ/000", "AE/000", "OJ/001", "AE/001"]
    for later in order[order.index(killed) + 1 :]:
        shutil.rmtree(run / f"trials/{later}")
    _forget_value(run, killed)
    if moment == "proposed":
        shutil.rmtree(run / f"trials/{killed}/seed-0")
    assert _tune(_bases("OJ", "AE"), run, trials=2, images=IMAGES, resume=True) == search[1]


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("several") / "run")
    return run, _tune(_bases("OE"), run, trials=2, seeds=2, seed=5, images=IMAGES)


def test_a_trial_of_several_seeds_is_worth_their_mean_at_one_moment(several):
    run, results = several
    for trial in results["methods"]["OE"]["trials"]:
        runs = [Run(run / f"trials/OE/{trial['number']:03}/seed-{seed}") for seed in (5, 6)]
        assert [each.config["seed"] for each in runs] == [5, 6]
        first, second = (each.records()[1:] for each in runs)
        means = [
            (a["accuracy"]["mean"] + b["accuracy"]["mean"]) / 2
            for a, b in zip(first, second, strict=True)
        ]
        assert trial["value"] == pytest.approx(max(means))
        assert trial["epoch"] == first[means.index(max(means))]["epoch"]


def test_a_search_killed_between_two_seeds_trains_the_other_only(tmp_path, several):
    run = Run(tmp_path / "run")
    shutil.copytree(several[0].path, run.path)
    (run / "results.json").unlink()
    _forget_value(run, "OE/001")
    last = run / "trials/OE/001"
    before = (last / "seed-5/metrics.jsonl").stat().st_mtime_ns
    shutil.rmtree(last / "seed-6")
    again = _tune(_bases("OE"), run, trials=2, seeds=2, seed=5, images=IMAGES, resume=True)
    assert again == several[1]
    assert (last / "seed-5/metrics.jsonl").stat().st_mtime_ns == before


def test_a_trial_with_a_seed_that_diverges_counts_as_0_and_its_others_are_left(tmp_path):
    run = Run(tmp_path / "run")
    bases = _bases("AE", settings=["train.learning_rate=1e30", "encoder.code_norm=none"])
    (trial,) = _tune(bases, run, trials=1, seeds=2, images=IMAGES)["methods"]["AE"]["trials"]
    assert (trial["value"], trial["state"]) == (0, "failed")
    assert not (run / "trials/AE/000/seed-1").exists()


def test_a_kill_before_a_failure_was_told_does_not_lose_the_trial(tmp_path):
    run = Run(tmp_path / "run")
    bases = _bases("AE", settings=["train.learning_rate=1e30", "encoder.code_norm=none"])
    results = _tune(bases, run, trials=1, images=IMAGES)
    _forget_value(run, "AE/000")
    assert _tune(bases, run, trials=1, images=IMAGES, resume=True) == results


def test_a_full_disk_ends_the_search_and_is_no_trial_that_failed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    run = Run(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("orbitset.training.checkpoint.write_atomically", full)
        with pytest.raises(RunError, match="No space left"):
            _tune(_bases("AE"), run, trials=1, images=IMAGES)
    (trial,) = _tune(_bases("AE"), run, trials=1, images=IMAGES, resume=True)["methods"]["AE"][
        "trials"
    ]
    assert trial["state"] == "complete" and trial["value"] > 0


@pytest.mark.slow
def test_trials_side_by_side_are_told_as_they_end(tmp_path):
    run = Run(tmp_path / "run")
    results = _tune(_bases("OE"), run, trials=2, images=1000, jobs=2)
    trials = results["methods"]["OE"]["trials"]
    assert [(t["number"], t["state"]) for t in trials] == [(i, "complete") for i in range(2)]
    assert _trial(run, "OE", 0).read_json("environment.json")["threads"] == 1


def test_resume_with_other_settings_names_what_differs(search):
    run, _ = search
    before = {path: path.read_bytes() for path in run.path.rglob("*.json")}
    asked = {"trials": 2, "images": IMAGES, "resume": True}
    with pytest.raises(ConfigError, match="trials: 2 → 4"):
        _tune(_bases("OJ", "AE"), run, **{**asked, "trials": 4})
    with pytest.raises(ConfigError, match=r"methods: \['OJ', 'AE'\] → \['OJ'\]"):
        _tune(_bases("OJ"), run, **asked)
    with pytest.raises(ConfigError, match=r"AE evaluation\.draws: 5 → 6"):
        _tune(_bases("OJ", "AE", settings=["evaluation.draws=6"]), run, **asked)
    with pytest.raises(ConfigError, match="fixed"):
        _tune(_bases("OJ", "AE"), run, **asked, fixed=("loss.margin",))
    assert {path: path.read_bytes() for path in run.path.rglob("*.json")} == before


def test_an_existing_folder_is_left_alone(search, tmp_path):
    run, _ = search
    before = (run / "results.json").read_bytes()
    with pytest.raises(RunError, match="already holds a run") as error:
        _tune(_bases("OJ", "AE"), run, trials=2, images=IMAGES)
    assert error.value.exit_code == 2 and "overwrite" not in str(error.value)
    assert (run / "results.json").read_bytes() == before
    with pytest.raises(RunError, match="holds a run; choose another folder"):
        _tune(_bases("OJ"), _trial(run, "OJ", 0), resume=True)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="holds no run"):
        _tune(_bases("OJ"), Run(tmp_path))


def test_two_searches_do_not_write_one_folder(tmp_path):
    run = Run(tmp_path / "run")
    with run.locked(), pytest.raises(RunError, match="another process is writing"):
        _tune(_bases("OJ"), run, trials=1, images=IMAGES)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"images": 0}, "images is 0"),
        ({"jobs": 0}, "jobs is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"fixed": ["train.epochs"]}, "train.epochs cannot be set"),
        ({"fixed": ["evaluation.on"]}, "evaluation.on cannot be set"),
        ({"bases": {}}, "at least one method"),
    ],
)
def test_what_cannot_be_searched_is_refused(tmp_path, asked, text):
    run = Run(tmp_path / "run")
    with pytest.raises(ConfigError, match=text):
        _tune(**{"bases": _bases("OJ"), "run": run, **asked})
    assert not run.path.exists()


def test_images_without_labels_are_refused(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 14, 14), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    base = affine_images(str(tmp_path / "images.npy"), 14, 24)
    with pytest.raises(ConfigError, match="have no labels"):
        _tune({"OJ": base}, Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_damaged_configuration_is_named(search, tmp_path):
    config = {**search[0].config, "bases": []}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="config.json is damaged"):
        stored_search(Run(tmp_path))


def test_without_optuna_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(OrbitsetError, match=r"pip install optuna"):
        _tune(_bases("OJ"), Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["garbage", "[1]", '{"value": 0.5}', '{"point": 3}'])
def test_a_damaged_record_of_a_trial_is_named(search, tmp_path, text):
    run = Run(tmp_path / "run")
    shutil.copytree(search[0].path, run.path)
    (run / "trials/OJ/001/trial.json").write_text(text)
    with pytest.raises(RunError, match=r"OJ/001/trial.json is damaged"):
        _tune(_bases("OJ", "AE"), run, trials=2, images=IMAGES, resume=True)


@pytest.fixture(scope="module")
def observed(small_faces, tmp_path_factory):
    """Two trials of OJ and IN on faces, of which session 3 is for validation and 4 for tests."""
    run = Run(tmp_path_factory.mktemp("observed") / "run")
    bases = {method: small_faces(method) for method in ("OJ", "IN")}
    arguments = ("faces.csv", "--orbit", "person,session,light")
    return run, bases, _tune(bases, run, trials=2, images=90, arguments=arguments)


def test_observed_orbits_are_searched_by_retrieval_of_validation_orbits(observed):
    run, bases, results = observed
    for method, base in bases.items():
        found = results["methods"][method]
        for trial in found["trials"]:
            records = _trial(run, method, trial["number"]).records()[1:]
            assert trial["value"] == max(record["accuracy"]["va"][0] for record in records)
            assert trial["measure"] == "accuracy"
        first = read_experiment(_trial(run, method, 0).config)
        assert (first.orbits, first.encoder) == (base.orbits, base.encoder)
        assert found["best"]["command"].startswith(
            f"orbitset train faces.csv --orbit person,session,light --method {method} --"
        )
    assert stored_search(run) == Search(
        bases=bases, trials=2, images=90, arguments=("faces.csv", "--orbit", "person,session,light")
    )


def test_seeds_that_keep_their_best_weights_have_a_best_moment_each(small_faces, tmp_path):
    base, run = small_faces("OT"), Run(tmp_path / "run")
    assert base.keeps_best
    (trial,) = _tune({"OT": base}, run, trials=1, seeds=2, images=90)["methods"]["OT"]["trials"]
    runs = [Run(run / f"trials/OT/000/seed-{seed}") for seed in (0, 1)]
    best = [max(record["accuracy"]["va"][0] for record in each.records()[1:]) for each in runs]
    assert trial["value"] == pytest.approx(sum(best) / 2)


def test_test_images_of_observed_orbits_are_never_scored(observed, monkeypatch):
    run, bases, _ = observed
    config = read_experiment(_trial(run, "OJ", 1).config)
    split = open_images(config, "cpu")
    for side in split.sides.values():
        sessions = {side.values["session"][at] for at in side.factors["session"].tolist()}
        assert sessions == {"3"}
    record = _trial(run, "OJ", 1).records()[-1]
    assert record["top1"]["mean"] == record["top1"]["te"][0] == record["top1"]["va"][0]


def test_a_search_on_observed_orbits_goes_on(observed, tmp_path):
    run, bases, results = observed
    copy = Run(tmp_path / "run")
    shutil.copytree(run.path, copy.path)
    _forget_value(copy, "IN/001")
    shutil.rmtree(copy / "trials/IN/001/seed-0")
    asked = {"trials": 2, "images": 90, "arguments": stored_search(copy).arguments}
    assert _tune(bases, copy, resume=True, **asked) == results


def test_observed_orbits_without_validation_orbits_are_refused(small_faces, tmp_path):
    base = small_faces(split="session=1,2/3,4")
    with pytest.raises(ConfigError, match=r"has no validation orbits, .*name some with --split"):
        _tune({"OJ": base}, Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_as_many_images_as_train_shows_unless_told(small_faces):
    base = small_faces()
    search = Search(bases={"OJ": base}, images=None)
    assert search.of_method(base).base.train == base.train


def test_a_protocol_whose_settings_do_not_choose_validation_images_cannot_be_searched_by():
    @dataclass(frozen=True)
    class Settings(ProtocolSettings):
        orbits: int = 50

    base = SimpleNamespace(evaluation=Settings(), protocol="my_protocols:Mine", is_observed=False)
    with pytest.raises(ConfigError, match="my_protocols:Mine: it cannot be scored on validation"):
        check_searchable(base)
