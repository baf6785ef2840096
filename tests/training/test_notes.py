import json

import pytest
import torch
from torch import nn

from orbitset.losses import OrbitJoint, Term, as_objective
from orbitset.run_folder import Run
from orbitset.training import RunRecorder, TrainConfig, fit
from orbitset.training.notes import Stretch, collapse_warning, explained, judge
from orbitset.training.progress import Silent

OT = OrbitJoint(rectify_weight=0).about_terms
OJ = OrbitJoint().about_terms


def _stretches(*terms, length=10):
    return [Stretch(at * length, (at + 1) * length, own) for at, own in enumerate(terms)]


def _ot(*values):
    return _stretches(
        *({"loss": value, "discriminate": value, "active": value} for value in values)
    )


def test_a_term_is_silent_since_its_last_stretch_above_nearly_nothing():
    said = judge(_ot(1.0, 0.5, 0.0, 0.0), tenth=10, about=OT)
    assert set(said) == {"silent discriminate"}
    assert (
        "discriminate has been 0 since step 20: hardly a triplet is inside"
        in said["silent discriminate"]
    )
    assert "loss.margin_fraction" in said["silent discriminate"]
    nearly = judge(_ot(1.0, 1e-4, 0.0), tenth=10, about=OT)["silent discriminate"]
    assert "has been nearly 0 since step 10" in nearly


@pytest.mark.parametrize("values", [(1.0, 0.0), (1.0, 0.0, 0.01), (1.0, 0.5, 0.01)])
def test_a_term_that_is_small_for_a_moment_or_not_so_small_is_not_silent(values):
    assert not judge(_ot(*values), tenth=15, about=OT)


def test_terms_far_apart_are_named_with_what_the_training_amounts_to():
    terms = {"loss": 201.0, "discriminate": 1.0, "rectify": 200.0, "active": 0.9}
    said = judge(_stretches(terms, terms), tenth=20, about=OJ)["unbalanced"]
    assert said.startswith("rectify is 200 times discriminate (steps 0 to 20): this trains as OE; ")
    assert "--set loss.scale=own-dimension or a lower loss.rectify_weight" in said
    other = {"loss": 201.0, "discriminate": 200.0, "rectify": 1.0}
    said = judge(_stretches(other), tenth=10, about=OJ)["unbalanced"]
    assert "trains as OT" in said and "lower --set loss.discriminate_weight" in said
    assert not judge(_stretches(terms), tenth=20, about=OJ), "only half as long"
    near = {"loss": 100.0, "discriminate": 1.0, "rectify": 99.0}
    assert not judge(_stretches(near, near), tenth=20, about=OJ)


def test_a_training_amounts_to_one_term_only_if_all_others_are_small():
    terms = {"loss": 301.01, "discriminate": 0.01, "rectify": 200.0, "more": 101.0}
    about = OJ | {"more": Term("another")}
    said = judge(_stretches(terms, terms), tenth=20, about=about)["unbalanced"]
    assert "rectify is 20,000 times discriminate" in said
    assert "discriminate hardly counts" in said and "trains as" not in said
    alone = terms | {"loss": 201.01, "more": 1.0}
    assert "trains as OE" in judge(_stretches(alone, alone), tenth=20, about=about)["unbalanced"]


def test_a_silent_term_is_not_out_of_balance_too():
    terms = {"loss": 2.0, "discriminate": 0.0, "rectify": 2.0}
    assert set(judge(_stretches(terms), tenth=10, about=OJ)) == {"silent discriminate"}


def test_a_loss_that_says_nothing_of_its_terms_is_judged_if_they_add_up_to_it():
    sums = {"loss": 301.0, "near": 1.0, "far": 300.0}
    assert "near hardly counts" in judge(_stretches(sums), tenth=10, about={})["unbalanced"]
    shares = {"loss": 3.0, "right": 0.0, "wrong": 1.0}
    assert not judge(_stretches(shares), tenth=10, about={})
    said = {"right": Term("share", is_part=False), "wrong": "distance of what is wrong"}
    assert not judge(_stretches(shares), tenth=10, about=said)
    assert explained(said) == "right: share; wrong: distance of what is wrong"


def test_collapse_is_judged_from_spread_and_rank():
    assert "one point (spread 1.0e-06)" in collapse_warning({"spread": 1e-6, "rank": 1.0})
    assert "nearly a line (rank 1.05)" in collapse_warning({"spread": 0.9, "rank": 1.05})
    assert collapse_warning({"spread": 0.5, "rank": 4.0}) is None
    here, gone = {"spread": 1e-6}, {"spread": 0.5}
    assert "collapse" in judge(_stretches(here, here), tenth=10, about={})
    assert not judge(_stretches(gone, here), tenth=10, about={})
    assert "collapse" in judge(_stretches(gone, here), tenth=10, about={}, is_last=True)


class _Batch:
    images = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


class _Batches:
    position = 0
    epoch = 0.0

    def images_before(self, position):
        return 2 * position

    def batch(self, index):
        _Batch.number = index
        return _Batch()


class _Net(nn.Linear):
    def encode(self, images):
        return self(images)


class _Notes(Silent):
    def __init__(self, stop_after=None):
        self.messages, self.stop_after = [], stop_after

    def note(self, message):
        self.messages.append(message)

    def update(self, done, images, terms):
        if done == self.stop_after:
            raise KeyboardInterrupt


@as_objective
def _fading(codes, batch):
    """A term that is 0 from step 30 on."""
    far = codes.square().mean() * (_Batch.number < 30)
    return {"loss": far, "far": far}


def _train(run, *, resume=False, stop_after=None):
    progress = _Notes(stop_after)
    recorder = RunRecorder(
        run,
        evaluate=lambda model: {"score": 0.5},
        evaluate_at={0, 35, 200},
        resume=resume,
        checkpoint_every_s=0,
    )
    torch.manual_seed(0)
    config = TrainConfig(learning_rate=1e-3)
    fit(
        _Net(3, 2),
        _fading,
        _Batches(),
        steps=200,
        config=config,
        recorder=recorder,
        progress=progress,
    )
    return progress.messages


def test_it_is_said_once_while_training_runs_and_written_into_the_run(tmp_path):
    messages = _train(Run(tmp_path))
    (noted,) = Run(tmp_path).records("notes.jsonl")
    assert (noted["step"], noted["kind"]) == (
        60,
        "silent far",
    )  # silent from the stretch 35 to 40 on
    assert "has been 0 since step 35: it no longer teaches anything" in noted["text"]
    assert sum("silent" in m or "no longer teaches" in m for m in messages) == 1


@pytest.mark.parametrize("stopped_at", [36, 59, 60, 61, 150])
def test_a_resumed_training_says_what_an_uninterrupted_one_says(tmp_path, stopped_at):
    _train(Run(tmp_path / "whole"))
    run = Run(tmp_path / "run")
    run.path.mkdir()
    with pytest.raises(KeyboardInterrupt):
        _train(run, stop_after=stopped_at)
    later = _train(run, resume=True)
    assert (run / "notes.jsonl").read_text() == (tmp_path / "whole/notes.jsonl").read_text()
    assert len([m for m in later if "no longer" in m]) == int(stopped_at <= 60)


def test_results_and_page_show_what_was_noted(tmp_path, small_faces):
    from orbitset.report import write_report
    from orbitset.runs.train import train

    run = Run(tmp_path / "run")
    config = small_faces("OJ", "loss.rectify_weight=1e6", "train.epochs=8")
    progress = _Notes()
    results = train(config, run, progress=progress)
    (note,) = results["notes"]
    assert "times discriminate" in note and "this trains as OE" in note
    assert json.loads((run / "results.json").read_text())["notes"] == [note]
    assert "this trains as OE" in write_report(run).read_text()
    assert sum("this trains as OE" in message for message in progress.messages) == 1
    assert any("terms of the loss: discriminate: " in message for message in progress.messages)
