"""Files of codes: whole, or not there."""

import os
import resource
import sys
from functools import partial

import numpy as np
import pytest

from orbitset.errors import ConfigError, OrbitsetError
from orbitset.models.codes import files_of, open_codes, paths_beside, read_codes, why_refused

CODES = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
NAMES = [f"bilder/größe {at}.png" for at in range(9)] + ["u\u2028x\x85.png"]
SUFFIXES = (".npy", ".parquet", ".PQ")


def _write(path, codes=CODES, names=NAMES):
    with open_codes(path, codes.shape[1]) as write:
        for start in range(0, len(codes), 3):
            write(names[start : start + 3], codes[start : start + 3])
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_written_is_read(tmp_path, suffix):
    path = _write(tmp_path / "new folder" / f"codes{suffix}")
    names, codes = read_codes(path)
    assert names == NAMES and np.array_equal(codes, CODES) and codes.dtype == np.float32
    left = {path.name, "codes.paths.txt"} if suffix == ".npy" else {path.name}
    assert set(os.listdir(path.parent)) == left


def test_others_can_read_it(tmp_path):
    import pyarrow.parquet

    loaded = np.load(_write(tmp_path / "codes.npy"), mmap_mode="r")
    assert np.array_equal(loaded, CODES) and loaded.flags.c_contiguous
    table = pyarrow.parquet.read_table(_write(tmp_path / "codes.parquet"))
    assert table.column_names == ["path", "code"]
    assert np.array_equal(np.array(table["code"].to_pylist(), np.float32), loaded)
    assert table["path"].to_pylist() == read_codes(tmp_path / "codes.npy")[0]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_after_an_error_nothing_is_left_and_the_old_file_stays(tmp_path, suffix, error):
    path = tmp_path / f"codes{suffix}"
    for before in (set(), {path.name}):
        with pytest.raises(error), open_codes(path, 4) as write:
            write(NAMES, CODES + 1)
            raise error
        assert {name for name in os.listdir(tmp_path) if "paths" not in name} == before
        _write(path)
    assert np.array_equal(read_codes(path)[1], CODES)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_error_of_the_last_moment_leaves_nothing(tmp_path, suffix, monkeypatch):
    import pyarrow.parquet

    write_header, close = np.lib.format.write_array_header_1_0, pyarrow.parquet.ParquetWriter.close

    def full(*_):
        raise OSError(28, "No space left on device")

    def full_at_the_end(file, header):
        full() if header["shape"][0] else write_header(file, header)

    def close_on_a_full_disk(writer):
        if writer.is_open:
            close(writer)
            full()

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full_at_the_end)
    monkeypatch.setattr(pyarrow.parquet.ParquetWriter, "close", close_on_a_full_disk)
    with pytest.raises(OSError, match="No space left"):
        _write(tmp_path / f"codes{suffix}")
    assert os.listdir(tmp_path) == []


def test_what_a_file_cannot_hold_is_said(tmp_path):
    npy, parquet = (partial(why_refused, tmp_path / name) for name in ("a.npy", "a.parquet"))
    assert "has a line break in its name" in npy("new\nline.png")
    assert parquet("new\nline.png") is None
    no_text = os.fsdecode(b"bad\xff.png")
    assert "has a name that is no text" in parquet(no_text)
    assert npy(no_text) is None
    _write(tmp_path / "a.npy", CODES[:1], [no_text])
    assert read_codes(tmp_path / "a.npy")[0] == [no_text]
    assert b"bad\xff.png\n" in paths_beside(tmp_path / "a.npy").read_bytes()


def test_other_endings_and_missing_packages_are_refused(tmp_path, monkeypatch):
    for name in ("codes.csv", "codes"):
        with pytest.raises(ConfigError, match=f"as .parquet or .npy, and .*{name} is neither"):
            files_of(tmp_path / name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(OrbitsetError, match="PyArrow, which is not installed .pip install pyarrow"):
        files_of(tmp_path / "codes.parquet")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["codes.npy", "codes.parquet"])
def test_a_full_disk_is_named_by_the_file_that_did_not_fit(tmp_path, name):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, hard))
    try:
        with (
            pytest.raises(OSError, match=f"File too large: '.*{name}'"),
            open_codes(tmp_path / name, 64) as write,
        ):
            write(
                [str(at) for at in range(100)],
                np.random.default_rng(0).random((100, 64), np.float32),
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path, suffix):
    for path in files_of(tmp_path / f"codes{suffix}"):
        path.with_name(f".{path.name}.{2**22 + 1}.part").touch()
    (tmp_path / f".others{suffix}.{2**22 + 1}.part").touch()
    path = _write(tmp_path / f"codes{suffix}")
    assert {x.name for x in tmp_path.iterdir()} == {
        *(file.name for file in files_of(path)),
        f".others{suffix}.{2**22 + 1}.part",
    }
