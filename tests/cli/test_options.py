"""Code that a file names runs only if it is trusted, through every command that reads such files."""

import inspect
import json
import os
import shutil
import sys

import pytest

import orbitset
from orbitset.cli.options import check_length, fail, method_or_loss, with_orbit_options
from orbitset.config import to_dict, with_settings
from orbitset.errors import ConfigError, RunError
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.own_images import OrbitOptions
from orbitset.recipes.study import Line, Study
from orbitset.run_folder import Run
from orbitset.runs.demo import NOTE, demo_configs
from orbitset.runs.train import train

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "orbits.canvas_px=16",
    "train.epochs=0.002",
    "train.evaluations=1",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.tsne_points=0",
    "evaluation.splits=2",
]
CODE = """
import pathlib
from torch import nn
from orbitset.protocols import OneShot

pathlib.Path({marker!r}).touch()

class Net(nn.Sequential):
    def __init__(self, in_channels):
        super().__init__(nn.Conv2d(in_channels, 6, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

class Judging(OneShot):
    pass

def loss(codes, batch):
    return codes.square().mean()

def measure(codes, labels):
    return 0.5
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("trained") / "run")
    train(with_settings(affine_digits("OJ"), SMALL), run)
    return run.path


@pytest.fixture
def folder(tmp_path, monkeypatch, trained):
    """The current folder, with `theirs`, a stranger's run that came with code, and code beside it."""
    shutil.copytree(trained, tmp_path / "theirs")
    code = CODE.format(marker=str(tmp_path / "has-run"))
    (tmp_path / "theirs" / "sub").mkdir()
    for name in ("theirs/evil.py", "theirs/sub/__init__.py", "theirs/sub/evil.py", "beside.py"):
        (tmp_path / name).write_text(code)
    (tmp_path / "linked.py").symlink_to(tmp_path / "theirs" / "evil.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("theirs", "evil", "beside", "linked", "sub"):
            del sys.modules[name]


def _change(path, **values):
    content = json.loads(path.read_text())
    for name, value in values.items():
        *groups, last = name.split("__")
        place = content
        for group in groups:
            place = place[group]
        place[last] = value
    path.write_text(json.dumps(content))


def _evil_run(folder, kind, name):
    """The stranger's run, whose files name code."""
    path = folder / "theirs" / "config.json"
    match kind:
        case "loss":
            _change(path, method=name, loss={})
        case "protocol":
            _change(path, protocol=name)
        case "measure":
            _change(path, measures=[name])
        case "source":
            _change(path, data=name)
        case "encoder":
            _change(path, encoder__backbone=name)
            _change(folder / "theirs" / "model.json", network__encoder__backbone=name)
        case "model":
            _change(folder / "theirs" / "model.json", network__encoder__backbone=name)


def _evil_configs(name):
    return [
        {**to_dict(config), "method": name, "loss": {}} for config in demo_configs(epochs=0.001)[:1]
    ]


def _evil_demo(folder, name):
    path = folder / "theirs" / "config.json"
    configs = _evil_configs(name)
    path.write_text(json.dumps({"name": "demo", "note": NOTE, "runs": [name], "configs": configs}))


def _evil_study(folder, name):
    line = Line(label="OJ", config=with_settings(affine_digits("OJ"), SMALL))
    described = Study(name="affine-mnist", lines=(line,), seeds=(0,)).describe()
    described["lines"][0]["config"] |= {"method": name, "loss": {}}
    (folder / "theirs" / "config.json").write_text(json.dumps(described))


def _evil_search(folder, name):
    pytest.importorskip("optuna")
    base = {**to_dict(with_settings(affine_digits("OJ"), SMALL)), "method": name, "loss": {}}
    content = {"name": "affine-digits", "runs": [f"trials/{name}"], "methods": [name], "trials": 1}
    content |= {"images": 100, "seeds": 1, "seed": 0, "fixed": [], "space": {name: []}}
    path = folder / "theirs" / "config.json"
    path.write_text(json.dumps({**content, "bases": {name: base}}))


EMBED = ["embed", "theirs", "theirs/figures", "-o", "codes.npy"]
RESUME = ["train", "--resume", "--out", "theirs"]
WAYS = {
    "a package of the model's folder, embed": ("model", "theirs.sub.evil:Net", EMBED),
    "a file of the model's folder, export": ("model", "theirs.evil:Net", ["export", "theirs", "-o", "out"]),
    "a file beside the model, verify": ("model", "beside:Net", ["verify", "theirs", "a.png", "b.png"]),
    "a link to a file of the model, index": ("model", "linked:Net", ["index", "add", "theirs", "i", "."]),
    "the standard library, embed": ("model", "os:system", EMBED),
    "a relative name, embed": ("model", ".theirs.evil:Net", EMBED),
    "two colons, embed": ("model", "theirs.evil:Net:Net", EMBED),
    "a network, train --init": ("model", "theirs.evil:Net", ["train", "affine-digits", "--init", "theirs"]),
    "a network, evaluate": ("encoder", "theirs.evil:Net", ["evaluate", "theirs"]),
    "a loss, evaluate": ("loss", "theirs.evil:loss", ["evaluate", "theirs"]),
    "a protocol, evaluate": ("protocol", "theirs.sub.evil:Judging", ["evaluate", "theirs"]),
    "a measure, evaluate": ("measure", "theirs.evil:measure", ["evaluate", "theirs"]),
    "a source, evaluate": ("source", "theirs.evil:source", ["evaluate", "theirs"]),
    "a loss, train --resume": ("loss", "linked:loss", RESUME),
    "a loss with a transformer, train --resume": ("loss", "linked:loss-STN", RESUME),
    "a loss of the standard library, train --resume": ("loss", "os:system", RESUME),
    "a measure, train --resume": ("measure", "beside:measure", RESUME),
    "a source, train --resume": ("source", "beside:source", RESUME),
    "a loss, train --config": ("loss", "theirs.evil:loss", ["train", "--config", "theirs/config.json"]),
    "a network, train --config": ("encoder", "beside:Net", ["train", "--config", "theirs/config.json"]),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_code_that_a_file_names_is_not_imported(orbitset, fails, folder, way):
    kind, name, command = WAYS[way]
    _evil_run(folder, kind, name)
    sys_path, modules = list(sys.path), set(sys.modules)
    done = orbitset(*command)
    assert not (folder / "has-run").exists()
    assert sys.path == sys_path
    assert not {name.partition(".")[0] for name in set(sys.modules) - modules} & {
        "theirs", "evil", "beside", "linked"
    }  # fmt: skip
    fails(done, done.returncode)
    assert done.returncode in (1, 2)
    if not name.startswith(".") and name.count(":") == 1:
        what = "encoder" if kind == "model" else kind
        assert (
            f"names the {what} {name.removesuffix('-STN')}; code that a file names" in done.stderr
        )
        module = name.partition(":")[0]
        typed = f"orbitset {' '.join(command)}"
        assert f"hint: if you trust that code: {typed} --trust {module}\n" in done.stderr


@pytest.mark.parametrize("jobs", [(), ("--jobs", "2")])
def test_a_study_a_search_and_a_demo_are_refused_alike(orbitset, folder, jobs):
    name = "theirs.evil:loss"
    commands = {
        _evil_study: ["reproduce", "affine-mnist"],
        _evil_search: ["tune", "affine-digits"],
        _evil_demo: ["demo"],
    }
    for change, command in commands.items():
        if jobs and command == ["demo"]:
            continue
        change(folder, name)
        done = orbitset(*command, *jobs, "--resume", "--out", "theirs")
        assert done.returncode == 2 and f"the loss {name}; code" in done.stderr
        assert "--out theirs --trust theirs.evil" in done.stderr
        assert not (folder / "has-run").exists()


def test_report_and_compare_run_no_code_of_others(orbitset, folder, trained):
    for kind in ("loss", "protocol", "measure", "encoder"):
        _evil_run(folder, kind, "theirs.evil:code")
    orbitset("report", "theirs")
    orbitset("compare", "theirs", trained)
    assert not (folder / "has-run").exists()


def test_python_refuses_and_trusts_alike(folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["notebook.py"])
    _evil_run(folder, "model", "beside:Net")
    with pytest.raises(ConfigError, match=r'orbitset\.load\(…, trust="beside"\)'):
        orbitset.load(folder / "theirs")
    assert not (folder / "has-run").exists()
    with pytest.raises(RunError, match="another network"):
        orbitset.load(folder / "theirs", trust="beside")
    assert (folder / "has-run").exists()


def test_trusted_code_runs(orbitset, folder):
    """A run of one's own, whose loss and measure lie in a module, is resumed, evaluated and used."""
    settings = [part for setting in SMALL for part in ("--set", setting)]
    own = ["--loss", "beside:loss", "--measure", "beside:measure", "--encoder", "beside:Net"]
    settings += ["--set", "orbits.members_per_batch=2", "--protocol", "beside:Judging"]
    done = orbitset("train", "affine-digits", *own, *settings, "--out", "mine", "--quiet")
    assert done.returncode == 0, done.stderr
    os.environ["ORBITSET_TRUST"] = ""  # as in another process
    resume = ["train", "--resume", "--out", "mine", "--quiet"]
    refused = orbitset(*resume)
    assert "the measure beside:measure, the loss beside:loss" in refused.stderr
    assert f"orbitset {' '.join(resume)} --trust beside" in refused.stderr
    for named_again in (["--loss", "beside:loss"], ["--set", "encoder.backbone=beside:Net"]):
        assert orbitset(*resume, *named_again).returncode == 0
        os.environ["ORBITSET_TRUST"] = ""
    assert orbitset("evaluate", "mine", "--trust", "some.package,beside").returncode == 0
    os.environ["ORBITSET_TRUST"] = ""
    use = ["embed", "mine", "mine/figures", "-o", "c.npy"]
    assert orbitset(*use).returncode == 2
    assert orbitset(*use, ORBITSET_TRUST="some.package,beside").returncode == 0


def test_processes_that_train_inherit_the_trust(orbitset, folder):
    _evil_study(folder, "beside:loss")
    command = ["reproduce", "affine-mnist", "--resume", "--out", "theirs", "--jobs", "2", "--quiet"]
    done = orbitset(*command, "--trust", "beside")
    assert (folder / "has-run").exists(), done.stderr
    assert Run(folder / "theirs/OJ/seed-0").has_results, done.stderr


def test_a_method_and_a_loss_may_name_the_same():
    assert method_or_loss("my_losses:info_nce", "my_losses:info_nce") == "my_losses:info_nce"
    assert method_or_loss(None, "OT") == method_or_loss("OT", None) == "OT"
    assert method_or_loss(None, None) is None
    with pytest.raises(ConfigError, match="--method OJ and --loss my:loss contradict each other"):
        method_or_loss("OJ", "my:loss")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0, 0.0])
def test_a_length_is_a_finite_number_above_zero(value):
    words = f"is {value:g}; give a finite number above 0"
    with pytest.raises(ConfigError, match=f"--minutes {words}"):
        check_length(None, value)
    with pytest.raises(ConfigError, match=f"--epochs {words}"):
        check_length(value, None)


def test_messages_do_not_control_the_terminal(capsys):
    fail("no file \x1b]0;title\x07\x9b2J\r.png", "a\tb\nc\x08", 1)
    assert capsys.readouterr().err == (
        "error: no file \\x1b]0;title\\x07\\x9b2J\\r.png\n\nhint: a\tb\nc\\x08\n"
    )


def test_commands_have_the_shared_options_in_the_place_of_what_is_made_of_them():
    @with_orbit_options
    def command(first: int = 0, *, observed, last: int = 1) -> None:
        made.append((first, observed, last))

    made = []
    names = [*inspect.signature(command).parameters]
    assert (names[:2], names[-1]) == (["first", "orbit"], "last") and "observed" not in names
    shared = dict.fromkeys(names[1:-1]) | {"orbit": "person, light", "label": "person"}
    command(first=2, last=3, **shared)
    assert made == [(2, OrbitOptions(orbit=["person", "light"], label="person"), 3)]
