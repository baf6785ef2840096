import contextlib
import json
import os
import resource
import subprocess
import sys

import pytest
import torch

import orbitset
from orbitset.errors import RunError
from orbitset.run_folder import Run, describe_environment, write_atomically

CONFIG = {"name": "n", "method": "OJ", "loss": {"margin": 0.2}}


@contextlib.contextmanager
def files_of_at_most(num_bytes):
    """While it lasts, the system refuses to write more into any file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def made(path):
    run = Run(path)
    run.create(CONFIG)
    return run


def test_a_new_run_holds_its_configuration(tmp_path):
    run = Run(tmp_path / "deep" / "run")
    assert not run.exists
    run.create(CONFIG)
    assert run.exists and not run.is_finished
    assert run.config == CONFIG
    assert [p.name for p in run.path.iterdir()] == ["config.json"]


def test_an_empty_folder_may_become_a_run(tmp_path):
    assert made(tmp_path).exists


def test_paths_may_be_texts_and_name_what_lies_inside(tmp_path):
    run = Run(str(tmp_path))
    assert run / "arrays.npz" == tmp_path / "arrays.npz"
    assert run.checkpoints == tmp_path / "checkpoint"


def test_a_run_is_finished_when_nothing_is_missing(tmp_path):
    run = made(tmp_path / "run")
    names = ("metrics.jsonl", "arrays.npz", "model.safetensors", "environment.json", "results.json")
    for name in names:
        assert not run.is_finished
        (run / name).write_text("{}")
    assert run.is_finished


def test_a_file_in_the_way_is_refused_and_kept(tmp_path):
    path = tmp_path / "run"
    path.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(RunError, match=f"{path} is a file; choose another folder"):
            Run(path).create(CONFIG, overwrite=overwrite)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_things_is_refused_and_kept(tmp_path, overwrite):
    (tmp_path / "results.json").write_text("mine")
    (tmp_path / "figures").mkdir()
    with pytest.raises(RunError, match="is not empty and holds no run"):
        Run(tmp_path).create(CONFIG, overwrite=overwrite)
    assert (tmp_path / "results.json").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figures", "results.json"]


def test_an_existing_run_is_refused_and_kept(tmp_path):
    run = made(tmp_path / "run")
    run.append("metrics.jsonl", {"step": 1})
    with pytest.raises(RunError, match="already holds a run") as info:
        Run(run.path).create({"name": "other"})
    assert all(flag in info.value.hint for flag in ("--resume", "--overwrite", "--out"))
    assert run.config == CONFIG
    assert run.records() == [{"step": 1}]


def test_a_run_that_failed_before_its_first_record_is_replaced(tmp_path):
    run = made(tmp_path / "run")
    run.rewind("metrics.jsonl", -1)
    run.note_environment(device="cpu", seed=0)
    Run(run.path).create({**CONFIG, "name": "other"})
    assert run.config["name"] == "other"
    with pytest.raises(RunError, match="holds a run; choose another folder"):
        run.check_free(kind="demo")


def test_overwriting_removes_what_the_run_wrote_and_keeps_what_it_did_not(tmp_path):
    run = made(tmp_path / "run")
    for name in ("metrics.jsonl", "results.json", "model.safetensors", "notes.txt"):
        (run / name).write_text("old")
    for name in ("checkpoint", "figures"):
        (run / name).mkdir()
    (run / "checkpoint" / "latest.safetensors").write_text("old")
    run.write_figures({"purity.png": b"old"})  # of a user's own measure
    run.create({"name": "new", "method": "OJ"}, overwrite=True)
    assert sorted(p.name for p in run.path.iterdir()) == ["config.json", "notes.txt"]
    assert run.config == {"name": "new", "method": "OJ"}


def test_overwriting_does_not_follow_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("mine")
    run = made(tmp_path / "run")
    (run / "checkpoint").symlink_to(tmp_path / "elsewhere")
    run.create(CONFIG, overwrite=True)
    assert (tmp_path / "elsewhere" / "kept").read_text() == "mine"


def test_nothing_is_written_or_removed_through_links_and_names_of_a_stranger(tmp_path):
    run, mine = made(tmp_path / "run"), tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("mine\n")
    for name in ("metrics.jsonl", ".lock"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(mine / "notes")
    with pytest.raises(OSError, match="symbolic links"):
        run.append("metrics.jsonl", {"step": 1})
    with pytest.raises(OSError, match="symbolic links"), run.locked():
        pass
    (run / "figures").symlink_to(mine)
    with pytest.raises(RunError, match="figures is a link; remove it"):
        run.write_figures({"purity.png": b"x"})
    (run / "figures").unlink()
    (run / "figures").mkdir()
    (run / "figures" / ".written").write_text("..\n../../mine/notes\n")
    run.clear()
    assert {path.name: path.read_text() for path in mine.iterdir()} == {"notes": "mine\n"}


def test_requiring_a_run_that_is_not_there_says_how_to_make_one(tmp_path):
    path = tmp_path / "none"
    with pytest.raises(RunError, match=f"there is no run folder at {path}") as info:
        Run(path).require()
    assert info.value.hint == f"start one with: orbitset train affine-digits --out {path}"
    run = made(tmp_path / "run")
    assert run.require() is run


def test_reading_what_is_not_there_says_the_run_is_not_finished(tmp_path):
    with pytest.raises(RunError, match="has no results.json: the run is not finished") as info:
        made(tmp_path / "run").read_json("results.json")
    assert "--resume" in info.value.hint


@pytest.mark.parametrize("content", [b"", b'{"rows": [', b"\xff\xfe\x00"])
def test_reading_a_damaged_file_names_it(tmp_path, content):
    run = made(tmp_path / "run")
    (run / "results.json").write_bytes(content)
    with pytest.raises(RunError, match=r"results.json is damaged"):
        run.read_json("results.json")


def test_json_is_written_and_read_back(tmp_path):
    run = made(tmp_path / "run")
    content = {"mean": 1 / 3, "text": "é → x", "none": None, "list": [1, 2]}
    run.write_json("results.json", content)
    assert run.read_json("results.json") == content
    assert (run / "results.json").read_text().endswith("}\n")


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "results.json"
    write_atomically(path, b"old" * 100)
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        write_atomically(path, bytes(5000))
    assert path.read_bytes() == b"old" * 100
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_rename_leaves_nothing_else(tmp_path):
    path = tmp_path / "results.json"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_replaces_the_content_whole_and_makes_the_folder(tmp_path):
    path = tmp_path / "checkpoint" / "latest"
    write_atomically(path, b"a longer content")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_that_has_the_old_file_open_keeps_the_old_content(tmp_path):
    path = tmp_path / "results.json"
    write_atomically(path, b"old")
    with path.open("rb") as reader:
        write_atomically(path, b"new content")
        assert reader.read() == b"old"


def test_what_cannot_be_written_as_json_leaves_the_old_content(tmp_path):
    run = made(tmp_path / "run")
    with pytest.raises(TypeError):
        run.write_json("config.json", {"bad": object()})
    assert run.config == CONFIG


def test_records_are_read_back_in_order(tmp_path):
    run = made(tmp_path / "run")
    assert run.records() == []
    for step in range(3):
        run.append("metrics.jsonl", {"step": step, "loss": 1 / (step + 1)})
        run.append("timing.jsonl", {"step": step})
    assert run.records() == [{"step": s, "loss": 1 / (s + 1)} for s in range(3)]
    assert len(run.records("timing.jsonl")) == 3


@pytest.mark.parametrize("rest", ['{"step": 2', '{"step": 2}', "{", ""])
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path, rest):
    run = made(tmp_path / "run")
    run.append("metrics.jsonl", {"step": 1})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(rest)
    assert run.records() == [{"step": 1}]


def test_rewinding_drops_later_lines_and_a_cut_off_one(tmp_path):
    run = made(tmp_path / "run")
    for step in (0, 10, 20, 30):
        run.append("metrics.jsonl", {"step": step, "loss": step / 7})
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')
    run.rewind("metrics.jsonl", 20)
    run.append("metrics.jsonl", {"step": 25})
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 10, 20, 25]
    assert run.records()[2] == {"step": 20, "loss": 20 / 7}


def test_rewinding_leaves_earlier_lines_byte_for_byte(tmp_path):
    run = made(tmp_path / "run")
    for step in range(4):
        run.append("metrics.jsonl", {"step": step, "loss": 0.1 * step, "none": None})
    before = (run / "metrics.jsonl").read_bytes()
    run.rewind("metrics.jsonl", 3)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_rewinding_without_a_file_is_harmless(tmp_path):
    run = made(tmp_path / "run")
    run.rewind("metrics.jsonl", 5)
    assert run.records() == []


def test_the_environment_says_what_ran(monkeypatch):
    monkeypatch.setenv("ORBITSET_COMMIT", "abc123")
    monkeypatch.setattr("sys.argv", ["/bin/orbitset", "train", "my data"])
    described = describe_environment(device="cpu", seed=7)
    assert described["command"] == "orbitset train 'my data'"
    assert (described["commit"], described["seed"]) == ("abc123", 7)
    monkeypatch.setattr("sys.argv", ["/their/script.py", "9"])
    assert describe_environment(device="cpu", seed=7)["command"] == "script.py 9"
    assert described["versions"]["orbitset"] == orbitset.__version__
    assert described["versions"]["torch"] == torch.__version__
    assert "cores" in described["device"]
    assert json.loads(json.dumps(described)) == described


def test_the_commit_is_unknown_where_git_is_absent(monkeypatch, tmp_path):
    monkeypatch.delenv("ORBITSET_COMMIT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_environment(device="cpu", seed=0)["commit"] is None


@pytest.mark.parametrize(
    ("config", "kind", "command"),
    [
        ({"method": "OJ"}, "run", "orbitset train --resume"),
        ({"runs": ["OJ"]}, "demo", "orbitset demo --resume"),
        ({"runs": ["OJ/seed-0"], "lines": []}, "study", "orbitset reproduce x --resume"),
        ({"runs": ["trials/OJ"], "trials": 3}, "search", "orbitset tune x --resume"),
    ],
)
def test_a_folder_knows_what_made_it(tmp_path, config, kind, command):
    run = Run(tmp_path / "run")
    run.create({"name": "x", **config})
    assert run.kind == kind and run.resume_command.startswith(command)
    if kind == "search":
        with pytest.raises(RunError, match="search for settings, which cannot be loaded"):
            run.refuse_search("loaded")
    else:
        run.refuse_search("loaded")


def test_the_advice_to_go_on_trusts_the_outside_code_that_the_run_names(tmp_path):
    run = Run(tmp_path / "run")
    names = {"method": "mine:loss-STN", "measures": ["mine:purity", "other.mod:far"]}
    run.create({"name": "x:y", **names, "encoder": {"backbone": "timm:resnet18"}})
    assert run.resume_command.endswith("--trust mine,other.mod")


def test_files_of_a_run_that_are_no_files_are_not_waited_for(tmp_path):
    run = made(tmp_path / "run")
    os.mkfifo(run / "results.json")
    with pytest.raises(OSError, match="it is no ordinary file"):
        run.read_json("results.json")
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")
    assert not run.exists


def test_a_damaged_configuration_is_said_to_be_that(tmp_path):
    run = Run(tmp_path / "run")
    with pytest.raises(RunError, match="there is no run folder") as missing:
        run.require()
    assert "orbitset train" in missing.value.hint and missing.value.exit_code == 2
    run.path.mkdir()
    with pytest.raises(RunError, match="there is no run folder") as empty:
        run.require()
    assert empty.value.hint is None
    for text in ("{", "[]", "{}"):
        (run / "config.json").write_text(text)
        with pytest.raises(
            RunError, match="config.json is damaged, or belongs to another"
        ) as caught:
            run.require()
        assert caught.value.exit_code == 1


def test_the_package_works_where_fcntl_does_not_exist():
    """As on Windows."""
    script = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import orbitset, pathlib, importlib\n"
        "from orbitset import OrbitEncoder\n"
        "root = pathlib.Path(orbitset.__file__).parent\n"
        "for name in ('run_folder', 'search.folder', 'datasets.cache', 'files'):\n"
        "    importlib.import_module(f'orbitset.{name}')\n"
    )
    # filelock itself looks for fcntl, and does without
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
