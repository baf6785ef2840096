"""Files of codes: whole, or not there."""

import os
import sys

import numpy as np
import pytest

from orbitset.errors import ConfigError, OrbitsetError
from orbitset.models import codes as codes_module
from orbitset.models.codes import codes_format, open_codes, paths_beside, read_codes

CODES = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
NAMES = [f"bilder/größe {at}.png" for at in range(9)] + ["u\u2028x\x85.png"]
SUFFIXES = (".npy", ".parquet", ".PQ")


def _write(path, codes=CODES, names=NAMES):
    with open_codes(path, codes.shape[1]) as file:
        for start in range(0, len(codes), 3):
            file.write(names[start : start + 3], codes[start : start + 3])
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_written_is_read(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(codes_module, "_GROUP_ROWS", 4)
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


def test_many_rows_fit_into_the_header(tmp_path):
    path = _write(tmp_path / "codes.npy", CODES[:1], NAMES[:1])
    with open_codes(tmp_path / "many.npy", 10**6) as file:
        file._rows = 10**15
    header = (tmp_path / "many.npy").read_bytes()
    assert len(header) == len(path.read_bytes()) - 16
    assert header.endswith(b"\n") and b"(1000000000000000, 1000000)" in header


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_after_an_error_nothing_is_left_and_the_old_file_stays(tmp_path, suffix, error):
    path = tmp_path / f"codes{suffix}"
    for before in (set(), {path.name}):
        with pytest.raises(error), open_codes(path, 4) as file:
            file.write(NAMES, CODES + 1)
            raise error
        assert {name for name in os.listdir(tmp_path) if "paths" not in name} == before
        _write(path)
    assert np.array_equal(read_codes(path)[1], CODES)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_error_of_the_last_moment_leaves_nothing(tmp_path, suffix, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for name in ("_NpyCodes", "_ParquetCodes"):
        monkeypatch.setattr(getattr(codes_module, name), "finish", full)
    with pytest.raises(OSError, match="No space left"):
        _write(tmp_path / f"codes{suffix}")
    assert os.listdir(tmp_path) == []


def test_what_a_file_cannot_hold_is_said(tmp_path):
    npy, parquet = (codes_format(tmp_path / name).why_refused for name in ("a.npy", "a.parquet"))
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
            codes_format(tmp_path / name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(OrbitsetError, match="PyArrow, which is not installed .pip install pyarrow"):
        codes_format(tmp_path / "codes.parquet")
    assert os.listdir(tmp_path) == []
