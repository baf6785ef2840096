"""Which code from outside may run; the commands that meet such code are in tests/cli/test_options.py."""

import os
import sys

import pytest

from orbitset.errors import ConfigError
from orbitset.outside import check_trust, command, import_named, is_name, trust


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with modules that must not be imported unasked."""
    (tmp_path / "package" / "sub").mkdir(parents=True)
    for name in (
        "package/__init__.py",
        "package/sub/__init__.py",
        "package/sub/code.py",
        "plain.py",
    ):
        (tmp_path / name).write_text("loss = len")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("package", "package.sub", "package.sub.code", "plain"):
        sys.modules.pop(name, None)


def _import(name):
    return import_named(name, what="loss")


def _import_for_a_file(name, path="config.json"):
    check_trust({name: "loss"}, path)
    return _import(name)


@pytest.mark.parametrize(
    "name",
    ["plain", ":loss", "plain:", ".plain:loss", "..plain:loss", "package..sub:loss", "a:b:c",
     "plain:loss.more", "plain :loss", "pla-in:loss", "../plain:loss", "1plain:loss"],
)  # fmt: skip
def test_what_is_no_name_of_code_is_refused(folder, name):
    assert not is_name(name)
    for load in (_import, _import_for_a_file):
        with pytest.raises(
            ConfigError, match=r"the loss .* is not understood; write package.module"
        ):
            load(name)


def test_the_user_s_own_names_are_imported_and_trusted_from_then_on(folder):
    assert _import("plain:loss") is len
    assert _import_for_a_file("plain:loss", folder / "config.json") is len
    assert os.environ["ORBITSET_TRUST"] == "plain"


def test_names_of_a_file_are_not_imported_nor_any_package_they_lie_in(folder):
    with pytest.raises(
        ConfigError, match=r"config\.json names the loss package\.sub\.code:loss; code"
    ):
        _import_for_a_file("package.sub.code:loss", folder / "config.json")
    assert not {"package", "package.sub", "package.sub.code"} & set(sys.modules)


@pytest.mark.parametrize(
    "trusted", ["package", "package.sub", "package.sub.code", "package.sub.code:loss"]
)
def test_trust_in_a_package_is_trust_in_its_modules(folder, trusted):
    trust(["other", f" {trusted} , another"])
    assert _import_for_a_file("package.sub.code:loss", folder / "c.json") is len


@pytest.mark.parametrize(
    "trusted", ["pack", "package.su", "package.sub.code.more", "sub.code", "code"]
)
def test_trust_in_another_module_does_not_count(folder, trusted):
    trust(trusted)
    with pytest.raises(ConfigError, match="only if you trust it"):
        _import_for_a_file("package.sub.code:loss", folder / "c.json")


@pytest.mark.parametrize("name", ["*", "..", "a b", "a/b.py", ""])
def test_only_modules_can_be_trusted(name):
    with pytest.raises(ConfigError, match="cannot be trusted; name a module"):
        trust(name)


def test_all_that_has_to_be_trusted_is_named_at_once(folder, monkeypatch):
    names = {
        "plain:loss": "loss",
        "package.sub:m": "measure",
        "package.sub:n": "measure",
        "os:p": "protocol",
    }
    trust("os")
    monkeypatch.setattr(sys, "argv", ["/bin/orbitset", "train", "--out", "a b"])
    with pytest.raises(
        ConfigError, match="the loss plain:loss, the measure package.sub:m, the m"
    ) as refused:
        check_trust(names, "the configuration")
    assert refused.value.hint == (
        "if you trust that code: orbitset train --out 'a b' --trust plain,package.sub"
    )
    monkeypatch.setattr(sys, "argv", ["/home/me/notebook.py"])
    with pytest.raises(ConfigError, match="or set ORBITSET_TRUST=plain,package.sub"):
        check_trust(names, "the configuration")


@pytest.mark.parametrize("form", ["plain", "link in the folder", "link to the folder", "package"])
def test_code_that_lies_in_the_folder_which_names_it_never_runs(folder, monkeypatch, form):
    (folder / "model").mkdir()
    module = "plain"
    match form:
        case "plain":
            monkeypatch.chdir(folder / "model")
            (folder / "model/plain.py").write_text("loss = len")
        case "link in the folder":
            monkeypatch.chdir(folder / "model")
            (folder / "model/plain.py").symlink_to(folder / "plain.py")
        case "link to the folder":
            (folder / "model/far.py").write_text("loss = len")
            (folder / "plain.py").unlink()
            (folder / "plain.py").symlink_to(folder / "model/far.py")
        case "package":
            (folder / "model/package").mkdir()
            (folder / "model/package/code.py").write_text("loss = len")
            module = "model.package.code"
    trust(module)
    with pytest.raises(ConfigError, match=rf"the module {module} lies in .*model, which names it"):
        _import_for_a_file(f"{module}:loss", folder / "model")
    assert module not in sys.modules and "model" not in sys.modules


def test_errors_of_the_user_s_code_say_what_cannot_be_imported(folder):
    (folder / "needing.py").write_text("import what_is_not_there")
    for name, word in (
        ("not_there:loss", "cannot import the loss not_there:loss: No module named 'not_there'"),
        ("package.gone:loss", "No module named 'package.gone'"),
        (
            "needing:loss",
            r"ModuleNotFoundError: No module named 'what_is_not_there' \(.*needing.py, line 1\)",
        ),
        ("plain:lost", "plain has no lost; did you mean loss?"),
    ):
        with pytest.raises(ConfigError, match=word.replace("?", r"\?")):
            _import(name)


def test_a_command_is_written_as_it_was_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/bin/orbitset", "embed", "my model", "-o", "c.npy"])
    assert command() == "orbitset embed 'my model' -o c.npy"
    monkeypatch.setattr(sys, "argv", ["/home/me/study.py", "--fast"])
    assert command() == "study.py --fast"
