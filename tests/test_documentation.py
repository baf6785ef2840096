"""Documents cannot go stale: their code runs, and the command reference is current."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_python

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/own-loss.md", "docs/own-data.md"])
def test_python_in_the_documents_runs(page, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert blocks
    monkeypatch.chdir(tmp_path)
    done = run_python("\n".join(blocks))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("source", "own"),
    [
        ("affine-digits", ["--measure", "my_measures:purity", "--protocol", "my_protocols:Mine"]),
        ("my_data:images", ["--orbit", "thing", "--protocol", "my_pairs:AtRate"]),
    ],
    ids=["computed", "observed"],
)
def test_measures_protocols_and_sources_of_the_documents_are_trained_with(
    orbitset, tmp_path, monkeypatch, source, own
):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "own-loss.md").read_text()
    for module, text in re.findall(r"```python\n# (my_\w+\.py)\n(.*?)```", page, re.S):
        Path(module).write_text(text)
        monkeypatch.delitem(sys.modules, module.removesuffix(".py"), raising=False)
    small = [
        "encoder.channels=4",
        "encoder.code_size=8",
        "train.epochs=0.005",
        "train.evaluations=1",
    ]
    settings = [part for setting in small for part in ("--set", setting)]
    done = orbitset("train", source, *own, *settings, "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    measures = {row["metric"] for row in json.loads(done.stdout)["rows"]}
    assert measures == ({"auc", "purity"} if source == "affine-digits" else {"tar"})


def test_command_reference_is_current():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_and_modules_that_the_documents_name_exist():
    """The log and the changelog speak of what was there at the time."""
    source = ROOT / "src" / "orbitset"
    history = {ROOT / "CHANGELOG.md", ROOT / "docs" / "log.md"}
    for page in {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - history:
        text = page.read_text()
        for name in re.findall(r"`([\w-]+/[\w/.-]+\.py)`", text):
            assert (source / name).exists() or (ROOT / name).exists(), f"{page.name} names {name}"
        for name in re.findall(r"(?:from|import) orbitset\.([\w.]+)", text):
            module = source / name.replace(".", "/")
            assert module.exists() or module.with_suffix(".py").exists(), f"{page.name}: {name}"


def test_what_users_are_told_to_install_exists_without_a_release():
    """There is no release of the package to install extras of: hints name the packages themselves."""
    project = (ROOT / "pyproject.toml").read_text()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"pip install '?orbitset", text), path
        for packages in re.findall(r"pip install ([\w -]+)", text):
            assert all(f'"{package}>=' in project for package in packages.split()), packages
