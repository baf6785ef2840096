import json

import numpy as np
import pytest

from orbitset.errors import RunError
from orbitset.search import folder as folders
from orbitset.search.folder import locked, read_state, write_state
from orbitset.search.stored import StoredCodes

NAMES = ["a/ü.png", None, "日本\n", "\udcff.png", ""]


def _codes(num=5):
    codes = StoredCodes("flat", 3)
    codes.add(np.arange(3 * num, dtype=np.float32).reshape(num, 3))
    return codes


def _change(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


@pytest.fixture
def folder(tmp_path):
    write_state(tmp_path, "model", _codes(), NAMES)
    return tmp_path


def _files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read(folder):
    state = read_state(folder)
    assert state.names == NAMES and state.header.num_items == 4
    assert np.array_equal(state.codes.of(np.arange(5)), _codes().of(np.arange(5)))
    assert _files(folder) == ["codes.0.faiss", "index.json", "items.0.jsonl"]


def test_the_next_generation_replaces_the_one_before(folder):
    (folder / "codes.7.faiss").touch()  # what a killed writer left
    (folder / ".index.json.123.part").touch()
    (folder / "notes.txt").touch()
    assert write_state(folder, "model", _codes(1), ["one"]).generation == 8
    assert read_state(folder).names == ["one"]
    assert _files(folder) == ["codes.8.faiss", "index.json", "items.8.jsonl", "notes.txt"]


@pytest.mark.parametrize("name", ["codes.0.faiss", "items.0.jsonl"])
def test_damaged_data_is_refused(folder, name):
    whole = (folder / name).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content, words in ((whole[:-1], "bytes, index.json says"), (bytes(flipped), "checksum")):
        (folder / name).write_bytes(content)
        with pytest.raises(RunError, match=f"{name} is damaged: .*{words}"):
            read_state(folder)
    (folder / name).unlink()
    with pytest.raises(RunError, match=f"is damaged: {name} is missing"):
        read_state(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "holds an index of format 2; this version reads format 1"),
        ({"format": "another"}, "belongs to another program"),
        ({"kind": "round"}, "kind 'round'"),
        ({"model_id": None}, "of model None"),
        ({"code_size": 0}, "0 is not a count"),
        ({"generation": "../1"}, "is not a count"),
        ({"codes": 3}, "is damaged"),
        ({"num_items": 3}, "items.0.jsonl has 4 items, index.json says 3"),
        ({"code_size": 4}, "codes.0.faiss is damaged: it holds an IndexFlatL2 of 3 entries"),
        ({"kind": "hnsw"}, "codes.0.faiss is damaged: it holds an IndexFlatL2"),
    ],
)
def test_a_header_that_is_not_right_is_refused(folder, changes, words):
    _change(folder / "index.json", **changes)
    with pytest.raises(RunError, match=words):
        read_state(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b"{}"])
def test_a_header_that_is_no_header_is_refused(folder, text):
    (folder / "index.json").write_bytes(text)
    with pytest.raises(RunError, match="index.json is damaged"):
        read_state(folder)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (NAMES[:-1], "codes.0.faiss has 5 codes, items.0.jsonl has 4 names"),
        ([*NAMES[:-1], NAMES[0]], "has 3 items, index.json says 4"),
        ([*NAMES[:-1], 7], "7 is not a name"),
    ],
)
def test_items_that_do_not_fit_the_codes_are_refused(tmp_path, names, words):
    write_state(tmp_path, "model", _codes(), names)
    with pytest.raises(RunError, match=words):
        read_state(tmp_path)


def test_a_folder_without_an_index_is_told(tmp_path):
    with pytest.raises(RunError, match="there is no index at") as raised:
        read_state(tmp_path / "nowhere")
    assert raised.value.exit_code == 2


def test_a_reader_goes_on_to_the_generation_that_a_writer_has_just_made(folder, monkeypatch):
    read, is_first = folders._read_data, [True]

    def overtaken(folder, header):
        if is_first:
            is_first.clear()
            write_state(folder, "model", _codes(1), ["new"])
        return read(folder, header)

    monkeypatch.setattr(folders, "_read_data", overtaken)
    assert read_state(folder).names == ["new"]


def test_a_reader_that_is_overtaken_again_and_again_gives_up(folder, monkeypatch):
    read = folders._read_data

    def overtaken(folder, header):
        write_state(folder, "model", _codes(1), ["new"])
        return read(folder, header)

    monkeypatch.setattr(folders, "_read_data", overtaken)
    with pytest.raises(RunError, match="changes too fast"):
        read_state(folder)


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


@pytest.mark.parametrize("moment", ["codes half", "codes", "items", "header", "end"])
def test_a_writer_that_is_killed_leaves_the_old_or_the_new(folder, monkeypatch, moment):
    clear, before = folders._clear, read_state(folder).header
    monkeypatch.setattr(folders, "_clear", _killed)  # nothing runs after a kill
    match moment:
        case "codes half":
            monkeypatch.setattr(
                StoredCodes, "write", lambda self, write: (write(b"IxF2"), _killed())
            )
        case "codes":
            monkeypatch.setattr(folders.os, "fsync", _killed)
        case "items":
            monkeypatch.setattr(folders.json, "dumps", _killed)
        case "header":
            monkeypatch.setattr(folders, "write_atomically", _killed)
    with pytest.raises(Killed):
        write_state(folder, "model", _codes(1), ["new"])
    monkeypatch.undo()
    assert folders._clear is clear
    state = read_state(folder)
    if moment == "end":
        assert state.names == ["new"]
    else:
        assert state.names == NAMES and state.header == before
    write_state(folder, "model", _codes(2), ["x", "y"])
    assert read_state(folder).names == ["x", "y"] and len(_files(folder)) == 3


def test_a_write_that_fails_leaves_nothing_behind(folder, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    before = _files(folder)
    monkeypatch.setattr(folders, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        write_state(folder, "model", _codes(1), ["new"])
    assert _files(folder) == before and read_state(folder).names == NAMES
