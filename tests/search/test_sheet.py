import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet


def _pixels(height=20, width=30, channels=3):
    shape = (height, width, channels) if channels else (height, width)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def _page(*pictures, **asked):
    return contact_sheet([SheetRow("row", pictures)], title="title", **asked)


def _shown(page):
    """The pictures of a page."""
    data = re.findall(r'src="data:image/\w+;base64,([^"]*)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(each))) for each in data]


class _Balanced(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, _attributes):
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("channels", [0, 1, 3, 4])
def test_small_pixels_are_shown_as_they_are(channels):
    pixels = _pixels(channels=channels)
    [shown] = _shown(_page(SheetPicture(pixels, "one")))
    assert np.array_equal(np.asarray(shown), pixels[..., 0] if channels == 1 else pixels)


def test_large_pictures_are_shown_small_whatever_they_come_from(tmp_path):
    image = Image.fromarray(_pixels(400, 800))
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "b.jpg")
    sources = [tmp_path / "a.png", str(tmp_path / "b.jpg"), image, np.asarray(image)]
    page = _page(*(SheetPicture(source, "one") for source in sources))
    assert [shown.size for shown in _shown(page)] == [(160, 80)] * 4
    assert [shown.format for shown in _shown(page)] == ["JPEG"] * 4
    assert image.size == (800, 400)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "I;16", "F"]
)
def test_every_kind_of_picture_is_shown(tmp_path, mode):
    if mode == "I;16":
        image = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
    else:
        image = Image.fromarray(_pixels()).convert("L" if mode in "IF" else "RGB").convert(mode)
    [shown] = _shown(_page(SheetPicture(image, "one")))
    assert shown.size == (30, 20) and shown.mode in ("L", "RGB", "RGBA")
    assert np.ptp(np.asarray(shown)) > 200
    if mode not in ("CMYK", "YCbCr", "I", "F"):
        image.save(tmp_path / "a.png")
        assert len(_shown(_page(SheetPicture(tmp_path / "a.png", "one")))) == 1


def test_pictures_are_upright(tmp_path):
    image = Image.fromarray(_pixels(20, 30))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "a.jpg", exif=exif)
    [shown] = _shown(_page(SheetPicture(tmp_path / "a.jpg", "one")))
    assert shown.size == (20, 30)


def test_what_cannot_be_read_is_an_empty_box_with_its_name(tmp_path):
    (tmp_path / "no <picture>.png").write_text("hello")
    Image.fromarray(_pixels(100, 100)).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:500])
    names = ["no <picture>.png", "cut.png", "missing.png", "\udcff.png", "a\0b.png"]
    page = _page(*(SheetPicture(tmp_path / name, "caption") for name in names))
    assert not _shown(page) and page.count('class="frame empty"') == 5
    for name in ("no &lt;picture&gt;.png", "cut.png", "missing.png", "?.png"):
        assert f">{name} cannot be read<" in page
    page.encode()


def test_a_file_that_is_shown_twice_is_read_once_and_described_twice(tmp_path, monkeypatch):
    Image.fromarray(_pixels()).save(tmp_path / "a.png")
    read, opened = Image.open, []
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or read(path))
    page = _page(SheetPicture(tmp_path / "a.png", "one"), SheetPicture(tmp_path / "a.png", "two"))
    assert len(opened) == 1 and 'alt="one"' in page and 'alt="two"' in page


def test_texts_are_escaped_and_the_page_is_whole():
    nasty = '<script>alert("1")</script> & \udcff'
    picture = SheetPicture(_pixels(), nasty, nasty, is_marked=True)
    page = contact_sheet(
        [SheetRow(nasty, [picture], nasty), SheetRow("none", [])], title=nasty, note=nasty
    )
    texts = "".join(_Balanced(page).texts)
    assert "<script" not in page and texts.count('<script>alert("1")</script> & ?') == 7
    assert page.count('<figure class="marked">') == 1
    assert not re.search(r'(src|href)="(?!data:)', page) and "url(" not in page
    page.encode()


def test_rows_and_pictures_beyond_the_most_are_counted():
    def page(rows, pictures):
        row = SheetRow("row", [SheetPicture(_pixels(), "one")] * pictures)
        return contact_sheet([row] * rows, title="title", most_rows=3, most_pictures=2)

    assert "not shown" not in page(3, 2)
    assert "1 more row is not shown." in page(4, 1) and page(4, 1).count("<section") == 3
    assert "1,200 more rows are not shown." in page(1203, 0)
    assert page(1, 3).count("<figure") == 2 and "1 more picture is not shown." in page(1, 3)


def test_both_schemes_and_narrow_pages_are_provided_for():
    page = _page()
    for words in ("prefers-color-scheme: dark", "max-width: 30rem", 'name="viewport"'):
        assert words in page


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4)),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((0, 4), np.uint8),
    ],
)
def test_pixels_that_are_no_picture_are_refused(pixels):
    with pytest.raises(ValueError, match="pixels are"):
        _page(SheetPicture(pixels, "one"))
