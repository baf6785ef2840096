import pytest

from orbitset.errors import ConfigError
from orbitset.recipes.reproduce import study_of


def test_what_an_experiment_has_no_use_for_is_refused():
    with pytest.raises(ConfigError, match="--test-images does not apply to heads.*--small"):
        study_of("heads", test_images=100)
    with pytest.raises(ConfigError, match="--images does not apply to affine-mnist"):
        study_of("affine-mnist", images=100)
    with pytest.raises(ConfigError, match="--root"):
        study_of("multi-pie")
    with pytest.raises(ConfigError, match="did you mean heads"):
        study_of("head")
    with pytest.raises(ConfigError, match="images is 0"):
        study_of("heads", images=0)


def test_each_takes_what_it_is_asked():
    assert len(study_of("heads", is_small=True).lines) == 4
    study = study_of("affine-mnist", methods=("AE",), epochs=1.0, seeds=2, extras=False)
    assert [line.label for line in study.lines] == ["AE"]
