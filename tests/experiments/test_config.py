import pytest

from orbitset.errors import ConfigError
from orbitset.experiments import EvalConfig, ExperimentConfig
from orbitset.orbits import OrbitConfig


@pytest.mark.parametrize("method", ["OJ", "OT"])
def test_comparing_members_needs_two_of_them(method):
    with pytest.raises(ConfigError, match="compares members of one orbit"):
        orbits = OrbitConfig(members_per_batch=1)
        ExperimentConfig(name="x", data="digits", method=method, orbits=orbits)


@pytest.mark.parametrize("method", ["OJ", "OT", "ST"])
def test_comparing_orbits_needs_two_of_them(method):
    with pytest.raises(ConfigError, match="a batch with one orbit has no negatives"):
        orbits = OrbitConfig(orbits_per_batch=1)
        ExperimentConfig(name="x", data="digits", method=method, orbits=orbits)


def test_an_autoencoder_needs_neither():
    orbits = OrbitConfig(orbits_per_batch=1, members_per_batch=1)
    assert not ExperimentConfig(name="x", data="digits", method="AE", orbits=orbits).uses_margin


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"test_images": 0}, {"tsne_points": 7}])
def test_evaluation_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EvalConfig(**wrong)
