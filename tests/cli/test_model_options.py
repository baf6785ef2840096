import io
import json
import sys

import pytest

from orbitset.cli.model_options import check_one, finish, printable
from orbitset.datasets.table import Problem
from orbitset.errors import ConfigError


def test_text_stays_on_one_line_and_letters_stay_letters():
    assert printable("größe 東京 – é") == "größe 東京 – é"
    assert printable("a\nb\t\x1b[0m\x07\u202e\udcff") == "a\\nb\\t\\x1b[0m\\x07\\u202e\\udcff"


@pytest.mark.parametrize("as_json", [False, True])
def test_data_goes_to_stdout_and_what_was_skipped_to_stderr(capsys, as_json):
    problems = [Problem(3, "a\nb.png is empty")]
    finish(as_json, {"images": 1}, ["one", "two"], problems, ["x.txt", "y.txt"])
    printed, said = capsys.readouterr()
    assert said == "skipped: a\\nb.png is empty\nignored, not an image: x.txt and 1 more\n"
    if as_json:
        assert json.loads(printed) == {
            "images": 1,
            "skipped": ["a\nb.png is empty"],
            "ignored": ["x.txt", "y.txt"],
        }
    else:
        assert printed == "one\ntwo\n"


def test_only_one_way_to_say_what_is_the_same():
    check_one(None, 1)
    check_one(0.01, None)
    with pytest.raises(ConfigError, match="give one"):
        check_one(0.01, 0)


def test_letters_that_stdout_does_not_know_are_escaped(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert printable("größe – 東") == "größe \\u2013 \\u6771"
