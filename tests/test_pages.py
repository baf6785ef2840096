"""Hostile names in a page: nothing of them becomes a tag, and the page's policy forbids scripts anyway."""

import re
from html.parser import HTMLParser

import pytest

from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% include 'page.html' %}",
    "</title></style></main><script src=//evil.example/a.js></script>",
]
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "section",
        "div",
        "h1",
        "h2",
        "p",
        "b",
    ),
    *(
        "br",
        "code",
        "pre",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "figure",
        "figcaption",
        "img",
    ),
    *("span", "wbr", "details", "summary"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "alt", "loading", "decoding"),
    *("src", "width"),
}
POLICY = re.compile(
    r'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    r"style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
)


def check_harmless(page):
    """A page has the policy before anything else that matters, and no tag or address of a stranger."""
    assert POLICY.search(page) and page.index("Content-Security-Policy") < page.index("<title>")
    assert "url(" not in page

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attributes):
            assert tag in TAGS, tag
            for name, value in attributes:
                assert name in ATTRIBUTES, name
                assert name != "src" or value.startswith("data:image/"), value

    Parser().feed(page)
    assert "49" not in re.sub(r'data:[^"]*', "", page)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_on_a_sheet_are_only_text(name):
    picture = SheetPicture(name, name, name, is_marked=True)
    check_harmless(contact_sheet([SheetRow(name, [picture], name)], title=name, note=name))
