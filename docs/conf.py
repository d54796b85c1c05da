"""How Sphinx builds this folder: ``sphinx-build -W -b html docs OUT``, with the extra ``docs`` installed.

The pages are Markdown that reads well in the repository, too. So they link to files of the repository by their paths;
here such a link is turned into one to the page that includes the file, or into plain text if no page does.
"""

import os
import re
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

project = "scrapy-bloom"
author = "The scrapy-bloom developers"
project_copyright = author
version = release = installed_version("scrapy-bloom")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"scrapy-bloom {release}"
html_copy_source = False

DOCS = Path(__file__).parent
INCLUDED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "example_project/README.md": "example.md",
}
"""Files of the repository that are not in this folder, and the pages that stand for them."""

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]*)(#[^)\s]*)?\)")


def _relinked(text: str, home: Path) -> str:
    """Return *text*, written in the folder *home* of the repository, with links as the pages here need them."""

    def relink(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        path = Path(os.path.normpath(home / target))
        if path.parent == DOCS:
            return f"[{label}]({path.name}{anchor})"
        page = INCLUDED.get(path.relative_to(DOCS.parent).as_posix())
        return f"[{label}]({page}{anchor})" if page else label

    return _LINK.sub(relink, text)


def _relink_page(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = _relinked(source[0], DOCS)


def _relink_included(_app: Sphinx, path: Path, _parent: str, source: list[str]) -> None:
    source[0] = _relinked(source[0], (DOCS / path).resolve().parent)


def setup(app: Sphinx) -> None:
    """Relink each page, and each file that a page includes, when Sphinx reads it."""
    app.connect("source-read", _relink_page)
    app.connect("include-read", _relink_included)
