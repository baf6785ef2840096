import sys
from dataclasses import asdict

import pytest

from orbitset.recipes.arrays import array_images, array_method
from orbitset.recipes.compose import compose
from orbitset.recipes.own_images import OrbitOptions
from orbitset.recipes.request import Request

OTHERWISE = {"epochs", "evaluate_at", "keep", "patience", "precision"}
"""Settings of a training that nothing evaluates, in float32"""


@pytest.fixture
def trained_network(tmp_path, monkeypatch):
    (tmp_path / "trained_network.py").write_text(
        "from torch import nn\n\nclass Net(nn.Flatten):\n    size_px, is_pretrained = 16, True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "trained_network:Net"
    sys.modules.pop("trained_network", None)


@pytest.fixture
def composed(face_manifest):
    def compose_with(network, method=None):
        orbits = OrbitOptions(orbit=["person", "light"], label="person", split="session=1,2/3/4")
        request = Request(
            source=str(face_manifest), method=method, encoder=network, observed=orbits
        )
        return compose(request).config

    return compose_with


@pytest.mark.parametrize("method", [None, "OJ", "AE"])
@pytest.mark.parametrize("is_pretrained", [False, True])
def test_settings_are_those_of_train(composed, trained_network, method, is_pretrained):
    network = trained_network if is_pretrained else "vgg"
    trained = composed(network, method)
    size = {"code_size": trained.encoder.code_size, "channels": trained.encoder.channels}
    config = array_images(
        array_method(method, can_compare=True),
        trained.observed,
        num_images=9,
        network=network,
        encoder=size,
        train={},
        loss={},
        classify_weight=0.0,
    )
    assert (config.loss, config.encoder, config.orbits) == (
        trained.loss,
        trained.encoder,
        trained.orbits,
    )
    ours, theirs = asdict(config.train), asdict(trained.train)
    assert {name for name in ours if ours[name] != theirs[name]} <= OTHERWISE
    assert config.train.epochs == (4 if is_pretrained else 20)


def test_a_margin_of_ones_own_replaces_the_default_fraction(composed):
    orbits = composed("vgg").observed
    parts = {"num_images": 9, "encoder": {}, "train": {}, "classify_weight": 0.0, "network": "vgg"}
    method = array_method("OJ", can_compare=True)
    plain = array_images(method, orbits, loss={}, **parts).loss
    own = array_images(method, orbits, loss={"margin": 3.0, "mining": "all"}, **parts).loss
    assert (plain.margin, plain.margin_fraction) == (None, 0.4)
    assert (own.margin, own.margin_fraction, own.mining, own.scale) == (
        3.0,
        None,
        "all",
        plain.scale,
    )
