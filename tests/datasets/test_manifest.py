import os
import sys
import tracemalloc

import pytest

from orbitset.datasets.manifest import read_manifest
from orbitset.errors import DataError

HEADER = "path,person,view\n"


@pytest.fixture
def write(tmp_path):
    """A manifest of these rows beside empty files a.png to d.png."""
    for name in "abcd":
        (tmp_path / f"{name}.png").touch()
    (tmp_path / "folder").mkdir()

    def manifest(rows, header=HEADER, name="faces.csv"):
        content = rows if isinstance(rows, bytes) else rows.encode()
        path = tmp_path / name
        path.write_bytes(header.encode() + content)
        return path

    return manifest


def problems_of(path, **options):
    table = read_manifest(path, factors=["person"], on_problem="skip", **options)
    return [str(problem) for problem in table.left_out]


def test_columns_are_factors(write):
    table = read_manifest(write("a.png,ann,left\nb.png,ann,front\n"))
    assert table.paths == ("a.png", "b.png")
    assert table.columns == {"person": ("ann", "ann"), "view": ("left", "front")}
    assert table.rows == (2, 3)
    assert table.root == write("").parent


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_separators_are_recognised(write, mark):
    rows = "a.png,ann,left\n".replace(",", mark)
    table = read_manifest(write(rows, header=HEADER.replace(",", mark)))
    assert table.columns["view"] == ("left",)


def test_spaces_byte_order_marks_and_empty_last_lines_do_no_harm(write):
    table = read_manifest(write(" a.png , ann ,left\r\n\r\n\n", header="\ufeffpath, person,view\n"))
    assert (table.paths, table.columns["person"]) == (("a.png",), ("ann",))


def test_quoted_cells_may_hold_the_separator(write):
    assert read_manifest(write('a.png,"ann, the first",left\n')).columns["person"] == (
        "ann, the first",
    )


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("a.png,ann,left\na.png,bob,left\n", "row 3: a.png is in row 2 already"),
        ("a.png,ann,left\n./a.png,bob,left\n", "row 3: a.png is in row 2 already"),
        ("a.png,ann,left\nz.png,bob,left\n", "row 3: z.png does not exist"),
        ("a.png,ann,left\n../b.png,bob,left\n", "row 3: ../b.png leads out of"),
        ("a.png,ann,left\nx/../../b.png,bob,left\n", "row 3: x/../../b.png leads out of"),
        ("a.png,ann,left\n/etc/passwd,bob,left\n", "row 3: /etc/passwd leads out of"),
        ("a.png,ann,left\nC:\\b.png,bob,left\n", "row 3: C:/b.png leads out of"),
        ("a.png,ann,left\nb.png,bob\n", "row 3: it has 2 cells, the header 3"),
        ("a.png,ann,left\n\nb.png,bob,left\n", "row 3: it has 0 cells, the header 3"),
        ("a.png,ann,left\nb.png,,left\n", "row 3: its person is empty"),
        ("a.png,ann,left\n,bob,left\n", "row 3: its path is empty"),
        ("a.png,ann,left\nfolder,bob,left\n", "row 3: folder is a folder"),
        (b"a.png,ann,left\nb.png,b\xf6b,left\n", "row 3: its person is not UTF-8"),
        (b"a.png,ann,left\nb\xf6.png,bob,left\n", "row 3: its path is not UTF-8"),
    ],
)
def test_bad_rows_are_named_and_stop_or_are_left_out(write, rows, problem):
    path = write(rows)
    (found,) = problems_of(path)
    assert found.startswith(problem)
    assert read_manifest(path, factors=["person"], on_problem="skip").paths[0] == "a.png"
    with pytest.raises(DataError, match="1 problem: row 3: ") as caught:
        read_manifest(path, factors=["person"])
    assert found in caught.value.message


def test_a_name_that_only_contains_dots_is_no_way_out(write, tmp_path):
    (tmp_path / "a..b.png").touch()
    (tmp_path / "x:y.png").touch()
    rows = "a..b.png,ann,left\nfolder/../b.png,ann,left\nx:y.png,ann,left\n"
    assert problems_of(write(rows)) == []


def test_empty_cells_of_other_columns_do_not_matter(write):
    assert problems_of(write("a.png,ann,\n")) == []


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("file,person,view\n", "no column path; its first row names file, person, view"),
        ("path,persons,view\n", "no column person.*did you mean persons for person"),
        ("path,person,person\n", "the column person twice"),
        ("path,person,\n", "column 3 has no name"),
    ],
)
def test_wrong_headers_are_refused_whatever_was_chosen(write, header, message):
    path = write("a.png,ann,left\n", header=header)
    with pytest.raises(DataError, match=message):
        read_manifest(path, factors=["person"], on_problem="skip")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows"),
        (b"path,person\n", "has no rows"),
        ("path,person\na.png,ann\n".encode("utf-16"), "not a CSV in UTF-8"),
        (b'path,person\n"a.png,ann\n', "cannot be read as CSV: row 2: "),
        (b'path,person\na.png,ann\n"b"b.png,ann\n', "cannot be read as CSV: row 3: "),
        (b"path,p\xe9rson\na.png,ann\n", "the name of column 2 is not UTF-8"),
    ],
)
def test_files_that_are_no_manifest_are_refused(tmp_path, content, message):
    path = tmp_path / "faces.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_manifest(path)


def test_a_missing_manifest_and_a_folder_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_manifest(tmp_path / "none.csv")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_manifest(tmp_path)


def test_boxes_are_read_and_bad_ones_named(write):
    header = "path,person,left,top,right,bottom\n"
    path = write("a.png,ann,1,2,30,40\nb.png,ann,5,5,5,9\nc.png,ann,x,1,2,3\n", header=header)
    table = read_manifest(path, on_problem="skip")
    assert table.boxes == ((1.0, 2.0, 30.0, 40.0),)
    assert list(table.columns) == ["person"]
    assert [problem.row for problem in table.left_out] == [3, 4]
    assert "its box (5, 5, 5, 9)" in str(table.left_out[0])


def test_paths_may_be_relative_to_another_folder(write, tmp_path):
    path = write("a.png,ann,left\n")
    moved = tmp_path / "elsewhere" / "faces.csv"
    moved.parent.mkdir()
    path.rename(moved)
    assert read_manifest(moved, root=tmp_path).paths == ("a.png",)
    with pytest.raises(DataError, match="a.png does not exist"):
        read_manifest(moved)


def test_parquet_says_the_same(write, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "faces.parquet"
    columns = {"path": ["a.png", "z.png", "b.png"], "person": [7, 8, None]}
    parquet.write_table(pyarrow.table(columns), path)
    table = read_manifest(path, factors=["person"], on_problem="skip")
    assert (table.paths, table.columns) == (("a.png",), {"person": ("7",)})
    assert [str(one) for one in table.left_out] == [
        "row 2: z.png does not exist",
        "row 3: its person is empty",
    ]


def test_parquet_may_hold_what_is_no_text_and_no_number(write, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "faces.parquet"
    write("")
    raw = pyarrow.array([b"ann", b"b\xf6b", None], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    columns = {"path": ["a.png", "b.png", "c.png"], "person": text}
    parquet.write_table(pyarrow.table(columns), path)
    found = ["row 2: its person is not UTF-8", "row 3: its person is empty"]
    assert problems_of(path) == found
    columns = {"path": ["a.png", "b.png"], "person": [1.5, float("nan")]}
    parquet.write_table(pyarrow.table(columns), path)
    assert problems_of(path) == ["row 2: its person is empty"]
    twice = pyarrow.table([["a.png"], ["ann"], ["bob"]], names=["path", "person", "person"])
    parquet.write_table(twice, path)
    with pytest.raises(DataError, match="the column person twice"):
        read_manifest(path)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_may_end_as_on_any_system(tmp_path, end):
    (tmp_path / "a.png").touch()
    text = end.join(["path;who", 'a.png;"ann, bob"', ""])
    (tmp_path / "x.csv").write_text(text, newline="")
    assert read_manifest(tmp_path / "x.csv").columns == {"who": ("ann, bob",)}


@pytest.mark.parametrize("link", ["a.png", "inside", "chain.png", "gone.png"])
def test_links_that_lead_out_of_the_folder_are_followed_only_if_asked_for(
    tmp_path, monkeypatch, link
):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        (folder / "real").mkdir(parents=True)
    (elsewhere / "a.png").touch()
    (root / "real" / "b.png").touch()
    (root / "also.png").symlink_to("real/b.png")
    (root / "twin").symlink_to("real")
    (root / "x").symlink_to(elsewhere)
    target = {"inside": elsewhere, "chain.png": "x/a.png", "gone.png": elsewhere / "gone"}
    (root / link).symlink_to(target.get(link, elsewhere / "a.png"))
    path = f"{link}/a.png" if link == "inside" else link
    (root / "x.csv").write_text(f"path\n{path}\nalso.png\ntwin/b.png\n")
    (tmp_path / "to root").symlink_to(root)
    table = read_manifest(tmp_path / "to root" / "x.csv", on_problem="skip")
    assert table.paths == ("also.png", "twin/b.png")
    reason = (
        "does not exist" if link == "gone.png" else "is behind a link that leads out of the folder"
    )
    assert reason in table.left_out[0].reason
    monkeypatch.setenv("ORBITSET_FOLLOW_LINKS", "1")
    table = read_manifest(root / "x.csv", on_problem="skip")
    assert (path in table.paths) == (link != "gone.png")


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_named_pipe_is_no_manifest(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name} cannot be read: it is no ordinary file$"):
        read_manifest(tmp_path / name)


def test_damaged_parquet_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "faces.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_manifest(path)


def _write_parquet(file, /, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), file)
    return file


def _equal_texts(text, number):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * number, pyarrow.int8()), pyarrow.array([text])
    )


def test_parquet_of_equal_texts_that_are_longer_than_memory_is_refused(tmp_path):
    """A few kilobytes that stand for 600 megabytes, of which there would be several copies."""
    path = _write_parquet(tmp_path / "x.parquet", path=_equal_texts("a" * 100_000, 6_000))
    assert path.stat().st_size < 10_000
    tracemalloc.start()
    try:
        with pytest.raises(
            DataError, match=r"takes 4,800,192,000 bytes once it is read, more than"
        ):
            read_manifest(path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_equal_texts_of_parquet_are_one_text(tmp_path):
    path = _write_parquet(tmp_path / "x.parquet", path=["a.png", "b.png"], who=_equal_texts("é", 2))
    for name in ("a.png", "b.png"):
        (tmp_path / name).touch()
    first, second = read_manifest(path).columns["who"]
    assert first == "é" and first is second


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_of_very_many_rows_or_columns_are_refused(tmp_path, monkeypatch, suffix):
    path, (wide, long) = (
        tmp_path / f"x.{suffix}",
        ({"path": ["a"], **dict.fromkeys("bcdefg", "x")}, {"path": "abc"}),
    )
    for columns, fault in (
        (wide, "7 columns, more than 6; ORBITSET_MAX_FACTORS"),
        (long, "3 rows, more than 2"),
    ):
        if suffix == "csv":
            rows = zip(*columns.values(), strict=True)
            path.write_text("\n".join(map(",".join, [columns, *rows])))
        else:
            _write_parquet(path, **{name: list(values) for name, values in columns.items()})
        monkeypatch.setenv("ORBITSET_MAX_FACTORS", "6")
        monkeypatch.setenv("ORBITSET_MAX_ROWS", "2")
        with pytest.raises(DataError, match=f"has {fault}"):
            read_manifest(path)


@pytest.mark.parametrize("values", ["date32", "time64", "timestamp"])
def test_dates_of_parquet_that_are_none_are_named_by_their_column(tmp_path, values):
    pyarrow = pytest.importorskip("pyarrow")
    column = {
        "date32": pyarrow.array([2**31 - 1], pyarrow.int32()).view(pyarrow.date32()),
        "time64": pyarrow.array([2**62], pyarrow.int64()).view(pyarrow.time64("us")),
        "timestamp": pyarrow.array([1], pyarrow.timestamp("us", tz="No/Where")),
    }[values]
    with pytest.raises(DataError, match=r"x.parquet: column when cannot be read: "):
        read_manifest(_write_parquet(tmp_path / "x.parquet", path=["a.png"], when=column))


def test_a_column_of_parquet_whose_name_is_not_utf_8_is_refused(tmp_path):
    path = _write_parquet(tmp_path / "x.parquet", path=["a.png"], person=["ann"])
    path.write_bytes(path.read_bytes().replace(b"person", b"p\xffrson"))
    with pytest.raises(DataError, match=r"x.parquet: the name of a column is not UTF-8"):
        read_manifest(path)


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "faces.parquet"
    path.touch()
    with pytest.raises(DataError, match=r"pip install pyarrow"):
        read_manifest(path)
