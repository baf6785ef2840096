from dataclasses import replace

import pytest

from orbitset.config import with_settings
from orbitset.errors import ConfigError, DataError
from orbitset.run_folder import Run
from orbitset.runs.demo import demo_configs, run_demo

SMALL = ["train.evaluations=1", "evaluation.test_images=50", "evaluation.draws=3"]


def _small(seed=0):
    more = [*SMALL, "evaluation.tsne_points=0", "train.epochs=0.003", "encoder.channels=4,8"]
    return [with_settings(config, more) for config in demo_configs(seed)]


def test_demo_trains_oj_longest_and_others_shorter():
    lengths = {config.method: config.train.epochs for config in demo_configs()}
    assert list(lengths) == ["OJ", "OT", "AE"]
    assert lengths["OJ"] > lengths["OT"] == lengths["AE"]
    assert {c.train.epochs / lengths[c.method] for c in demo_configs(epochs=3.5)} == {0.5}


def test_overwriting_leaves_no_old_run_to_be_taken_for_a_new_one(tmp_path):
    run = Run(tmp_path / "demo")
    run_demo(_small(), run)

    broken = [replace(_small()[0], data="missing.npy"), *_small()[1:]]
    with pytest.raises(DataError, match="missing.npy"):
        run_demo(broken, run, overwrite=True)
    assert not any(Run(run / name).is_finished for name in ("OJ", "OT", "AE"))


def test_resuming_a_demo_with_other_settings_is_refused(tmp_path):
    run = Run(tmp_path / "demo")
    run_demo(_small(), run)
    assert run_demo(_small(), run, resume=True) == run.read_json("results.json")
    with pytest.raises(ConfigError, match="other settings"):
        run_demo(_small(seed=1), run, resume=True)
