"""The cache: nothing is computed twice, nothing damaged is used, and it stays within its limit."""

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from orbitset.datasets import cache as module
from orbitset.datasets.cache import Key, cached_pixels, clear, entries
from orbitset.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "orbitset"


def key(name="a", kind="images"):
    return Key(kind, 1, f"{name}.csv", (name, 8))


def writing(value, calls=None, shape=(2, 1, 4, 4)):
    def write(file):
        if calls is not None:
            calls.append(value)
        file.write(np.full(shape, value, np.uint8).tobytes())
        return shape, {"value": value}

    return write


def test_pixels_are_computed_once_and_mapped():
    calls = []
    for _ in range(2):
        pixels, details = cached_pixels(key(), writing(7, calls))
        assert pixels.shape == (2, 1, 4, 4) and (pixels == 7).all() and details == {"value": 7}
    assert calls == [7]
    assert (cached_pixels(key("b"), writing(8, calls))[0] == 8).all() and calls == [7, 8]


def test_without_a_key_nothing_is_written(folder):
    assert (cached_pixels(None, writing(7))[0] == 7).all()
    assert not folder.exists()


@pytest.mark.parametrize("at", [0, 17, -1])
def test_one_flipped_bit_is_noticed_and_the_pixels_are_made_anew(folder, at, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 10)
    calls = []
    cached_pixels(key(), writing(7, calls))
    (stored,) = folder.rglob("*.u8")
    content = bytearray(stored.read_bytes())
    content[at] ^= 1
    stored.write_bytes(content)
    assert (cached_pixels(key(), writing(7, calls))[0] == 7).all()
    assert calls == [7, 7] and stored.read_bytes() == bytes([7]) * 32


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"shape": [2, 1, 4, 4], "details": {}}'])
def test_a_damaged_description_is_not_believed(folder, damage):
    cached_pixels(key(), writing(7))
    (about,) = folder.rglob("*.json")
    about.write_text(damage)
    assert (cached_pixels(key(), writing(7))[0] == 7).all()
    assert json.loads(about.read_text())["source"] == "a.csv"


def test_an_error_leaves_nothing_behind(folder):
    def fail(file):
        file.write(b"begun")
        raise DataError("no image can be read")

    with pytest.raises(DataError, match="no image"):
        cached_pixels(key(), fail)
    assert not list(folder.glob("images/*"))


def test_what_a_killed_process_was_writing_is_removed(folder, tmp_path):
    script = tmp_path / "write.py"
    script.write_text(
        "import sys, time\n"
        "from orbitset.datasets.cache import Key, cached_pixels\n"
        "def write(file):\n"
        "    file.write(bytes(99)); file.flush(); print('begun', flush=True); time.sleep(60)\n"
        "cached_pixels(Key('images', 1, 'killed', ('killed',)), write)\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"begun\n"
    cached_pixels(key(), writing(7))
    assert list(folder.rglob("*.part")), "it is still being written"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    cached_pixels(key("b"), writing(8))
    assert not list(folder.rglob("*.part"))


def test_who_comes_second_waits_and_computes_nothing():
    calls, is_writing = [], threading.Event()

    def slow(file):
        is_writing.set()
        time.sleep(0.2)
        return writing(7, calls)(file)

    first = threading.Thread(target=cached_pixels, args=(key(), slow))
    first.start()
    is_writing.wait()
    assert (cached_pixels(key(), writing(9, calls))[0] == 7).all()
    first.join()
    assert calls == [7]


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (cached_pixels(key(), writing(7))[0] == 7).all()


def test_the_entries_used_least_recently_make_room(folder, monkeypatch):
    for at, name in enumerate("abc"):
        cached_pixels(key(name), writing(at, shape=(1000, 1, 10, 10)))
        os.utime(key(name).path.with_suffix(".json"), (at, at))
        os.utime(key(name).path.with_suffix(".u8"), (at, at))
    cached_pixels(key("a"), writing(0))  # used again
    monkeypatch.setenv("ORBITSET_CACHE_GB", "0.00031")
    cached_pixels(key("d"), writing(3, shape=(1000, 1, 10, 10)))
    assert {entry.source for entry in entries()} == {"a.csv", "c.csv", "d.csv"}
    monkeypatch.setenv("ORBITSET_CACHE_GB", "0.000001")
    cached_pixels(key("e"), writing(4, shape=(1000, 1, 10, 10)))
    assert [entry.source for entry in entries()] == ["e.csv"], "the newest stays however large"


def test_the_limit_may_be_nothing_and_must_be_a_number(folder, monkeypatch):
    monkeypatch.setenv("ORBITSET_CACHE_GB", "0")
    assert (cached_pixels(key(), writing(7))[0] == 7).all()
    assert not folder.exists()
    for text in ("many", "-1", "nan"):
        monkeypatch.setenv("ORBITSET_CACHE_GB", text)
        with pytest.raises(ConfigError, match=f"ORBITSET_CACHE_GB is '{text}'; give gigabytes"):
            cached_pixels(key(), writing(7))


def test_entries_say_what_they_are_and_are_cleared_by_age(folder):
    cached_pixels(key("a"), writing(1))
    cached_pixels(key("heads", "heads"), writing(2))
    (folder / "kernels").mkdir()
    (folder / "kernels" / "x.cubin").write_bytes(b"123")
    (folder / "images" / "old.u8").write_bytes(b"1234")
    (folder / "mnist").mkdir()
    (folder / "mnist" / "train.gz").touch()
    for path in (folder / "kernels" / "x.cubin", folder / "images" / "old.u8"):
        os.utime(path, (1, 1))
    listed = {(entry.kind, entry.source): entry for entry in entries()}
    assert set(listed) == {
        ("images", "a.csv"),
        ("heads", "heads.csv"),
        ("images", None),
        ("kernels", "compiled code"),
    }
    assert listed["images", None].bytes == 4 and listed["images", "a.csv"].bytes > 32
    assert listed["images", "a.csv"].owner.startswith("orbitset ")
    today = datetime.datetime.now(datetime.UTC).isoformat()[:10]
    assert listed["images", "a.csv"].used.startswith(today)
    assert {entry.source for entry in clear(older_than_days=30)} == {None, "compiled code"}
    assert len(clear()) == 2 and entries() == [] and clear() == []
    assert (folder / "mnist" / "train.gz").exists()
    assert not [path for path in folder.rglob("*") if path.is_file() and "mnist" not in str(path)]
