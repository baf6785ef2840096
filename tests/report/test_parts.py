import base64
import io
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from orbitset.errors import RunError
from orbitset.report import parts
from orbitset.run_folder import Run


def test_what_is_cut_down_has_that_written_below_every_figure():
    shapes = []
    for cut_down in (None, "cut down: " + "very much so, " * 20):
        content = parts.picture(Figure(figsize=(3, 1)), cut_down)
        picture = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        shapes.append(picture.shape)
    assert shapes[0] == (160, 480, 3)
    assert shapes[1][0] > 160 + 40 and shapes[1][1] == 480  # several lines, no wider
    assert (picture[:160] == 255).all()
    reds = picture[160:].reshape(-1, 3)
    reds = reds[(reds != 255).any(1)]
    assert len(reds) and (reds[:, 0] >= reds[:, 1]).all()


def test_a_damaged_file_of_arrays_is_named(tmp_path):
    run = Run(tmp_path)
    for content in (b"", b"PK", b"nonsense"):
        (run / "arrays.npz").write_bytes(content)
        with pytest.raises(RunError, match=r"arrays\.npz is damaged"):
            parts.arrays(run)


def test_tables_escape_what_they_show_and_mark_baselines():
    text = parts.table(["a", "b"], [["pixels", "<b>"], ["OJ", "1"]])
    assert "&lt;b&gt;" in text and "<b>" not in text
    assert text.count('class="baseline"') == 1


def test_the_picture_on_the_page_is_the_file():
    figures = parts.Figures(None)
    shown = figures.show("empty", Figure(figsize=(3, 1)), 'a "caption"')
    data = base64.b64decode(re.search(r"base64,([^\"]+)", shown).group(1))
    assert figures.files == {"empty.png": data}
    assert Image.open(io.BytesIO(data)).size == (480, 160)
    assert "&quot;caption&quot;" in shown
