import html.parser
import re
import shutil

import pytest
from test_pages import HOSTILE, check_harmless

from orbitset.config import with_settings
from orbitset.errors import RunError
from orbitset.recipes.affine_images import affine_digits
from orbitset.report import write_report
from orbitset.run_folder import Run
from orbitset.runs.train import train

SMALL = [
    "encoder.channels=4,8",
    "orbits.canvas_px=16",
    "train.epochs=0.005",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.tsne_points=50",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "OJ")
    train(with_settings(affine_digits("OJ"), SMALL), run)
    return run


def test_page_is_self_contained_and_shows_every_part(run):
    page = write_report(run).read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    for text in ("Results", "Against epochs", "rectified by OJ", "Orbits", "t-SNE"):
        assert text in page
    for text in ("ε-invariant", "Configuration and environment", "5 draws"):
        assert text in page
    names = {path.stem for path in (run / "figures").glob("*.png")}
    assert names == {"accuracy", "rectified", "orbits", "invariance-OJ", "tsne"}


def test_page_is_well_formed(run):
    open_tags = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "img"):
                open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Parser().feed(write_report(run).read_text())
    assert open_tags == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_in_a_run_folder_are_only_text(run, tmp_path, text):
    """As somebody may send it: every text in the folder is a stranger's, also where a number belongs."""
    shutil.copytree(run.path, tmp_path / "run")
    stranger = Run(tmp_path / "run")
    stranger.write_json("config.json", {**run.config, "name": text, "data": text, "cut_down": text})
    environment = {
        "device": text,
        "started_at": text,
        "commit": text,
        "seed": text,
        "x": {text: text},
    }
    stranger.write_json("environment.json", environment)
    results = run.read_json("results.json")
    for row in results["rows"]:
        row |= {
            "repeated": text,
            "method": text,
            "cut_down": text,
            "test": text,
            "p_corrected": 0.01,
        }
    results["protocol"] |= {"how": text, "label": text}
    stranger.write_json("results.json", results)
    check_harmless(write_report(stranger).read_text())


def test_a_seed_that_is_no_number_is_refused(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    Run(tmp_path / "run").write_json(
        "config.json", {**run.config, "seed": "<script>alert(1)</script>"}
    )
    with pytest.raises(RunError, match="config.json cannot be used: seed is"):
        write_report(Run(tmp_path / "run"))


def test_unfinished_run_is_an_error_that_says_how_to_go_on(tmp_path):
    run = Run(tmp_path / "run")
    run.create({"name": "x", "method": "OJ"})
    with pytest.raises(RunError, match="is not finished") as caught:
        write_report(run)
    assert "--resume" in caught.value.hint
