"""Reading ahead: in order, bounded, and no further than somebody listens."""

import threading
import time
import warnings

import numpy as np
import pytest
from PIL import Image

from orbitset.datasets.named_images import find_images
from orbitset.datasets.pictures import ImageForm
from orbitset.datasets.stream import ImageStream
from orbitset.datasets.table import ImageTable


class _Numbered(ImageForm):
    """Reads no file: image 17 is the number 17; multiples of ten cannot be read."""

    read_so_far = 0
    lock = threading.Lock()

    def read(self, path, box=None):
        with self.lock:
            type(self).read_so_far += 1
        number = int(path.stem)
        time.sleep(0.0005 * (number % 3))
        if number % 10 == 0:
            return "is a multiple of ten"
        return np.full((1, 2, 2), number % 256, np.uint8)


@pytest.fixture
def numbered(tmp_path):
    _Numbered.read_so_far = 0

    def stream(num, **options):
        paths = tuple(f"{at}.png" for at in range(num))
        table = ImageTable("numbers", tmp_path, paths, {}, tuple(range(1, num + 1)))
        return ImageStream(table, _Numbered(2), **options)

    return stream


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("num", [0, 1, 10, 65, 200])
def test_order_is_kept_and_problems_are_listed_in_it(numbered, num, threads):
    stream = numbered(num, batch=16, threads=threads)
    places, sizes = [], []
    for at, images in stream:
        assert images[:, 0, 0, 0].tolist() == [place % 256 for place in at]
        places += at
        sizes.append(len(at))
    assert places == [place for place in range(num) if place % 10]
    assert set(sizes[:-1]) <= {16}
    assert [problem.row for problem in stream.problems] == [at + 1 for at in range(0, num, 10)]
    assert all(problem.reason.endswith("0.png is a multiple of ten") for problem in stream.problems)


def test_reading_is_only_so_far_ahead(numbered):
    stream, taken, most = numbered(3000, batch=16, threads=4), 0, 0
    for places, _ in stream:
        taken = places[-1] + 1
        time.sleep(0.002)
        most = max(most, _Numbered.read_so_far - taken)
    assert taken == 3000
    assert most <= (2 * 4 + 2 * 16 // 8 + 2) * 8


def test_reading_ends_when_nobody_listens(numbered):
    stream = numbered(3000, batch=16, threads=4)
    for _ in stream:
        break
    read = _Numbered.read_so_far
    assert read < 300
    time.sleep(0.05)
    assert _Numbered.read_so_far == read


def test_an_error_of_the_listener_ends_reading_and_restores_pillow(numbered):
    before, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    with pytest.raises(KeyboardInterrupt):
        for _ in numbered(3000, batch=16):
            raise KeyboardInterrupt
    assert before == Image.MAX_IMAGE_PIXELS and warnings.filters == filters
    assert _Numbered.read_so_far < 1000


def test_while_a_stream_is_suspended_pillow_guards_against_bombs(numbered):
    before, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    first, second = (iter(numbered(50, batch=8)) for _ in range(2))
    next(first), next(second)
    deadline = time.monotonic() + 10
    while before != Image.MAX_IMAGE_PIXELS and time.monotonic() < deadline:
        time.sleep(0.01)  # threads read ahead for a while
    assert before == Image.MAX_IMAGE_PIXELS is not None and warnings.filters == filters
    assert sum(len(places) for places, _ in first) == 37
    assert sum(len(places) for places, _ in second) == 37
    assert before == Image.MAX_IMAGE_PIXELS


def test_a_second_pass_lists_problems_once(numbered):
    stream = numbered(30)
    assert len(list(stream)) == len(list(stream)) == 1
    assert len(stream.problems) == 3


def test_files_are_read_as_one_by_one(photos):
    wanted = ImageForm(16, is_colour=True)
    table = find_images([photos], wanted).table
    ((places, images),) = ImageStream(table, wanted)
    assert places == list(range(9))
    expected = [wanted.read(table.root / path) for path in table.paths]
    assert np.array_equal(images, np.stack(expected))


def test_boxes_are_cut_out(photos):
    table = find_images([photos / "ant" / "1.png"], ImageForm(8)).table
    boxed = ImageTable("boxed", table.root, table.paths, {}, table.rows, ((0.0, 0.0, 8.0, 8.0),))
    ((_, images),) = ImageStream(boxed, ImageForm(8))
    with Image.open(photos / "ant" / "1.png") as opened:
        assert np.array_equal(images[0, 0], np.asarray(opened.convert("L"))[:8, :8])
