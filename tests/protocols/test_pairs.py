"""Whole small runs on a manifest of made-up faces."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from orbitset.experiments import load_run, train
from orbitset.experiments.arrays import tsne_points
from orbitset.experiments.config import read_experiment
from orbitset.experiments.observed import ObservedTask
from orbitset.experiments.reevaluate import evaluate_run
from orbitset.experiments.rows import best
from orbitset.experiments.task import encoding_with, raw_pixels
from sklearn.metrics import roc_auc_score

from orbitset.config import to_dict, with_settings
from orbitset.errors import ConfigError, DataError, RunError
from orbitset.evaluation.exclusion import Same
from orbitset.run_folder import Run


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "face-cache"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_faces):
    run = Run(tmp_path_factory.mktemp("observed") / "run")
    train(small_faces(), run)
    return run


@pytest.mark.parametrize("method", ["OT", "OE", "ST", "EX", "AE"])
def test_every_method_trains_to_a_finished_run(tmp_path, small_faces, method):
    run = Run(tmp_path / "run")
    results = train(small_faces(method, "train.epochs=1", "train.evaluate_at=0.5"), run)
    found = {(row["method"], row["metric"]) for row in results["rows"]}
    wanted = {(m, name) for m in ("pixels", "untrained", method) for name in ("auc", "top1")}
    assert found == wanted | {(method, "auc_stopped"), (method, "top1_stopped")}
    assert run.is_finished


def test_sessions_that_are_tested_are_not_trained_on(small_faces):
    task = ObservedTask(small_faces(), "cpu")
    values = task.train.values["session"]
    of = {
        name: {values[at] for at in seen.factors["session"].tolist()}
        for name, seen in {"train": task.train, **task.sides}.items()
    }
    assert of == {"train": {"1", "2"}, "va": {"3"}, "te": {"4"}}
    assert len(task.batches.orbits) == 6 * 2 * 2
    assert task.batches.images_per_epoch == 72


def test_orbits_of_a_batch_share_a_factor_if_asked_to(small_faces):
    asked = ("orbits.alike=light", "orbits.orbits_per_batch=6")
    task = ObservedTask(small_faces("OJ", *asked), "cpu")
    light_N, rows = task.train.factors["light"], task.batches.orbits.canonical_row_N
    for index in range(4):
        assert len(light_N[rows[task.batches.indices(index)[0]]].unique()) == 1
    task = ObservedTask(small_faces("OJ", *asked, "orbits.alike_values=2"), "cpu")
    for index in range(4):
        assert len(light_N[rows[task.batches.indices(index)[0]]].unique()) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["orbits.alike=view"], "orbits.alike"),
        (["orbits.alike=person"], "which is to be recognised"),
        (["orbits.alike_values=2"], "orbits.alike_values is of the factor orbits.alike"),
        (["orbits.alike=light", "orbits.alike_values=7"], "but a batch has 6 orbits"),
        (["orbits.orbits_per_batch=0"], "orbits.orbits_per_batch is 0; give at least 1"),
    ],
)
def test_what_cannot_be_alike_is_said(small_faces, settings, message):
    with pytest.raises(ConfigError, match=message):
        small_faces("OJ", *settings)


def test_orbits_of_which_no_two_are_alike_are_refused(small_faces):
    config = small_faces("OJ", "orbits.orbits_per_batch=2", split="session=1,2/3/4")
    orbits = replace(config.orbits, orbit=("session",), canonical="first", alike="session")
    with pytest.raises(DataError, match="no two orbits that are trained on have the same session"):
        ObservedTask(replace(config, orbits=orbits), "cpu")


def test_targets_are_the_front_views_of_the_same_person_and_light(small_faces):
    task = ObservedTask(small_faces(), "cpu")
    batch = task.batches.batch(0)
    rows = task.batches.orbits.canonical_row_N[batch.orbits]
    front = task.train.values["view"].index("front")
    assert (task.train.factors["view"][rows] == front).all()
    assert torch.equal(batch.canonical, task.train.images[rows].float() / 255)
    assert torch.equal(batch.labels, task.train.factors["person"][rows])


def test_scores_are_those_of_loops_over_all_pairs(small_faces):
    task = ObservedTask(small_faces(), "cpu")
    test = task.sides["te"]
    codes = task.encode(raw_pixels, test)
    found = task.score(codes, test)
    points, person = codes.codes.double().numpy(), test.factors["person"].numpy()
    view, light = (test.factors[name].numpy() for name in ("view", "light"))
    distance = ((points[:, None] - points) ** 2).sum(-1)
    upper = np.triu_indices(len(points), 1)
    same = person[:, None] == person
    assert found["auc"] == pytest.approx(roc_auc_score(same[upper], -distance[upper]), abs=1e-12)
    right = []
    for query in range(len(points)):
        near = (person == person[query]) & ((view == view[query]) | (light == light[query]))
        allowed = np.flatnonzero(~near)
        nearest = allowed[distance[query, allowed].argmin()]
        right.append(person[nearest] == person[query])
    assert found["top1"] == np.mean(right)
    assert found["unanswerable"] == 0


def test_records_hold_both_sides_and_the_best_is_the_kept_models(finished):
    records = finished.records()
    assert [record["epoch"] for record in records] == [0, 1, 3]
    for record in records:
        for name in ("auc", "top1"):
            assert [len(record[name][side]) for side in ("va", "te")] == [1, 1]
            assert record[name]["mean"] == record[name]["te"][0]
    _, model, task = load_run(finished)
    again = task.evaluate(model)
    kept = best(records, is_begun=False)
    assert again["auc"] == kept["auc"]
    assert again["top1"] == kept["top1"]


def test_figures_have_their_queries_with_targets_and_answers(finished):
    with np.load(finished / "arrays.npz") as arrays:
        assert arrays["query"].shape == (36, 1, 16, 16)
        for name in ("canonical", "nearest", "rectified"):
            assert arrays[name].shape == arrays["query"].shape
            assert arrays[name].dtype == np.uint8
        assert arrays["is_hit"].mean() == finished.records()[-1]["top1"]["mean"]
        wrong = np.flatnonzero(~arrays["is_hit"])[:2]  # all queries are among those asked here
        for name in ("query", "canonical", "nearest", "rectified"):
            assert len(wrong) and np.array_equal(arrays[f"mistake_{name}"], arrays[name][wrong])
        assert arrays["members"].shape == (4, 3, 1, 16, 16)
        assert arrays["tsne"].shape == (36, 2)
        assert set(arrays["tsne_labels"]) == set(range(6))


def test_of_private_images_nothing_is_kept_that_shows_them(tmp_path, small_faces, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run(tmp_path / "run")
    config = small_faces("OJ", "is_private=true", "train.epochs=1", "train.evaluate_at=0.5")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ObservedTask, "arrays", stop)
        train(config, run)
    assert not list(tmp_path.rglob("*.safetensors")), "not even while it was not finished"
    results = train(config, run, resume=True)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(RunError, match="its weights were not kept"):
        load_run(run)
    with np.load(run / "arrays.npz") as arrays:
        assert not set(arrays)
    assert not list(run.path.rglob("*.safetensors"))
    assert run.has_results
    assert train(config, run, resume=True) == results


def test_problems_stop_or_are_left_out_and_listed(tmp_path, small_faces, face_manifest):
    rows = face_manifest.read_text().splitlines()
    manifest = face_manifest.with_name("damaged.csv")
    manifest.write_text("\n".join(row for row in rows if not row.startswith("0010")))
    config = with_settings(small_faces("AE", "train.epochs=0.1"), [f"data={manifest}"])
    with pytest.raises(
        DataError, match=r"its orbit \(person p0, session 1, light 0\) has no member"
    ):
        train(with_settings(config, ["orbits.on_problem=stop"]), Run(tmp_path / "stop"))
    run = Run(tmp_path / "skip")
    train(config, run)
    (left,) = json.loads((run / "left_out.json").read_text())["rows"]
    assert (left["row"], left["others"]) == (2, [5])


def test_a_broken_image_takes_its_orbit_with_it_if_that_lost_its_target(
    tmp_path, small_faces, face_manifest
):
    front = face_manifest.parent / "1111.png"
    content = front.read_bytes()
    front.write_bytes(b"")
    try:
        task = ObservedTask(small_faces("AE", "orbits.on_problem=skip"), "cpu")
    finally:
        front.write_bytes(content)
    assert len(task.train) == 72 - 3
    assert [one.reason.split(" ")[0] for one in task.left_out] == ["1111.png", "its"]


def test_configurations_of_both_kinds_come_back_from_their_files(small_faces):
    config = small_faces("EX")
    assert read_experiment(to_dict(config)) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("evaluation.test=2", "session 2 is in two of"),
        ("evaluation.train=9", "session is '9'"),
        ("evaluation.split_by=mood", "mood"),
        ("orbits.canonical=front", "write it as factor=value"),
        ("orbits.canonical=view=top", "no member with view top"),
        ("orbits.orbit=person,mood", "no (column|factor) mood"),
        ("orbits.orbit=", "is empty"),
        ("orbits.weighting=none", "orbits.weighting is 'none'"),
        ("orbits.on_problem=ignore", "orbits.on_problem is 'ignore'"),
        ("orbits.members_per_batch=1", "compares members of one orbit"),
        ("orbits.members_per_batch=4", "members_per_batch is 4 but orbits have 3"),
        ("evaluation.pictures=-1", "evaluation.pictures is -1"),
    ],
)
def test_settings_that_make_no_sense_are_named(small_faces, setting, message):
    with pytest.raises((ConfigError, DataError), match=message):
        ObservedTask(small_faces("OJ", setting), "cpu")


def test_a_supervised_method_needs_orbits_of_one_label(small_faces):
    with pytest.raises(ConfigError, match="ST learns from person, which the members of an orbit"):
        small_faces("ST", "orbits.orbit=session,light")


def test_the_rule_is_the_papers(small_faces):
    rule = ObservedTask(small_faces(), "cpu").rule
    shared = Same("session") | Same("view") | Same("light")
    factors = {name: torch.randint(3, (20,)) for name in ("person", "session", "view", "light")}
    wanted = Same("person") & (Same("view") | Same("light"))
    found = rule.holds(factors, factors)
    assert torch.equal(found, wanted.holds(factors, factors))
    assert not torch.equal(found, (Same("person") & shared).holds(factors, factors))


def test_a_run_is_evaluated_anew_by_verification_retrieval_and_clustering(finished):
    rows = {row["metric"]: row["mean"] for row in evaluate_run(finished)}
    kept = max(finished.records()[1:], key=lambda record: record["top1"]["va"])
    assert (rows["auc"], rows["top1"]) == (kept["auc"]["mean"], kept["top1"]["mean"])
    assert {"eer", "tar_at_far_0.01", "top5", "map", "auc_cosine", "nmi", "ari"} <= set(rows)
    assert all(0 <= value <= 1 for name, value in rows.items() if name != "ari")
    with pytest.raises(ConfigError, match="are for runs on computed orbits"):
        evaluate_run(finished, draws=3)


def test_training_learns_what_raw_pixels_do_not_show(tmp_path, small_faces):
    run = Run(tmp_path / "run")
    results = train(small_faces("ST", "train.epochs=100", "train.evaluate_at=50"), run)
    mean = {(row["method"], row["metric"]): row["mean"] for row in results["rows"]}
    assert mean["pixels", "auc"] < 0.7 and mean["pixels", "top1"] < 0.1
    assert mean["ST", "auc"] > 0.95 and mean["ST", "top1"] > 0.9
    _, model, task = load_run(run)
    codes = task.encode(encoding_with(model), task.sides["te"])
    assert codes.codes.shape == (36, 16)


def test_where_validation_images_would_have_stopped_it_is_said_too(finished):
    rows = {
        (row["method"], row["metric"]): row for row in finished.read_json("results.json")["rows"]
    }
    best = max(finished.records()[1:], key=lambda record: record["top1"]["va"][0])
    assert rows["OJ", "top1_stopped"]["mean"] == best["top1"]["te"][0]
    assert rows["OJ", "top1_stopped"]["epoch"] == best["epoch"]


def test_a_split_that_cuts_orbits_is_refused(small_faces):
    settings = ["orbits.orbit=person,light", "orbits.canonical=null", "orbits.members_per_batch=2"]
    with pytest.raises(
        DataError, match=r"12 orbits have members with several values of session, the"
    ):
        ObservedTask(small_faces("OJ", *settings), "cpu")


def test_labels_drawn_in_the_plane_are_those_that_are_tested(tmp_path, small_faces):
    run = Run(tmp_path / "run")
    settings = ["evaluation.tsne_labels=1", "train.epochs=0.5", "train.evaluate_at=0.1"]
    train(small_faces("AE", *settings, split="person=p0,p1,p2/p4,p5"), run)
    with np.load(run / "arrays.npz") as arrays:
        assert set(arrays["tsne_labels"]) == {4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["evaluation.exclude=session,view,light,person"],
            "no test image has another of its person",
        ),
        (
            ["evaluation.test=p5", "evaluation.train=p0,p1", "evaluation.split_by=person"],
            "no pair of diff",
        ),
    ],
)
def test_what_cannot_be_scored_is_said_before_training(tmp_path, small_faces, settings, message):
    config = small_faces("AE", *settings, "evaluation.validation=")
    with pytest.raises(DataError, match=message):
        train(config, Run(tmp_path / "run"))


def test_codes_without_any_spread_are_drawn_as_one_point():
    points = tsne_points(torch.full((400, 8), 3.0), 0)
    assert not points.any()
    assert tsne_points(torch.randn(60, 8), 0).std() > 0
