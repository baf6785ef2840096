import errno
import os

import pytest

from orbitset.files import naming, ordinary, remove_parts, write_atomically


def test_content_is_replaced_whole_and_leaves_no_part(tmp_path):
    path = tmp_path / "folder" / "file.bin"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_parts_of_killed_writes_are_removed_and_nothing_else(tmp_path):
    (tmp_path / ".config.json.123.part").write_bytes(b"half")
    (tmp_path / "notes.part").write_bytes(b"a user's file")
    remove_parts(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.part"]


def test_an_error_that_names_no_file_gets_the_name_of_the_one_that_is_written(tmp_path):
    path = tmp_path / "codes.npy"
    with (
        pytest.raises(OSError, match="No space left on device: '.*codes.npy'") as caught,
        naming(path),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError, match="'other'"), naming(path):
        os.stat("other")


def test_files_folders_and_what_is_not_there_are_left_to_who_opens_them(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path, tmp_path / "gone"):
        assert ordinary(path) == path
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="it is no ordinary file"):
            ordinary(tmp_path / name)


def test_parts_of_named_files_are_removed_unless_their_process_runs(tmp_path):
    gone = 2**22 + 1  # more than Linux counts
    for name, process in (("a", gone), ("a", os.getpid()), ("b", gone), ("a\nb", gone)):
        (tmp_path / f".{name}.{process}.part").touch()
    remove_parts(tmp_path, ["a", "a\nb"])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f".a.{os.getpid()}.part", f".b.{gone}.part"}
