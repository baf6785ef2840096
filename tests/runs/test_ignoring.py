"""Small runs that ignore a factor of made-up faces."""

from dataclasses import replace

import pytest

from orbitset.config import with_settings
from orbitset.datasets.source import open_source
from orbitset.errors import ConfigError, DataError
from orbitset.protocols.images import ObservedSplit
from orbitset.recipes.compose import compose
from orbitset.recipes.own_images import OrbitOptions, observed_images
from orbitset.recipes.request import Request
from orbitset.run_folder import Run
from orbitset.runs.ignoring import Ignoring
from orbitset.runs.load import load_run
from orbitset.runs.train import train

SPLIT = "person=p0,p1/p2,p3/p4,p5"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "face-cache"))


def _rows(results):
    return {(row["method"], row["metric"]): row["mean"] for row in results["rows"]}


@pytest.fixture(scope="module")
def both(tmp_path_factory, small_faces):
    """The same training, with the light ignored and without."""
    folder = tmp_path_factory.mktemp("ignoring")
    results = {}
    for ignore in ("", "light"):
        settings = [f"orbits.ignore={ignore}"] if ignore else []
        config = small_faces("OT", *settings, split=SPLIT)
        results[ignore] = train(config, Run(folder / f"run{ignore}"))
    return folder, results


def test_a_probe_finds_less_of_what_is_ignored(both):
    rows = _rows(both[1]["light"])
    assert rows["untrained", "probe_light"] > 0.7
    assert rows["OT", "probe_light"] - 0.5 <= (rows["untrained", "probe_light"] - 0.5) / 2
    words = both[1]["light"]["protocol"]["measures"]
    assert words["probe_light"] == "linear probe of light, chance 0.500"
    assert ("OT", "probe_light") not in _rows(both[1][""])


def test_training_itself_and_the_rows_it_has_to_beat_are_as_without(both):
    folder, results = both
    with_, without = (Run(folder / f"run{ignore}").records() for ignore in ("light", ""))
    assert [record["terms"] for record in with_] == [record["terms"] for record in without]
    for method in ("pixels", "untrained"):
        for measure in ("auc", "top1"):
            assert _rows(results["light"])[method, measure] == _rows(results[""])[method, measure]


def test_the_model_that_is_kept_ignores_it(both):
    folder, results = both
    model, _, judge = load_run(Run(folder / "runlight"))
    auc = judge.scores(judge.encoding(model))["auc"]
    assert auc.mean == pytest.approx(_rows(results["light"])["OT", "auc"], abs=1e-4)


def test_a_resumed_training_ignores_it_too(both, small_faces, tmp_path, monkeypatch):
    run = Run(tmp_path / "run")
    config = small_faces("OT", "orbits.ignore=light", split=SPLIT)
    monkeypatch.setattr("orbitset.runs.train._finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config, run)
    monkeypatch.undo()
    train(config, run, resume=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (run / name).read_bytes() == (both[0] / "runlight" / name).read_bytes()


def test_batches_are_of_orbits_that_share_it(face_manifest):
    options = OrbitOptions(orbit=["person", "light"], ignore=["light", "view"], label="person")
    source = open_source(str(face_manifest))
    orbits = observed_images(source, "OT", options).observed
    assert (orbits.ignore, orbits.alike, orbits.alike_values) == (("light", "view"), "light", 2)
    within = replace(options, orbit=["person"], ignore=["light"])
    assert observed_images(source, "OT", within).observed.alike is None


def test_batches_are_as_without_where_no_two_orbits_share_it(face_manifest):
    head, *lines = face_manifest.read_text().split("\n")
    alone = face_manifest.with_name("alone.csv")
    alone.write_text("\n".join([f"{head},camera", *(f"{line},{line[0]}" for line in lines)]))
    options = OrbitOptions(orbit=["person", "camera"], ignore=["camera"], label="session")
    options = replace(options, split="person=p0,p1/p2,p3/p4,p5")
    assert observed_images(open_source(str(alone)), "OT", options).observed.alike is None


def _refused(small_faces, *settings, split=SPLIT):
    config = small_faces("OT", *settings, split=split)
    with pytest.raises((ConfigError, DataError)) as caught:
        Ignoring(ObservedSplit(open_source(config.data), config.observed, config.evaluation))
    return str(caught.value)


def test_a_factor_with_one_value_is_refused(small_faces):
    message = _refused(small_faces, "orbits.ignore=session", split="session=1/2")
    assert "have 1 value of session" in message


def test_a_factor_that_says_who_is_shown_is_refused(small_faces, face_manifest):
    head, *lines = face_manifest.read_text().split("\n")
    visits = [f"{line},{line.split(',')[1]} in {line.split(',')[2]}" for line in lines]
    named = face_manifest.with_name("visits.csv")
    named.write_text("\n".join([f"{head},visit", *visits]))
    message = _refused(small_faces, "orbits.ignore=visit", f"data={named}")
    assert "every visit belongs to one person only" in message
    with pytest.raises(ConfigError, match="to be recognised and to be ignored"):
        with_settings(small_faces("OT"), ["orbits.ignore=person"])


def test_a_factor_that_is_not_there_and_orbits_without_factors_are_refused(face_manifest):
    options = OrbitOptions(orbit=["person"], ignore=["ligth"])
    with pytest.raises(DataError, match="no factor ligth") as caught:
        compose(Request(source=str(face_manifest), observed=options))
    assert caught.value.hint == "did you mean light?"
    with pytest.raises(ConfigError, match="--ignore"):
        compose(Request(source="affine-digits", observed=OrbitOptions(ignore=["light"])))
