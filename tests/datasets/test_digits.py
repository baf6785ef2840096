import pytest
import torch
from sklearn.datasets import load_digits as sklearn_digits

from orbitset.datasets.digits import load_digits


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def parts(splits):
    return [splits.train, splits.validation, splits.test]


def test_there_are_997_300_and_500_digits(digits):
    assert [len(part) for part in parts(digits)] == [997, 300, 500]
    assert [len(part.labels) for part in parts(digits)] == [997, 300, 500]


def test_images_are_uint8_of_16x16_and_labels_int64(digits):
    for part in parts(digits):
        assert part.images.dtype == torch.uint8
        assert part.images.shape[1:] == (1, 16, 16)
        assert part.labels.dtype == torch.int64


def test_every_part_has_all_ten_classes(digits):
    for part in parts(digits):
        assert part.labels.unique().tolist() == list(range(10))


def test_digits_fill_the_12x12_pixels_in_the_middle(digits):
    images = digits.train.images
    assert images.sum() == images[..., 2:14, 2:14].sum()
    assert images.amax((0, 1))[[2, 13]].amax() > 100
    assert images.max() == 255


def test_loading_again_gives_the_same_digits_whatever_the_global_seed(digits):
    torch.manual_seed(1)
    for part, again in zip(parts(digits), parts(load_digits()), strict=True):
        assert torch.equal(part.images, again.images)
        assert torch.equal(part.labels, again.labels)


def test_the_parts_together_are_scikit_learns_digits_each_once(digits):
    labels = torch.cat([part.labels for part in parts(digits)])
    assert torch.equal(labels.bincount(), torch.as_tensor(sklearn_digits().target).bincount())
    images = torch.cat([part.images for part in parts(digits)]).flatten(1)
    assert len(images.unique(dim=0)) == len(images) == 1797


def test_labels_belong_to_their_images(digits):
    bunch = sklearn_digits()
    known = torch.as_tensor(bunch.images).flatten(1).float()
    middle = digits.test.images[:, :, 2:14, 2:14].float() / 255
    small = torch.nn.functional.interpolate(middle, size=8, mode="area").flatten(1) * 16
    nearest = torch.cdist(small, known).argmin(1)
    agreement = (torch.as_tensor(bunch.target)[nearest] == digits.test.labels).float().mean()
    assert agreement > 0.97
