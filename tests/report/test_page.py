import html.parser
import re

import pytest

from orbitset.config import with_settings
from orbitset.errors import RunError
from orbitset.recipes.affine_images import affine_digits
from orbitset.report import write_report
from orbitset.run_folder import Run
from orbitset.runs.train import train

SMALL = [
    "encoder.channels=4,8",
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
    for text in ("Results", "Accuracy against epochs", "Decoded by OJ", "Orbits", "t-SNE"):
        assert text in page
    for text in ("ε-invariant", "Configuration and environment", "5 draws"):
        assert text in page
    names = {path.stem for path in (run / "figures").iterdir()}
    assert names == {"accuracy", "rectified-OJ", "orbits", "invariance-OJ", "tsne-OJ"}


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


def test_unfinished_run_is_an_error_that_says_how_to_go_on(tmp_path):
    run = Run(tmp_path / "run")
    run.create({"name": "x", "method": "OJ"})
    with pytest.raises(RunError, match="is not finished") as caught:
        write_report(run)
    assert "--resume" in caught.value.hint
