from typing import get_args

import pytest
from orbitset.experiments.methods import Method, has_transformer, objective_of, parse_method

from orbitset.errors import ConfigError


@pytest.mark.parametrize("name", get_args(Method))
def test_parse_method_ignores_case(name):
    assert parse_method(name) == parse_method(name.lower()) == parse_method(name.title()) == name
    assert name in get_args(Method)


@pytest.mark.parametrize(
    ("name", "hint"), [("ojj", "did you mean OJ?"), ("AEE", "did you mean AE?"), ("zzz", None)]
)
def test_parse_method_refuses_other_names_with_the_nearest(name, hint):
    with pytest.raises(ConfigError, match="choose one of OJ, OT, OE, ST, EX, AE") as error:
        parse_method(name)
    assert repr(name.upper()) in str(error.value)
    assert error.value.hint == hint


def test_a_transformer_changes_the_network_and_not_the_objective():
    assert objective_of("OT-STN") == objective_of("OT") == "OT"
    assert has_transformer("ST-STN") and not has_transformer("ST")
