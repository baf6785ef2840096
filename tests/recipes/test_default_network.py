"""The network that a training begins with if the user names none."""

import json
import sys
from dataclasses import replace

import pytest

from orbitset.orbits.observed import ObservedConfig
from orbitset.recipes import default_network as module
from orbitset.recipes.default_network import OFFERED, default_network
from orbitset.recipes.pretrained import begins_pretrained

STATED = {
    "config.json": {"model_type": "dinov2", "image_size": 28},
    "preprocessor_config.json": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 28},
}
PHOTOGRAPHS = ObservedConfig(orbit=("thing",), size_px=96, is_colour=True)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the hub in which files can be laid."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    def lay(repository, *files):
        folder = tmp_path / f"models--{repository.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("0" * 40)
        snapshot = folder / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        for file in files:
            (snapshot / file).write_text(json.dumps(STATED.get(file, {})))

    return lay


def test_without_weights_at_hand_the_command_that_fetches_some_is_said(hub):
    network, why = default_network(PHOTOGRAPHS)
    assert network is None
    assert why.endswith("pip install timm; hf download timm/tf_efficientnet_lite0.in1k")


def test_weights_in_the_cache_of_the_hub_are_used_if_their_library_is_there(hub, monkeypatch):
    last = OFFERED[-1]
    hub(last.repository, *last.files)
    assert default_network(PHOTOGRAPHS)[0] == last.name == "hf:facebook/dinov2-small"
    monkeypatch.setattr(module, "OFFERED", (replace(last, library="no_such_library"),))
    assert default_network(PHOTOGRAPHS)[0] is None


@pytest.fixture
def timm(tmp_path, monkeypatch):
    """Writes a timm that has the network, or another text."""
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        (tmp_path / "timm.py").write_text(text)

    yield write
    sys.modules.pop("timm", None)


def test_timm_needs_nothing_but_the_weights(hub, timm):
    timm(
        "from types import SimpleNamespace\n\ndef list_models():\n    return ['tf_efficientnet_lite0']\n\n"
        "def get_pretrained_cfg(name):\n"
        "    return SimpleNamespace(input_size=(3, 224, 224), has_weights='https://weights')\n"
    )
    hub(OFFERED[0].repository, "model.safetensors")
    network, _ = default_network(PHOTOGRAPHS)
    assert network == "timm:tf_efficientnet_lite0.in1k"
    assert begins_pretrained(network, {}), "timm says where the weights are, not whether"


def test_a_library_that_cannot_be_imported_is_passed_over_in_a_sentence(hub, timm):
    timm("raise RuntimeError('operator torchvision::nms does not exist')\n")
    hub(OFFERED[0].repository, "model.safetensors")
    network, why = default_network(PHOTOGRAPHS)
    sentence = "needs timm, which cannot be imported: operator torchvision::nms does not exist"
    assert network is None and why.endswith(sentence)
    hub(OFFERED[1].repository, *OFFERED[1].files)
    network, why = default_network(PHOTOGRAPHS)
    assert network == OFFERED[1].name and why.endswith(sentence)


@pytest.mark.parametrize("missing", OFFERED[-1].files)
def test_half_of_what_a_network_needs_is_not_enough(hub, missing):
    offered = OFFERED[-1]
    hub(offered.repository, *(file for file in offered.files if file != missing))
    assert not offered.is_at_hand


@pytest.mark.parametrize(
    ("orbits", "why"),
    [
        (replace(PHOTOGRAPHS, is_colour=False), "grey images are unlike"),
        (replace(PHOTOGRAPHS, size_px=32), "images of 32 px are unlike"),
    ],
)
def test_images_unlike_photographs_are_learned_from_random_weights(orbits, why, hub):
    hub(OFFERED[-1].repository, *OFFERED[-1].files)
    network, said = default_network(orbits)
    assert network is None and said.startswith(why)
