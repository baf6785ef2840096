import pytest

from orbitset.report.study import mean_records


def _records(*means, sd=0.1):
    return [
        {"step": step, "epoch": step / 10, "accuracy": {"mean": mean, "sd": sd}}
        for step, mean in enumerate(means)
    ]


def test_seeds_are_averaged_evaluation_by_evaluation():
    found = mean_records([_records(0.1, 0.5), _records(0.3, 0.7, sd=0.3)])
    assert [record["epoch"] for record in found] == [0.0, 0.1]
    assert [r["accuracy"]["mean"] for r in found] == pytest.approx([0.2, 0.6])
    assert [r["accuracy"]["sd"] for r in found] == pytest.approx([0.2, 0.2])


def test_seeds_evaluated_at_different_steps_are_not_averaged():
    with pytest.raises(ValueError, match="different steps"):
        mean_records([_records(0.1, 0.5), _records(0.1)])
