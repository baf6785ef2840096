import json
import os
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from orbitset import files
from orbitset.errors import RunError
from orbitset.search.folder import check_free, locked, read_header, read_state, write_state
from orbitset.search.stored import StoredCodes

NAMES = ["a/ü.png", None, "日本\n", "\udcff.png", ""]


def _codes(num=5):
    codes = StoredCodes("flat", 3)
    codes.add(np.arange(3 * num, dtype=np.float32).reshape(num, 3))
    return codes


def _rewrite(path, **entries):
    """The file of an index with other content, and right checksums."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content |= {name.replace("_", "."): text for name, text in entries.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)


@pytest.fixture
def folder(tmp_path):
    write_state(tmp_path, "model", _codes(), NAMES)
    return tmp_path


def _files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read(folder):
    state = read_state(folder)
    assert state.names == NAMES and state.header == read_header(folder)
    assert (state.header.model_id, state.header.code_size, state.header.kind) == (
        "model",
        3,
        "flat",
    )
    assert np.array_equal(state.codes.of(np.arange(5)), _codes().of(np.arange(5)))
    assert _files(folder) == ["index.zip"]


def test_every_change_has_a_revision_of_its_own(folder):
    before = read_header(folder)
    after = write_state(folder, "model", _codes(), NAMES)
    assert before != after == read_header(folder)


def test_what_a_killed_writer_left_is_removed_and_nothing_else(folder):
    for name in (".index.zip.123.part", "notes.txt"):
        (folder / name).touch()
    write_state(folder, "model", _codes(1), ["one"])
    assert read_state(folder).names == ["one"] and _files(folder) == ["index.zip", "notes.txt"]


def test_a_flipped_bit_anywhere_changes_nothing_or_is_refused(folder):
    whole = (folder / "index.zip").read_bytes()
    refused = 0
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        (folder / "index.zip").write_bytes(bytes(flipped))
        try:
            state = read_state(folder)
        except RunError as error:
            assert "index.zip is damaged: " in str(error)
            refused += 1
        else:  # a date, a flag, an unused field
            assert state.names == NAMES
            assert np.array_equal(state.codes.of(np.arange(5)), _codes().of(np.arange(5)))
    assert refused > len(whole) / 2


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_file_that_is_cut_off_is_refused(folder, length):
    whole = (folder / "index.zip").read_bytes()
    (folder / "index.zip").write_bytes(whole[:length])
    with pytest.raises(RunError, match="index.zip is damaged"):
        read_state(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 3}, "holds an index of format 3; this version reads format 2"),
        ({"format": "another"}, "belongs to another program"),
        ({"code_size": 4}, "is damaged: it holds an IndexFlatL2 of 3 entries"),
        (
            {"kind": "hnsw"},
            "is damaged: its codes begin with b'IxF2', as those of no hnsw index do",
        ),
        ({"colour": "red"}, "is damaged: .*colour"),
        ({"code_size": 10**40}, r"is damaged: its code size or the rows .* are \[1000"),
        ({"code_size": "3"}, "is damaged: its code size"),
        ({"trained_on": -1}, "is damaged: its code size or the rows that its lists were made for"),
        ({"kind": "tree"}, "is damaged: its kind is 'tree'; choose one of flat, ivf, hnsw"),
    ],
)
def test_a_header_that_is_not_right_is_refused(folder, changes, words):
    with zipfile.ZipFile(folder / "index.zip") as archive:
        content = json.loads(archive.read("index.json"))
    _rewrite(folder / "index.zip", index_json=json.dumps({**content, **changes}))
    with pytest.raises(RunError, match=words):
        read_state(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b"{}"])
def test_a_header_that_is_no_header_is_refused(folder, text):
    _rewrite(folder / "index.zip", index_json=text)
    with pytest.raises(RunError, match="index.zip is damaged"):
        read_state(folder)


def test_an_index_that_is_compressed_is_refused(folder):
    """A megabyte of it may be a gigabyte."""
    with zipfile.ZipFile(folder / "index.zip", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.json", "0" * 1000)
    for read in (read_header, read_state):
        with pytest.raises(RunError, match="index.zip is damaged: more.json is compressed"):
            read(folder)


def test_a_named_pipe_is_no_index(tmp_path):
    os.mkfifo(tmp_path / "index.zip")
    with pytest.raises(RunError, match="index.zip is damaged: .*it is no ordinary file"):
        read_header(tmp_path)


@pytest.mark.parametrize("names", ['{"a": 1}', "5", '[1, "a", "b", "c", "d"]', "[" * 100_000])
def test_names_that_are_none_are_refused(folder, names):
    _rewrite(folder / "index.zip", items_json=names)
    with pytest.raises(
        RunError, match="index.zip is damaged: it(ems.json is no list|s| is nested)"
    ):
        read_state(folder)


def test_names_that_do_not_fit_the_codes_are_refused(tmp_path):
    write_state(tmp_path, "model", _codes(), NAMES[:-1])
    with pytest.raises(RunError, match="it has 5 codes and 4 names"):
        read_state(tmp_path)


def test_a_folder_without_an_index_is_told(tmp_path):
    with pytest.raises(RunError, match="there is no index at") as raised:
        read_state(tmp_path / "nowhere")
    assert raised.value.exit_code == 2


def test_an_index_of_the_first_format_is_refused_with_what_to_do(tmp_path):
    for name in ("codes.0.faiss", "items.0.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "index.json").write_text('{"format": "orbitset index", "version": 1}')
    for read in (read_header, read_state):
        with pytest.raises(RunError, match="format 1.*anew: orbitset index add MODEL"):
            read(tmp_path)
    with pytest.raises(RunError, match="already holds an index"):
        check_free(tmp_path, overwrite=False)
    check_free(tmp_path, overwrite=True)
    write_state(tmp_path, "model", _codes(), NAMES)
    assert read_state(tmp_path).names == NAMES and _files(tmp_path) == ["index.zip"]


def test_a_reader_keeps_what_it_opened_when_a_writer_overtakes_it(folder, monkeypatch):
    read = StoredCodes.read

    def overtaken(*args):
        write_state(folder, "model", _codes(1), ["new"])
        return read(*args)

    monkeypatch.setattr(StoredCodes, "read", overtaken)
    assert read_state(folder).names == NAMES
    monkeypatch.undo()
    assert read_state(folder).names == ["new"]


def test_two_writers_are_refused(folder):
    with (
        locked(folder),
        pytest.raises(RunError, match="another process is writing the index"),
        locked(folder),
    ):
        pass
    with locked(folder):
        pass


class Killed(BaseException):
    pass


def _killed(*_args, **_kwargs):
    raise Killed


@pytest.mark.parametrize("moment", ["codes half", "codes", "rename", "end"])
def test_a_writer_that_stops_leaves_the_old_or_the_new(folder, monkeypatch, moment):
    before = read_state(folder).header
    match moment:
        case "codes half":
            monkeypatch.setattr(StoredCodes, "write", lambda self, write: _killed(write(b"IxF2")))
        case "codes":
            monkeypatch.setattr(files.os, "fsync", _killed)
        case "rename":
            monkeypatch.setattr(files.Path, "replace", _killed)
        case "end":
            monkeypatch.setattr(files.Path, "iterdir", _killed)
    with pytest.raises(Killed):
        write_state(folder, "model", _codes(1), ["new"])
    monkeypatch.undo()
    state = read_state(folder)
    if moment == "end":
        assert state.names == ["new"]
    else:
        assert state.names == NAMES and state.header == before
    write_state(folder, "model", _codes(2), ["x", "y"])
    assert read_state(folder).names == ["x", "y"] and _files(folder) == ["index.zip"]


WRITER = """
import sys, time
from orbitset.search import Index
index = Index.open(sys.argv[1])
print("ready", flush=True)
for number in range(10**6):
    index.add([str(number)], [[number, 0, 0]])
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_a_whole_index(folder):
    """At two moments while it adds one item after the other."""
    for number in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.05 + 0.02 * number)
        os.kill(writer.pid, signal.SIGKILL)
        told = [int(line) for line in writer.communicate()[0].split()]
        names = read_state(folder).names
        assert {str(item) for item in told} <= set(names)
        with locked(folder):  # the lock went with the process
            write_state(folder, "model", _codes(), NAMES)
        assert _files(folder) == [".lock", "index.zip"]


def test_a_write_that_fails_leaves_nothing_behind(folder, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_state(folder, "model", _codes(1), ["new"])
    assert _files(folder) == ["index.zip"] and read_state(folder).names == NAMES
