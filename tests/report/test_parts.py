import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from orbitset.report import parts
from orbitset.runs import Run


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.create({"name": "x", "method": "OJ", "cut_down": None})
    return run


def test_a_cut_down_run_has_that_written_below_every_figure(run):
    sizes = []
    for cut_down in (None, "cut down: " + "very much so, " * 20):
        run.write_json("config.json", {**run.config, "cut_down": cut_down})
        parts.figure(run, "empty", Figure(figsize=(3, 1)), "nothing")
        picture = np.asarray(Image.open(run / "figures" / "empty.png").convert("RGB"))
        sizes.append(picture.shape)
    assert sizes[0] == (160, 480, 3)
    assert sizes[1][0] > 160 + 40 and sizes[1][1] == 480  # several lines, no wider
    assert (picture[:160] == 255).all() and (picture[160:] != 255).any()
    reds = picture[160:].reshape(-1, 3)
    reds = reds[(reds != 255).any(1)]
    assert (reds[:, 0] >= reds[:, 1]).all()


def test_tables_escape_what_they_show_and_mark_baselines():
    text = parts.table(["a", "b"], [["pixels", "<b>"], ["OJ", "1"]])
    assert "&lt;b&gt;" in text and "<b>" not in text
    assert text.count('class="baseline"') == 1


def test_the_picture_on_the_page_is_the_file(run):
    import base64
    import re

    shown = parts.figure(run, "empty", Figure(figsize=(3, 1)), 'a "caption"')
    data = base64.b64decode(re.search(r"base64,([^\"]+)", shown).group(1))
    assert data == (run / "figures" / "empty.png").read_bytes()
    assert Image.open(io.BytesIO(data)).size == (480, 160)
    assert "&quot;caption&quot;" in shown
