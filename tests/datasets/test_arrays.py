import re
import zipfile

import numpy as np
import pytest
import torch

from orbitset.datasets.arrays import load_array, load_parts, split
from orbitset.datasets.images import ImageSet
from orbitset.errors import DataError


def random_uint8(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def saved(tmp_path, **arrays):
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 1, 6, 5), (4, 3, 6, 5)])
def test_images_with_channels_first_or_without_are_taken_as_they_are(tmp_path, shape):
    images = random_uint8(*shape)
    loaded = load_array(saved(tmp_path, images=images))
    assert loaded.images.dtype == torch.uint8
    assert np.array_equal(loaded.images.numpy(), images.reshape(4, -1, 6, 5))
    assert loaded.labels is None


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_come_first_afterwards(tmp_path, channels):
    images = random_uint8(4, 6, 5, channels)
    loaded = load_array(saved(tmp_path, images=images)).images
    assert loaded.shape == (4, channels, 6, 5)
    assert loaded.is_contiguous()
    assert np.array_equal(loaded.numpy(), images.transpose(0, 3, 1, 2))


def test_a_npy_file_is_images_without_labels(tmp_path):
    images = random_uint8(4, 6, 5)
    np.save(tmp_path / "own.npy", images)
    loaded = load_array(tmp_path / "own.npy")
    assert np.array_equal(loaded.images[:, 0].numpy(), images)
    assert loaded.labels is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_floats_between_0_and_1_become_the_nearest_grey_level(tmp_path, dtype):
    levels = np.arange(256).reshape(4, 8, 8)
    loaded = load_array(saved(tmp_path, images=(levels / 255).astype(dtype)))
    assert np.array_equal(loaded.images[:, 0].numpy(), levels)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, ">i8"])
def test_labels_of_any_integer_type_become_int64(tmp_path, dtype):
    labels = np.array([3, 1, 3, 0], dtype=dtype)
    loaded = load_array(saved(tmp_path, images=random_uint8(4, 6, 5), labels=labels))
    assert loaded.labels.dtype == torch.int64
    assert loaded.labels.tolist() == [3, 1, 3, 0]


@pytest.mark.parametrize(
    "shape", [(6, 5), (4, 2, 6, 5), (4, 6, 5, 4), (4, 1, 6, 5, 1), (0, 6, 5), (4, 0, 5), (7,), ()]
)
def test_other_shapes_are_refused_with_the_shape_found(tmp_path, shape):
    path = saved(tmp_path, images=random_uint8(*shape))
    found = re.escape(f"images in {path} have shape {shape}; give (N, H, W)")
    with pytest.raises(DataError, match=found):
        load_array(path)


@pytest.mark.parametrize("name", ["own.npy", "own.npz"])
def test_one_colour_image_is_not_read_as_many_grey_ones(tmp_path, name):
    image = random_uint8(200, 200, 3)
    path = tmp_path / name
    np.save(path, image) if name.endswith("npy") else np.savez(path, images=image)
    with pytest.raises(
        DataError, match=r"one colour image rather than 200 grey ones; .*\(1, 200, "
    ):
        load_array(path)
    np.save(tmp_path / "one.npy", image[None])
    assert load_array(tmp_path / "one.npy").images.shape == (1, 3, 200, 200)


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, bool, np.complex64, "U1"])
def test_other_dtypes_are_refused(tmp_path, dtype):
    path = saved(tmp_path, images=np.zeros((4, 6, 5), dtype=dtype))
    with pytest.raises(DataError, match=f"have dtype {np.dtype(dtype)}; give uint8, or floats"):
        load_array(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_image_with_nan_or_infinity_is_named(tmp_path, value):
    images = np.zeros((4, 6, 5), dtype=np.float32)
    images[2, 3, 1] = images[3, 0, 0] = value
    with pytest.raises(DataError, match="image 2 in .* holds NaN or infinity"):
        load_array(saved(tmp_path, images=images))


@pytest.mark.parametrize(("value", "found"), [(1.5, "0 and 1.5"), (-0.25, "-0.25 and 0")])
def test_floats_outside_0_to_1_are_refused_with_the_range_found(tmp_path, value, found):
    images = np.zeros((4, 6, 5), dtype=np.float32)
    images[1, 2, 3] = value
    with pytest.raises(DataError, match=f"lie between {found}; give uint8, or floats"):
        load_array(saved(tmp_path, images=images))


@pytest.mark.parametrize(
    "labels", [np.arange(3), np.arange(5), np.zeros((4, 1), int), np.zeros(4), np.zeros(4, bool)]
)
def test_labels_that_are_not_one_integer_per_image_are_refused(tmp_path, labels):
    path = saved(tmp_path, images=random_uint8(4, 6, 5), labels=labels)
    with pytest.raises(DataError, match=r"labels in .*; give 4 integers, one per image"):
        load_array(path)


def test_a_file_without_images_says_what_it_holds(tmp_path):
    path = saved(tmp_path, pictures=random_uint8(4, 6, 5), classes=np.arange(4))
    with pytest.raises(DataError, match="holds classes, pictures; it needs an array named images"):
        load_array(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not an array", b"\x93NUMPY", b"PK\x03\x04cut off"],
)
def test_a_file_that_is_no_array_is_refused(tmp_path, content):
    path = tmp_path / "own.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"own.npz cannot be read as .npy or .npz"):
        load_array(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "absent.npz", tmp_path):
        with pytest.raises(DataError, match="cannot be read as .npy or .npz"):
            load_array(path)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_truncated_files_are_refused(tmp_path, keep):
    path = saved(tmp_path, images=random_uint8(4, 6, 5))
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(DataError, match="cannot be read as .npy or .npz"):
        load_array(path)


def test_a_damaged_compressed_file_is_refused(tmp_path):
    path = tmp_path / "own.npz"
    np.savez_compressed(path, images=random_uint8(40, 6, 5))
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(30)
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as .npy or .npz"):
        load_array(path)


def test_only_arrays_that_are_used_are_read(tmp_path):
    other = np.array([{}], dtype=object)  # which cannot be read
    path = saved(tmp_path, images=random_uint8(4, 6, 5), other=other)
    assert len(load_array(path)) == 4
    with pytest.raises(DataError, match="holds other; it needs an array named images"):
        load_array(saved(tmp_path, other=other))


def test_an_array_that_is_far_larger_than_its_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "own.npz"
    images = np.zeros((400, 16, 16), np.uint8)
    np.savez_compressed(path, images=images)
    monkeypatch.setenv("ORBITSET_DECODING_GB", "1e-4")
    with pytest.raises(
        DataError, match="unpacks to 102,528 bytes, more than 100,000; ORBITSET_DEC"
    ):
        load_array(path)
    assert len(load_array(saved(tmp_path, images=images))) == 400


HEADER = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 3), }"


@pytest.mark.parametrize(
    "header",
    [
        HEADER.replace("2, 3, 3", "2, 3, 3" + "0" * 30),
        HEADER.replace("2, 3, 3), }", "2, 3, 3, }"),
        HEADER.replace("|u1", "|01"),
        HEADER.replace("(2, 3, 3)", "-2"),
        HEADER.replace("|u1", "'"),
    ],
)
def test_a_header_that_is_damaged_is_refused(tmp_path, header):
    path = tmp_path / "own.npy"
    length = (len(header) + 1).to_bytes(2, "little")
    path.write_bytes(b"\x93NUMPY\1\0" + length + header.encode() + b"\n" + bytes(18))
    with pytest.raises(DataError, match="cannot be read as .npy or .npz"):
        load_array(path)


@pytest.mark.parametrize("at, value", [(6, 1), (6, 32), (8, 99)])
def test_a_zip_of_a_kind_that_cannot_be_read_is_refused(tmp_path, at, value):
    """Encrypted, patched, or compressed in an unknown way."""
    path = saved(tmp_path, images=random_uint8(4, 6, 5))
    content = bytearray(path.read_bytes())
    content[at] = value
    content[content.index(b"PK\1\2") + at + 2] = value
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as .npy or .npz"):
        load_array(path)


@pytest.mark.parametrize("name", ["own.npy", "own.npz"])
def test_pickled_objects_are_refused_and_not_run(tmp_path, name):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    objects = np.array([Trap(), Trap()], dtype=object)
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, objects, allow_pickle=True)
    else:
        np.savez(path, images=objects)
    with pytest.raises(DataError, match="cannot be read as .npy or .npz"):
        load_array(path)
    assert not (tmp_path / "sprung").exists()


def test_a_zip_of_something_else_is_refused(tmp_path):
    path = tmp_path / "own.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(DataError, match="holds readme.txt; it needs an array named images"):
        load_array(path)


def numbered_images(num):
    return ImageSet(torch.arange(num, dtype=torch.uint8).view(num, 1, 1, 1), torch.arange(num))


@pytest.mark.parametrize(("num", "sizes"), [(10, [6, 2, 2]), (101, [61, 20, 20])])
def test_split_gives_six_two_and_two_tenths_each_image_once(num, sizes):
    parts = split(ImageSet(numbered_images(num).images))
    parts = [part.images.flatten() for part in (parts.train, parts.validation, parts.test)]
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(num))


def test_split_depends_on_the_seed_alone_and_is_not_the_given_order():
    images = ImageSet(numbered_images(100).images)
    first, again, other = (split(images, seed=s).train.images.flatten() for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first.sort().values, torch.arange(60))


def test_split_gives_every_class_of_three_images_to_all_parts():
    labels = torch.arange(20).repeat_interleave(3)
    parts = split(ImageSet(torch.zeros(60, 1, 2, 2, dtype=torch.uint8), labels))
    for part in (parts.train, parts.validation, parts.test):
        assert sorted(part.labels.tolist()) == list(range(20))


def test_split_of_classes_too_small_to_test_is_refused():
    with pytest.raises(DataError, match="no class has three images"):
        split(numbered_images(20))


def test_split_of_fewer_than_ten_images_is_refused():
    with pytest.raises(DataError, match="there are 9 images; at least 10 are needed"):
        split(numbered_images(9))


@pytest.mark.parametrize("shape", [(1, 1), (1, 1000), (1000, 1), (33, 2)])
def test_images_that_are_a_point_or_a_line_are_not_trained_on(tmp_path, shape):
    path = saved(tmp_path, images=random_uint8(20, *shape))
    with pytest.raises(DataError, match=rf"have {shape[1]}x{shape[0]} px, and are trained on in a"):
        load_parts(path)
    assert len(load_array(path)) == 20
    assert len(load_parts(saved(tmp_path, images=random_uint8(20, 32, 2))).train) == 12
