import dataclasses

import pytest
import torch

from orbitset.datasets.images import ImageSet, Splits


def some_images(num=5):
    images = torch.arange(num * 4, dtype=torch.uint8).view(num, 1, 2, 2)
    return ImageSet(images, torch.arange(num) * 10)


def test_length_is_the_number_of_images():
    assert len(some_images(5)) == 5


@pytest.mark.parametrize("rows", [slice(1, 3), torch.tensor([4, 0, 0]), torch.arange(5) > 2])
def test_rows_are_chosen_from_images_and_labels_alike(rows):
    images = some_images()
    chosen = images[rows]
    assert torch.equal(chosen.images, images.images[rows])
    assert torch.equal(chosen.labels, images.labels[rows])
    assert (chosen.images[:, 0, 0, 0] * 10 == chosen.labels * 4).all()


def test_labels_stay_absent():
    unlabelled = ImageSet(torch.zeros(3, 1, 2, 2, dtype=torch.uint8))
    assert unlabelled[:2].labels is None
    assert unlabelled.to("cpu").labels is None


def test_images_move_to_a_device_with_their_labels():
    moved = some_images().to("meta")
    assert moved.images.device.type == moved.labels.device.type == "meta"
    assert (len(moved), moved.images.dtype) == (5, torch.uint8)


def test_sets_and_splits_cannot_be_changed():
    splits = Splits(some_images(), some_images(), some_images())
    with pytest.raises(dataclasses.FrozenInstanceError):
        splits.train = some_images()
    with pytest.raises(dataclasses.FrozenInstanceError):
        splits.train.labels = None
