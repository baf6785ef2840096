import base64
import io

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from orbitset.report import blocks


def test_what_is_cut_down_has_that_written_below_every_figure():
    shapes = []
    for cut_down in (None, "cut down: " + "very much so, " * 20):
        content = blocks.picture(Figure(figsize=(3, 1)), cut_down)
        picture = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        shapes.append(picture.shape)
    assert shapes[0] == (160, 480, 3)
    assert shapes[1][0] > 160 + 40 and shapes[1][1] == 480  # several lines, no wider
    assert (picture[:160] == 255).all()
    reds = picture[160:].reshape(-1, 3)
    reds = reds[(reds != 255).any(1)]
    assert len(reds) and (reds[:, 0] >= reds[:, 1]).all()


def test_the_picture_on_the_page_is_the_file():
    shown_in = blocks.Figures(None)
    block = shown_in.show("empty", Figure(figsize=(3, 1)), 'a "caption"')
    content = shown_in.files["empty.png"]
    assert base64.b64decode(block["data"]) == content and block["width"] == 288
    assert Image.open(io.BytesIO(content)).size == (480, 160)
