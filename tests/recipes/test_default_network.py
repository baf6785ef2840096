"""The network that a training begins with if the user names none."""

from dataclasses import replace

import pytest

from orbitset.orbits.observed import ObservedConfig
from orbitset.recipes import default_network as module
from orbitset.recipes.default_network import OFFERED, Offered, default_network

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
            (snapshot / file).write_text("{}")

    return lay


def test_without_weights_at_hand_the_command_that_fetches_some_is_said(hub):
    network, why = default_network(PHOTOGRAPHS)
    assert network is None
    assert why.endswith("pip install timm; hf download timm/tf_efficientnet_lite0.in1k")


def test_weights_in_the_cache_of_the_hub_are_used_if_their_library_is_there(hub, monkeypatch):
    last = OFFERED[-1]
    hub(last.repository, "config.json", "model.safetensors", "preprocessor_config.json")
    assert default_network(PHOTOGRAPHS)[0] == last.name == "hf:facebook/dinov2-small"
    monkeypatch.setattr(module, "OFFERED", (replace(last, library="no_such_library"),))
    assert default_network(PHOTOGRAPHS)[0] is None


def test_half_of_what_a_network_needs_is_not_enough(hub):
    offered = Offered("hf:a/b", "transformers", "a/b")
    hub("a/b", "config.json", "model.safetensors")
    assert not offered.is_at_hand  # nothing says what images it expects


@pytest.mark.parametrize(
    ("orbits", "why"),
    [
        (replace(PHOTOGRAPHS, is_colour=False), "grey images are unlike"),
        (replace(PHOTOGRAPHS, size_px=32), "images of 32 px are unlike"),
    ],
)
def test_images_unlike_photographs_are_learned_from_random_weights(orbits, why, hub):
    hub(OFFERED[-1].repository, "config.json", "model.safetensors", "preprocessor_config.json")
    network, said = default_network(orbits)
    assert network is None and said.startswith(why)
