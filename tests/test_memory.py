import pytest
import torch

from orbitset.memory import in_halves, is_out_of_memory

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_as_many_images_are_taken_at_once_as_fit(error):
    sizes = []

    def encode(images):
        if len(images) > 3:
            raise error
        sizes.append(len(images))
        return images * 2

    images = torch.arange(10.0)[:, None]
    assert torch.equal(in_halves(encode, images), images * 2)
    assert sizes == [3, 2, 3, 2]


def test_two_outputs_are_put_together_too():
    def encode(images):
        if len(images) > 2:
            raise MemoryError
        return images, -images

    images = torch.arange(5.0)[:, None]
    ahead, negative = in_halves(encode, images)
    assert torch.equal(ahead, images) and torch.equal(negative, -images)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_where_not_one_image_fits_the_error_stays(error):
    def encode(images):
        raise error

    with pytest.raises(type(error)) as raised:
        in_halves(encode, torch.zeros(5))
    assert is_out_of_memory(raised.value)


def test_other_errors_are_not_tried_again():
    calls = []

    def encode(images):
        calls.append(len(images))
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        in_halves(encode, torch.zeros(5))
    assert calls == [5]
