import contextlib
import gzip
import hashlib
import http.server
import os
import resource
import struct
import threading
import tracemalloc
from pathlib import Path

import pytest
import torch

from orbitset.datasets import mnist
from orbitset.datasets.mnist import data_root, is_mnist_folder, load_mnist
from orbitset.errors import DataError

NAMES = tuple(mnist.SHA256)
REFUSING = ("http://127.0.0.1:9/",)


def idx(array):
    """A uint8 array as idx: magic number, sizes, bytes."""
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.numpy().tobytes()


@pytest.fixture
def tiny(monkeypatch):
    """Contents of four small idx files, which pass for MNIST's during the test."""
    generator = torch.Generator().manual_seed(0)
    arrays = {
        NAMES[0]: torch.randint(0, 256, (5, 28, 28), dtype=torch.uint8, generator=generator),
        NAMES[1]: torch.tensor([3, 1, 4, 1, 5], dtype=torch.uint8),
        NAMES[2]: torch.randint(0, 256, (2, 28, 28), dtype=torch.uint8, generator=generator),
        NAMES[3]: torch.tensor([9, 2], dtype=torch.uint8),
    }
    accept(monkeypatch, arrays)
    return arrays


def accept(monkeypatch, arrays):
    sums = {name: hashlib.sha256(idx(array)).hexdigest() for name, array in arrays.items()}
    monkeypatch.setattr(mnist, "SHA256", sums)


def write_zipped(folder, arrays):
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return folder


@contextlib.contextmanager
def serving(answer):
    """A mirror on this machine; `answer(handler)` handles each request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            answer(self)

        def log_message(self, *args):
            pass

    asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(handler, body, *, length=None):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def giving(arrays):
    """Answers with the files, as a good mirror does."""
    files = {f"/{name}.gz": gzip.compress(idx(array)) for name, array in arrays.items()}
    return lambda handler: send(handler, files[handler.path])


def is_tiny(splits, arrays):
    return (
        torch.equal(splits.train.images[:, 0], arrays[NAMES[0]])
        and splits.train.labels.tolist() == [3, 1, 4, 1, 5]
        and torch.equal(splits.test.images[:, 0], arrays[NAMES[2]])
        and splits.test.labels.tolist() == [9, 2]
    )


def test_zipped_files_are_parsed(tmp_path, tiny):
    splits = load_mnist(write_zipped(tmp_path, tiny), download=False)
    assert is_tiny(splits, tiny)
    assert splits.train.images.dtype == torch.uint8
    assert splits.train.labels.dtype == torch.int64


def test_plain_files_are_parsed_and_may_lie_beside_zipped_ones(tmp_path, tiny):
    write_zipped(tmp_path, tiny)
    for name in NAMES[:2]:
        (tmp_path / f"{name}.gz").unlink()
        (tmp_path / name).write_bytes(idx(tiny[name]))
    assert is_tiny(load_mnist(tmp_path, download=False), tiny)


def test_images_after_the_first_50000_are_the_validation_part(tmp_path, tiny, monkeypatch):
    large = torch.zeros(50_002, 28, 28, dtype=torch.uint8)
    large[50_000], large[50_001] = 7, 8
    labels = torch.zeros(50_002, dtype=torch.uint8)
    labels[50_000:] = torch.tensor([4, 6])
    arrays = {**tiny, NAMES[0]: large, NAMES[1]: labels}
    accept(monkeypatch, arrays)
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(idx(array))
    splits = load_mnist(tmp_path, download=False)
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [50_000, 2, 2]
    assert splits.validation.images.amax((1, 2, 3)).tolist() == [7, 8]
    assert splits.validation.labels.tolist() == [4, 6]
    assert not splits.train.images.any()


def test_missing_files_without_download_say_where_to_put_them(tmp_path):
    with pytest.raises(DataError, match=f"MNIST's {NAMES[0]} is not in {tmp_path}") as info:
        load_mnist(tmp_path, download=False)
    assert f"into {tmp_path}" in info.value.hint
    assert all(f"{name}.gz" in info.value.hint for name in NAMES)
    assert "ORBITSET_DATA" in info.value.hint


def test_missing_files_offline_name_every_mirror_and_leave_nothing_behind(tmp_path):
    folder = tmp_path / "mnist"
    mirrors = (*REFUSING, "http://127.0.0.1:19/")
    with pytest.raises(DataError, match="Connection refused") as info:
        load_mnist(folder, mirrors=mirrors)
    assert all(mirror in str(info.value) for mirror in mirrors)
    assert f"into {folder}" in info.value.hint
    assert not folder.exists()


def test_one_missing_file_is_the_one_named(tmp_path, tiny):
    write_zipped(tmp_path, tiny)
    (tmp_path / f"{NAMES[3]}.gz").unlink()
    with pytest.raises(DataError, match=f"MNIST's {NAMES[3]} is not in"):
        load_mnist(tmp_path, download=False)


def test_no_mirrors_is_an_error_that_says_so(tmp_path):
    with pytest.raises(DataError, match="no mirror is known"):
        load_mnist(tmp_path, mirrors=())


@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.99])
def test_a_truncated_zipped_file_is_named(tmp_path, tiny, keep):
    path = write_zipped(tmp_path, tiny) / f"{NAMES[0]}.gz"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(DataError, match=f"{path} (cannot be unzipped|is damaged)") as info:
        load_mnist(tmp_path, mirrors=REFUSING)
    assert "delete the file" in info.value.hint


def test_a_damaged_zipped_file_is_named(tmp_path, tiny):
    path = write_zipped(tmp_path, tiny) / f"{NAMES[2]}.gz"
    content = bytearray(path.read_bytes())
    content[100:140] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} cannot be unzipped"):
        load_mnist(tmp_path, download=False)


def test_a_file_is_unzipped_only_as_far_as_the_largest_goes(tmp_path, tiny, monkeypatch):
    folder = write_zipped(tmp_path / "mnist", tiny)
    (folder / f"{NAMES[0]}.gz").write_bytes(gzip.compress(bytes(20_000_000), 1))
    monkeypatch.setattr(mnist, "_MOST_BYTES", 50_000)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="is damaged: its content has checksum"):
            load_mnist(folder)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_wrong_checksum_is_an_error_that_names_the_file(tmp_path, tiny, zipped):
    path = write_zipped(tmp_path, tiny) / (f"{NAMES[1]}.gz" if zipped else NAMES[1])
    changed = idx(tiny[NAMES[1]] + 1)
    path.write_bytes(gzip.compress(changed) if zipped else changed)
    with pytest.raises(DataError, match=f"{path} is damaged: its content has checksum") as info:
        load_mnist(tmp_path, download=False)
    assert hashlib.sha256(changed).hexdigest()[:12] in str(info.value)


def test_the_real_checksums_refuse_other_files(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(bytes(16))
    with pytest.raises(DataError, match="is damaged"):
        load_mnist(tmp_path, download=False)


def test_files_are_downloaded_once_and_found_afterwards(tmp_path, tiny):
    folder = tmp_path / "new" / "mnist"
    with serving(giving(tiny)) as (mirror, asked):
        assert is_tiny(load_mnist(folder, mirrors=[mirror]), tiny)
    assert asked == [f"/{name}.gz" for name in NAMES]
    assert sorted(p.name for p in folder.iterdir()) == sorted(f"{name}.gz" for name in NAMES)
    assert is_tiny(load_mnist(folder, mirrors=REFUSING), tiny)


def test_only_missing_files_are_downloaded(tmp_path, tiny):
    write_zipped(tmp_path, tiny)
    (tmp_path / f"{NAMES[2]}.gz").unlink()
    with serving(giving(tiny)) as (mirror, asked):
        assert is_tiny(load_mnist(tmp_path, mirrors=[mirror]), tiny)
    assert asked == [f"/{NAMES[2]}.gz"]


def not_found(handler):
    handler.send_error(404)


def garbage(handler):
    send(handler, b"<html>please log in</html>")


def wrong_content(handler):
    send(handler, gzip.compress(b"other content"))


def damaged_gzip(handler):
    body = bytearray(gzip.compress(os.urandom(400)))
    body[50:90] = bytes(40)
    send(handler, bytes(body))


def cut_gzip(handler):
    send(handler, gzip.compress(bytes(400))[:20])


def cut_connection(handler):
    send(handler, b"half", length=1000)


def no_answer(handler):
    handler.close_connection = True


def no_http(handler):
    handler.wfile.write(b"220 ftp ready\r\n")


BROKEN = [
    not_found,
    garbage,
    wrong_content,
    damaged_gzip,
    cut_gzip,
    no_answer,
    cut_connection,
    no_http,
]


@pytest.mark.parametrize(
    "broken",
    BROKEN,
)
def test_after_a_broken_mirror_the_next_is_used(tmp_path, tiny, broken):
    with serving(broken) as (first, _), serving(giving(tiny)) as (second, asked):
        splits = load_mnist(tmp_path, mirrors=[*REFUSING, first, second])
    assert is_tiny(splits, tiny)
    assert len(asked) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{name}.gz" for name in NAMES)


@pytest.mark.parametrize("broken", BROKEN)
def test_only_broken_mirrors_are_an_error_and_leave_nothing_behind(tmp_path, tiny, broken):
    with (
        serving(broken) as (mirror, _),
        pytest.raises(DataError, match=f"could not be downloaded .*{mirror}: ") as info,
    ):
        load_mnist(tmp_path, mirrors=[mirror])
    assert f"into {tmp_path}" in info.value.hint
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def files_of_at_most(num_bytes):
    """While it lasts, the system refuses to write more into any file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_download_that_cannot_be_written_leaves_nothing_behind(tmp_path, tiny):
    with (
        serving(giving(tiny)) as (mirror, _),
        files_of_at_most(1000),
        pytest.raises(DataError, match="File too large"),
    ):
        load_mnist(tmp_path, mirrors=[mirror])
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_kept_and_not_downloaded_over(tmp_path, tiny):
    path = write_zipped(tmp_path, tiny) / f"{NAMES[0]}.gz"
    path.write_bytes(b"the user's own")
    with serving(giving(tiny)) as (mirror, asked), pytest.raises(DataError, match="damaged"):
        load_mnist(tmp_path, mirrors=[mirror])
    assert asked == []
    assert path.read_bytes() == b"the user's own"


def test_a_folder_with_any_of_the_files_is_an_mnist_folder(tmp_path):
    assert not is_mnist_folder(tmp_path)
    assert not is_mnist_folder(tmp_path / "absent")
    (tmp_path / f"{NAMES[3]}.gz").touch()
    assert is_mnist_folder(tmp_path)


def test_data_lies_under_the_folder_the_environment_names(monkeypatch, tmp_path):
    monkeypatch.setenv("ORBITSET_DATA", str(tmp_path / "data"))
    assert data_root() == tmp_path / "data"
    with pytest.raises(DataError, match=f"is not in {tmp_path / 'data' / 'mnist'}"):
        load_mnist(download=False)


def test_data_lies_in_the_users_cache_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("ORBITSET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "orbitset"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "orbitset"


@pytest.fixture(scope="module")
def real():
    folder = Path(os.environ.get("ORBITSET_DATA") or "absent") / "mnist"
    if not is_mnist_folder(folder):
        pytest.skip("set ORBITSET_DATA to a folder with MNIST's files under mnist/")
    return load_mnist(folder, download=False)


def test_real_mnist_has_50000_10000_and_10000_digits_of_28x28(real):
    parts = [real.train, real.validation, real.test]
    assert [tuple(p.images.shape) for p in parts] == [
        (n, 1, 28, 28) for n in (50_000, 10_000, 10_000)
    ]
    assert [len(p.labels) for p in parts] == [50_000, 10_000, 10_000]


def test_real_mnist_has_the_known_numbers_of_each_digit(real):
    first = real.train.labels.bincount() + real.validation.labels.bincount()
    assert first.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert real.test.labels.bincount().tolist() == [
        *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ]
    assert real.train.labels[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]


def test_real_mnist_parts_lie_one_behind_the_other_without_overlap(real):
    raw = gzip.decompress((data_root() / "mnist" / f"{NAMES[0]}.gz").read_bytes())[16:]
    size = 28 * 28
    assert real.train.images[-1].numpy().tobytes() == raw[49_999 * size : 50_000 * size]
    assert real.validation.images[0].numpy().tobytes() == raw[50_000 * size : 50_001 * size]
    images = torch.cat([real.train.images[-2000:], real.validation.images]).flatten(1)
    assert len(images.unique(dim=0)) == len(images)
