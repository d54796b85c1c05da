"""Writes the HTML of reports: one page that loads no other files.

Names, URLs and findings come from strangers: everything is escaped, no URL is a link, and the page's content policy
forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from scrapy_bloom.commands import charts
from scrapy_bloom.crawl.estimate import left_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy_bloom.crawl.estimate import Left

_LONGEST_NAME = 400
"""In characters."""

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2129; --quiet: #5d6673; --line: #d9dde3; --card: #f6f7f9;
  --mark: #1f62b0; --warn: #a4500f; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e6e9ee; --quiet: #9aa4b2; --line: #343b45;
  --card: #1d2229; --mark: #6aa9f0; --warn: #f0a860; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
.quiet { color: var(--quiet); max-width: 46rem; }
.finding { border-left: 4px solid var(--warn); padding: .4rem .8rem; background: var(--card); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.3rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
dl div { background: var(--card); border-radius: .5rem; padding: .7rem .9rem; }
dt, dd small { color: var(--quiet); font-size: .85rem; }
dd { margin: 0; font-size: 1.45rem; line-height: 1.3; }
dd small { display: block; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .35rem 0 .35rem .75rem; border-bottom: 1px solid var(--line); text-align: right; }
th:nth-child(odd), td:nth-child(odd) { text-align: left; overflow-wrap: anywhere; }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, body: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a page."""
    shown = text(title)
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{shown}</title>\n<style>{_STYLE}{charts.STYLE}</style>\n</head>\n<body>\n<h1>{shown}</h1>"
    yield from body
    yield "</body>\n</html>"


def tiles(figures: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a tile for each of *figures*: its name, its value, and a remark."""
    yield "<dl>"
    for label, value, remark in figures:
        yield f"<div><dt>{text(label)}</dt><dd>{text(value)}<small>{text(remark)}</small></dd></div>"
    yield "</dl>"


def left_tile(left: Left | None, pages_per_minute: float) -> tuple[str, str, str]:
    """Return the tile for *left*, the number of pages left; None: unknown."""
    words = ["unknown"] if left is None else left_in_words(left, pages_per_minute)
    return "Left", words[0].removesuffix(" pages left"), "".join(words[1:])


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table under its *title*; nothing if it has no rows."""
    if not rows:
        return
    yield f"<h2>{text(title)}</h2>"
    yield f"<table><thead><tr>{''.join(f'<th>{text(name)}</th>' for name in header)}</tr></thead>"
    yield from (f"<tr>{''.join(f'<td><bdi>{text(cell)}</bdi></td>' for cell in row)}</tr>" for row in rows)
    yield "</table>"


def note(sentences: str) -> str:
    """Return a paragraph in the background."""
    return f'<p class="quiet">{text(sentences)}</p>'


def text(name: str) -> str:
    """Return *name* for HTML: escaped, cut, and without characters that change what is around it."""
    shown = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown))
