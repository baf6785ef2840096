from orbitset.files import remove_parts, write_atomically


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
