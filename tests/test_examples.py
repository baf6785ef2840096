"""Every example runs, and says what it should."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "estimator.py": "codes: ",
    "plain_loop.py": "step 199: loss 0.0",
    "with_pytorch_metric_learning.py": "as many: 324 and 324",
}


def test_all_examples_are_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name, capsys):
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out
