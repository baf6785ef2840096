"""HTML pages, from the templates in templates/. What a template is given is escaped unless it is `Markup`.

Every template extends page.html, whose content security policy forbids scripts and anything from elsewhere.
"""

import functools
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """The page that a template and its values make; characters that are no text become question marks.

    >>> "<h1>a &lt;b&gt;</h1>" in render("sheet.html", title="a <b>", note="", rows=[], hidden_rows=0)
    True
    """
    page = _environment().get_template(template).render(values)
    return page.encode("utf-8", "replace").decode()


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("orbitset"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
