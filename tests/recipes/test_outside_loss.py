"""Losses from a module that is no part of the package."""

import sys

import pytest
import torch
from torch import nn

from orbitset.config import from_dict, to_dict, with_settings
from orbitset.errors import ConfigError
from orbitset.recipes.affine_images import affine_digits, affine_images
from orbitset.recipes.affine_mnist import affine_mnist
from orbitset.recipes.experiment import read_experiment, resolved
from orbitset.recipes.losses import LossContext, LossSettings
from orbitset.recipes.outside_loss import default_loss, method_named, plain_settings

MODULE = """
import torch

def plain(codes, batch, *, temperature: float = 0.5, steps: int = 3):
    return temperature * steps * codes.square().mean()

def shown(codes, batch, rectified, weight=2.0):
    error = (rectified - batch.canonical).square().mean()
    return {"loss": weight * error, "error": error}

class Classes(torch.nn.Module):
    def __init__(self, code_size, num_orbits, *, slope: float = 1.0):
        super().__init__()
        self.layer, self.slope = torch.nn.Linear(code_size, num_orbits), slope

    def forward(self, codes, batch):
        return self.slope * self.layer(codes).logsumexp(1).mean()

def built(num_classes, margin: float = 0.3):
    def loss(codes, batch):
        return margin * num_classes * codes.sum()
    return loss

def without_default(codes, batch, *, temperature):
    return codes.sum()

def fails(margin: float = 0.3):
    raise OSError("no such device")

def gives_a_number(margin: float = 0.3):
    return 3

number = 3
"""
CONTEXT = LossContext(code_size=4, num_orbits=3, num_classes=2)


@pytest.fixture
def losses(tmp_path, monkeypatch):
    """The name of the module, to be followed by that of a loss."""
    (tmp_path / "my_own_losses.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_own_losses:"
    sys.modules.pop("my_own_losses", None)


class Batch:
    canonical = torch.zeros(6, 1, 2, 2)


def value_of(objective, codes, rectified=None):
    return objective(codes, Batch(), rectified)["loss"].item()


def test_keyword_parameters_are_its_settings(losses):
    method = method_named(f"{losses}plain")
    assert (method.title, method.has_margin) == ("plain", False)
    assert to_dict(method.settings()) == {"temperature": 0.5, "steps": 3}
    settings = from_dict(method.settings, {"temperature": 2, "steps": 5}, "loss.")
    codes = torch.full((6, 4), 3.0)
    assert value_of(settings.build(CONTEXT), codes) == pytest.approx(2 * 5 * 9)
    with pytest.raises(ConfigError, match="loss.steps is 1.5; give a whole number"):
        from_dict(method.settings, {"steps": 1.5}, "loss.")
    with pytest.raises(ConfigError, match="there is no setting 'loss.temprature'"):
        from_dict(method.settings, {"temprature": 1.5}, "loss.")


def test_a_loss_of_decoded_images_says_so_by_its_parameters(losses):
    objective = method_named(f"{losses}shown").settings().build(CONTEXT)
    assert objective.uses_rectified
    assert value_of(objective, torch.zeros(6, 4), torch.full((6, 1, 2, 2), 3.0)) == 18


def test_a_class_and_a_builder_get_what_they_ask_for(losses):
    objective = method_named(f"{losses}Classes").settings(slope=2.0).build(CONTEXT)
    assert isinstance(objective, nn.Module) and objective.layer.weight.shape == (3, 4)
    assert objective.slope == 2
    built = method_named(f"{losses}built").settings().build(CONTEXT)
    assert value_of(built, torch.ones(6, 4)) == pytest.approx(0.3 * 2 * 24)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "without_default",
            "setting temperature of the loss .*without_default has no default; give it",
        ),
        ("number", "my_own_losses:number is not a function or a class, so it cannot be a loss"),
    ],
)
def test_what_cannot_be_a_loss_is_refused(losses, name, words):
    with pytest.raises(ConfigError, match=words):
        method_named(losses + name)


def test_what_cannot_be_built_is_refused(losses):
    with pytest.raises(ConfigError, match="fails cannot be built: OSError: no such device"):
        method_named(f"{losses}fails").settings().build(CONTEXT)
    with pytest.raises(ConfigError, match="gives_a_number gave int; give a module or a function"):
        method_named(f"{losses}gives_a_number").settings().build(CONTEXT)


def test_it_stands_wherever_a_method_does(losses):
    name = f"{losses}plain"
    for config in (affine_mnist(name), affine_digits(name), affine_images("x.npy", 28, 50, name)):
        assert config.method == name and to_dict(config.loss) == {"temperature": 0.5, "steps": 3}
        changed = with_settings(config, ["loss.temperature=0.25"])
        assert changed.loss.temperature == 0.25 and changed.margin is None
    assert affine_digits(f"{name}-STN").has_transformer


def test_settings_that_were_read_are_checked_when_it_is_imported(losses):
    config = with_settings(affine_digits(f"{losses}plain"), ["loss.steps=7"])
    read = read_experiment(to_dict(config))
    assert resolved(read, "config.json") == config
    values = to_dict(config)
    values["loss"]["steps"] = "many"
    with pytest.raises(ConfigError, match="loss.steps is 'many'; give a whole number"):
        resolved(read_experiment(values), "config.json")


def test_the_default_numbers_are_those_that_a_loss_has(losses):
    assert default_loss("OT", discriminate_weight=3.0).discriminate_weight == 3
    assert to_dict(default_loss("EX", discriminate_weight=3.0)) == {}
    assert default_loss(f"{losses}plain", temperature=0.1, margin=3.0).temperature == 0.1


def test_plain_settings_hold_any_values_by_name():
    kind = plain_settings({"a": 3, "b": 4}, LossSettings)
    assert to_dict(kind(a=1, b="x")) == {"a": 1, "b": "x"} and kind.shapes_codes
    assert plain_settings({"a": 5, "b": 6}, LossSettings) is kind
