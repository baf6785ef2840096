"""What judges a training."""

from types import SimpleNamespace

import pytest

from orbitset.protocols import Pairs
from orbitset.runs.judge import Judge


def _records(*scores, every=100):
    return [{"step": at * every, "accuracy": {"va": [score]}} for at, score in enumerate(scores)]


@pytest.fixture
def judge(small_faces):
    def build(*settings):
        return Judge(small_faces("OE", *settings), SimpleNamespace(about=Pairs.about))

    return build


@pytest.mark.parametrize(
    ("scores", "ends"),
    [
        ((0.1, 0.5, 0.4, 0.4, 0.4), True),
        ((0.1, 0.5, 0.5, 0.5, 0.5), True),  # as good is no better
        ((0.1, 0.5, 0.4, 0.4, 0.6), False),
        ((0.1, 0.5, 0.4, 0.4), False),
        ((0.9, 0.5, 0.6, 0.7, 0.8), False),  # an untrained network is not kept
        ((0.9,), False),
    ],
)
def test_a_training_ends_when_three_evaluations_were_no_better(judge, scores, ends):
    reason = judge("train.patience=3").why_end(_records(*scores), 1000)
    assert (reason is not None) == ends
    if ends:
        assert reason == "one-shot accuracy of validation images has not risen since step 100"


def test_the_beginning_of_a_training_does_not_count(judge):
    records = _records(0.1, 0.5, 0.4, 0.4, 0.4)
    assert judge("train.patience=2").why_end(records, 2000)
    assert judge("train.patience=3").why_end(records, 2000) is None
    assert judge("train.patience=1").why_end(records, 5000) is None
    assert judge("train.patience=null").why_end(records, 100) is None


def test_weights_are_chosen_by_top1_where_a_record_is_older_than_the_measure(judge):
    """Two measures are not compared with each other."""
    records = _records(0.1, 0.5, 0.6)
    for record, top1 in zip(records, (0.1, 0.8, 0.7), strict=True):
        record["top1"] = {"va": [top1]}
    assert judge("train.patience=null").choice.is_last_best(records)
    del records[1]["accuracy"]
    assert not judge("train.patience=null").choice.is_last_best(records)
    assert judge("train.patience=null").choice.is_last_best(records[:2])


def test_patience_begins_when_the_backbone_learns_or_at_once_if_it_never_does(judge):
    records = _records(0.1, 0.5, 0.4, 0.4, 0.4)
    network = ("train.patience=3", "encoder.backbone=my:Net", "encoder.code_size=16")
    assert judge(*network, "train.head_first=0.4").why_end(records, 500) is None
    assert judge(*network, "train.head_first=1").why_end(records, 500)
