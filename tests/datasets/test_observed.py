import pytest
import torch

from orbitset.datasets.observed import ObservedImages
from orbitset.errors import ConfigError, DataError


def some_images():
    images = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    columns = {"person": ["bob", "ann", "bob", "ann"], "pan": ["-90", "0", "15", "0"]}
    return ObservedImages.of(images, columns)


def test_values_are_numbered_in_their_order():
    seen = some_images()
    assert seen.values == {"person": ("ann", "bob"), "pan": ("-90", "0", "15")}
    assert seen.factors["person"].tolist() == [1, 0, 1, 0]
    assert seen.factors["pan"].tolist() == [0, 1, 2, 1]
    assert seen.factors["pan"].dtype == torch.int64


@pytest.mark.parametrize("rows", [slice(1, 3), torch.tensor([3, 0]), torch.arange(4) > 1])
def test_rows_keep_their_factors_and_the_meaning_of_numbers(rows):
    seen = some_images()
    chosen = seen[rows]
    assert torch.equal(chosen.images, seen.images[rows])
    assert torch.equal(chosen.factors["pan"], seen.factors["pan"][rows])
    assert chosen.values == seen.values


def test_images_are_chosen_by_the_values_of_a_factor():
    chosen = some_images().where("pan", ["0", "15"])
    assert chosen.images[:, 0, 0, 0].tolist() == [1, 2, 3]


def test_unknown_factors_and_values_are_named():
    with pytest.raises(ConfigError, match="'persona'.*did you mean person"):
        some_images().where("persona", ["ann"])
    with pytest.raises(ConfigError, match="person is 'anne'.*did you mean ann"):
        some_images().where("person", ["anne"])


def test_a_factor_needs_a_number_for_every_image():
    with pytest.raises(DataError, match="factor person has 3 numbers for 4 images"):
        ObservedImages(some_images().images, {"person": torch.zeros(3)}, {"person": ("ann",)})


def test_all_parts_move_to_a_device():
    moved = some_images().to("meta")
    assert {moved.images.device.type, moved.factors["pan"].device.type} == {"meta"}
