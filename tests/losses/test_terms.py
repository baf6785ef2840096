from functools import partial

import pytest
import torch
from built_losses import built_loss

from orbitset.losses import Classified, OrbitJoint, Term, as_objective
from orbitset.recipes.methods import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_every_term_of_a_method_is_in_words(method):
    loss = built_loss(method, code_size=4, num_orbits=3)
    about = loss.about_terms
    assert all(isinstance(term, Term) and term.meaning for term in about.values())
    parts = {name for name, term in about.items() if term.is_part}
    assert parts == {
        "OJ": {"discriminate", "rectify"}, "OT": {"discriminate"}, "OE": {"rectify"},
        "ST": {"discriminate"}, "EX": {"classify"}, "AE": {"reconstruct"},
        "IN": {"contrast"}, "IN+R": {"contrast", "rectify"}, "SG": {"contrast"},
        "IM": {"contrast", "hard_pairs"}, "IM+R": {"contrast", "hard_pairs", "rectify"},
        "SG+R": {"contrast", "rectify"}, "PR": {"contrast"}, "PR+R": {"contrast", "rectify"},
    }[method]  # fmt: skip


def test_classes_are_added_to_what_the_objective_says():
    loss = Classified(OrbitJoint(), weight=1.0, code_size=4, num_classes=2)
    assert {"discriminate", "rectify", "active", "classes", "right"} == set(loss.about_terms)


def test_a_function_says_what_its_terms_mean():
    def pull(codes, batch, *, power=2.0):
        return {"loss": codes.pow(power).mean()}

    assert as_objective(pull).about_terms == {}
    pull.about_terms = {"near": "distance"}
    assert as_objective(partial(pull, power=1.0)).about_terms == {"near": "distance"}
    assert as_objective(torch.nn.Identity()) is not None


def test_own_dimension_is_proposed_only_where_it_is_not_set():
    def advice(scale):
        return OrbitJoint(scale=scale).about_terms["rectify"].to_balance

    assert "loss.scale" in advice("as-printed") and "loss.scale" not in advice("own-dimension")
