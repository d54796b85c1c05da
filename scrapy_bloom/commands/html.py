"""Writes the HTML of reports: one page that loads no other files.

Names, URLs and findings come from strangers: everything is escaped, no URL is a link, and the page's content policy
forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import math
from datetime import timedelta
from html import escape
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.terminal import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_LONGEST_NAME = 400
"""In characters."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 505, 12, 225
"""The axes of charts."""
_MOST_POINTS = 500
"""Points of a line in a chart. More cannot be seen."""
_DASHES = ("\N{EM DASH}", "- -", "\N{MIDDLE DOT}" * 3)
"""How the first, second and third line of a chart are drawn, so that they differ in black and white, too."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, body: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a page."""
    style = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<h1>{text(title)}</h1>"
    yield from body
    yield "</body>\n</html>"


def tiles(figures: Iterable[tuple[str, int | str, str]]) -> Iterator[str]:
    """Yield a tile for each of *figures*: its name, its value, and a remark."""
    yield "<dl>"
    for label, value, remark in figures:
        yield f"<div><dt>{text(label)}</dt><dd>{text(shown(label, value))}<small>{text(remark)}</small></dd></div>"
    yield "</dl>"


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of *rows*, whose names are its header, under its *title*; nothing if there are no rows."""
    if not rows:
        return
    numbers = {name: ' class="number"' if isinstance(value, (int, float)) else "" for name, value in rows[0].items()}
    header = "".join(f"<th{numbers[name]}>{text(name.replace('_', ' '))}</th>" for name in rows[0])
    yield f"<h2>{text(title)}</h2>\n<table><thead><tr>{header}</tr></thead>"
    for row in rows:
        cells = (f"<td{numbers[name]}><bdi>{text(shown(name, value))}</bdi></td>" for name, value in row.items())
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table>"


def note(sentences: str) -> str:
    """Return a paragraph in the background."""
    return f'<p class="quiet">{text(sentences)}</p>'


def text(name: str) -> str:
    """Return *name* for HTML: escaped, cut, and without characters that change what is around it."""
    cut = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cut))


def chart(title: str, hours: Sequence[float], lines: Mapping[str, Sequence[int]], runs: Sequence[float]) -> str:
    """Return a chart of up to three *lines*, values from 0 up by name, over *hours*: two or more, in ascending order.

    A dotted vertical line marks each of *runs*, the hours at which a later run began.
    """
    end = max(hours[-1], 1e-6)
    highest = max(max(values) for values in lines.values())
    tops: Iterator[int] = (factor * 10**power for power in count() for factor in (2, 4, 10))  # with whole halves
    top = next(top for top in tops if top >= highest)

    def x(hour: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * hour / end

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / top

    parts = [f'<svg viewBox="0 0 520 270" role="img" aria-label="{escape(title)} over time">']
    for value in (0, top // 2, top):
        parts.append(_path([(_LEFT, y(value)), (_RIGHT, y(value))], "grid"))
        parts.append(f'<text x="{_LEFT - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,}</text>')
    duration = timedelta(seconds=round(3600 * end))
    parts.append(f'<text x="{_RIGHT}" y="{_BOTTOM + 20}" text-anchor="end">{duration} of crawling</text>')
    parts += [_path([(x(hour), _TOP), (x(hour), _BOTTOM)], "run") for hour in runs]
    legend = ""
    for number, (name, values) in enumerate(lines.items()):
        drawn = (*range(0, len(hours), math.ceil(len(hours) / _MOST_POINTS)), len(hours) - 1)
        parts.append(_path([(x(hours[at]), y(values[at])) for at in drawn], f"line{number}"))
        legend += f'<span class="line{number}">{_DASHES[number]} {escape(name)} {values[-1]:,}</span> '
    caption = f"<figcaption><b>{escape(title)}</b>{legend}</figcaption>"
    return "\n".join(["<figure>", caption, *parts, "</svg>", "</figure>"])


def _path(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'
