import re
from pathlib import Path

import pytest

from orbitset import limits
from orbitset.errors import ConfigError
from orbitset.limits import DECODING, PIXELS, Limit, decoding


def test_a_limit_is_set_in_the_environment(monkeypatch):
    assert PIXELS.value == 50_000_000
    monkeypatch.setenv("ORBITSET_MAX_PIXELS", "5")
    assert PIXELS.value == 5
    assert PIXELS.described == "more than 5; ORBITSET_MAX_PIXELS sets the limit"
    monkeypatch.setenv("ORBITSET_DECODING_GB", "0.5")
    assert DECODING.value == 500_000_000


@pytest.mark.parametrize("text", ["0", "-1", "many", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv("ORBITSET_MAX_PIXELS", text)
    with pytest.raises(
        ConfigError, match=f"ORBITSET_MAX_PIXELS is '{text}'; give a number above 0"
    ):
        _ = PIXELS.value


def test_what_is_larger_than_the_memory_for_all_is_decoded_alone():
    with decoding(10 * DECODING.value):
        pass
    with decoding(1), decoding(1):
        pass


def test_the_table_of_the_document_is_that_of_the_limits():
    page = (Path(__file__).parents[1] / "docs" / "own-data.md").read_text()
    rows = dict(re.findall(r"^\| `(ORBITSET_\w+)` \| ([\d,]+) \|", page, re.M))
    of_code = [value for value in vars(limits).values() if isinstance(value, Limit)]
    assert rows == {limit.variable: f"{limit.default:,}" for limit in of_code}
