"""Hostile names in a page: nothing of them becomes a tag, and the page's policy forbids scripts anyway."""

import re

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
POLICY = re.compile(
    r'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    r"style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
)


def check_harmless(page):
    """A page has the policy before anything else that matters, and no tag or address of a stranger."""
    assert POLICY.search(page) and page.index("Content-Security-Policy") < page.index("<title>")
    assert not re.search(r"<(script|svg|iframe|object|embed|link|base|form)\b", page)
    assert not re.search(r"<[^>]*\son\w+=", page)
    assert not re.search(r'(src|href)="(?!data:)', page) and "url(" not in page
    assert "49" not in re.sub(r'data:[^"]*', "", page)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_on_a_sheet_are_only_text(name):
    picture = SheetPicture(name, name, name, is_marked=True)
    check_harmless(contact_sheet([SheetRow(name, [picture], name)], title=name, note=name))
