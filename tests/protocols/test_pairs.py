"""Whole small runs on a manifest of made-up faces."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from orbitset.errors import ConfigError, DataError
from orbitset.evaluation.exclusion import Same
from orbitset.evaluation.labelled import draw_labelled_sets
from orbitset.protocols import Numbers, raw_pixels
from orbitset.run_folder import Run
from orbitset.runs.evaluate import evaluate_run
from orbitset.runs.load import load_run
from orbitset.runs.prepare import build_protocol, open_images
from orbitset.runs.train import train


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "face-cache"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_faces):
    run = Run(tmp_path_factory.mktemp("observed") / "run")
    train(small_faces(), run)
    return run


def _protocol(config):
    return build_protocol(config, open_images(config, "cpu"))


def test_scores_are_those_of_loops_over_all_pairs(small_faces):
    protocol = _protocol(small_faces())
    test = protocol.images.sides["te"]
    codes = protocol.held_out(raw_pixels)["te"]
    found, unanswerable = protocol.score(codes, test)
    points, person = codes.codes.double().numpy(), test.factors["person"].numpy()
    view, light = (test.factors[name].numpy() for name in ("view", "light"))
    distance = ((points[:, None] - points) ** 2).sum(-1)
    upper = np.triu_indices(len(points), 1)
    same = person[:, None] == person
    assert found["auc"].mean == pytest.approx(
        roc_auc_score(same[upper], -distance[upper]), abs=1e-12
    )
    right = []
    for query in range(len(points)):
        near = (person == person[query]) & ((view == view[query]) | (light == light[query]))
        allowed = np.flatnonzero(~near)
        nearest = allowed[distance[query, allowed].argmin()]
        right.append(person[nearest] == person[query])
    assert found["top1"].mean == np.mean(right)
    assert unanswerable == 0
    assert found["accuracy"].n == 100 and found["accuracy"].repeated == "draws"
    near = (person[:, None] == person) & ((view[:, None] == view) | (light[:, None] == light))
    right = []
    for row_L in draw_labelled_sets(codes.labels, shots=1, draws=100).numpy():
        allowed = ~near[:, row_L]
        is_scored = (allowed & same[:, row_L]).any(1)
        nearest = row_L[np.where(allowed, distance[:, row_L], np.inf).argmin(1)]
        right.append((person[nearest] == person)[is_scored].mean())
    assert found["accuracy"].mean == pytest.approx(np.mean(right), abs=1e-12)


def test_neighbours_are_excluded_from_retrieval_and_one_shot(small_faces):
    config = small_faces()
    images = open_images(config, "cpu")
    scores = {}
    for exclude in ("light", "light:0.5", "light:1step:circular"):
        evaluation = replace(config.evaluation, exclude=(exclude, "view"))
        protocol = build_protocol(replace(config, evaluation=evaluation), images)
        if exclude != "light:1step:circular":  # of two lights, it leaves none
            scores[exclude] = protocol.scores(protocol.held_out(raw_pixels), raw_pixels)
    assert scores["light"] == scores["light:0.5"]
    assert "Near('number of light', 1.5, 'period of light')" in repr(protocol.rule)
    with pytest.raises(DataError, match="with the same view, or up to 1 step away in light .circ"):
        protocol.scores(protocol.held_out(raw_pixels), raw_pixels)
    evaluation = replace(config.evaluation, exclude=("view:1step",))
    with pytest.raises(DataError, match="no value of view is a number"):
        build_protocol(replace(config, evaluation=evaluation), images)


def test_records_hold_both_sides_and_the_best_is_the_kept_models(finished):
    records = finished.records()
    assert [record["epoch"] for record in records] == [0, 1, 3]
    for record in records:
        for name in ("auc", "top1", "accuracy"):
            assert [len(record[name][side]) for side in ("va", "te")] == [1, 1]
            assert record[name]["mean"] == record[name]["te"][0]
    model, _, judge = load_run(finished)
    again = judge.record(model)
    kept = judge.choice.best(records)
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
        assert list(arrays["tsne_names"]) == [f"p{person}" for person in range(6)]


def test_the_rule_is_the_papers(small_faces):
    rule = _protocol(small_faces()).rule
    shared = Same("session") | Same("view") | Same("light")
    factors = {name: torch.randint(3, (20,)) for name in ("person", "session", "view", "light")}
    wanted = Same("person") & (Same("view") | Same("light"))
    found = rule.holds(factors, factors)
    assert torch.equal(found, wanted.holds(factors, factors))
    assert not torch.equal(found, (Same("person") & shared).holds(factors, factors))


def test_a_run_is_evaluated_anew_by_verification_retrieval_and_clustering(finished):
    rows = {row["metric"]: row["mean"] for row in evaluate_run(finished)}
    kept = max(finished.records()[1:], key=lambda record: record["accuracy"]["va"])
    assert (rows["auc"], rows["top1"]) == (kept["auc"]["mean"], kept["top1"]["mean"])
    assert {"eer", "tar_at_far_0.01", "top5", "map", "auc_cosine", "nmi", "ari"} <= set(rows)
    assert all(0 <= value <= 1 for name, value in rows.items() if name != "ari")
    with pytest.raises(ConfigError, match="are for runs on computed orbits"):
        evaluate_run(finished, Numbers(draws=3))


def test_training_learns_what_raw_pixels_do_not_show(tmp_path, small_faces):
    run = Run(tmp_path / "run")
    results = train(small_faces("ST", "train.epochs=100", "train.evaluate_at=50"), run)
    mean = {(row["method"], row["metric"]): row["mean"] for row in results["rows"]}
    assert mean["pixels", "auc"] < 0.7 and mean["pixels", "top1"] < 0.1
    assert mean["ST", "auc"] > 0.95 and mean["ST", "top1"] > 0.9
    model, _, judge = load_run(run)
    assert judge.protocol.held_out(judge.encoding(model))["te"].codes.shape == (36, 16)


def test_where_validation_images_would_have_stopped_it_is_said_too(finished):
    rows = {
        (row["method"], row["metric"]): row for row in finished.read_json("results.json")["rows"]
    }
    best = max(finished.records()[1:], key=lambda record: record["top1"]["va"][0])
    assert rows["OJ", "top1_stopped"]["mean"] == best["top1"]["te"][0]
    assert rows["OJ", "top1_stopped"]["epoch"] == best["epoch"]


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
    unvalidated = ["train.keep=last", "train.patience=null", "evaluation.validation="]
    config = small_faces("AE", *settings, *unvalidated)
    with pytest.raises(DataError, match=message):
        train(config, Run(tmp_path / "run"))
