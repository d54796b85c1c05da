"""Draws lines over the time of a crawl, as a ``<figure>`` for a page that has the colours."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from scrapy_bloom.errors import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STYLE = """
figure { margin: 0; min-width: 0; }
figcaption b { display: block; }
figcaption span { margin-right: 1rem; white-space: nowrap; font-size: .85rem; }
svg { display: block; width: 100%; height: auto; font-size: 13px; fill: currentColor; }
svg path { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .run { stroke: var(--quiet); stroke-width: 1; stroke-dasharray: 1 4; }
.line1 { color: var(--mark); }
path.line1 { stroke-dasharray: 7 3; }
.line2 { color: var(--warn); }
path.line2 { stroke-dasharray: 2 3; }
"""
"""For the page, which defines ``--line``, ``--quiet``, ``--mark`` and ``--warn``."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 505, 12, 225
"""Of the axes."""
_MOST_POINTS = 500
"""Of one line: more cannot be seen."""
_DASHES = ("\N{EM DASH}", "- -", "\N{MIDDLE DOT}" * 3)
"""How the first, second and third line are drawn, so that they differ in black and white, too."""


def time_chart(
    title: str, hours: Sequence[float], lines: Mapping[str, Sequence[float]], runs: Sequence[float] = ()
) -> str:
    """Return a chart of up to three *lines*, values from 0 up by name, over *hours*: two or more, in ascending order.

    A dotted vertical line marks each of *runs*, the hours at which a later run began.
    """
    end = max(hours[-1], 1e-6)
    top = _round_up(max(1.0, *(max(values) for values in lines.values())))

    def x(hour: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * hour / end

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / top

    parts = [f'<svg viewBox="0 0 520 270" role="img" aria-label="{escape(title)} over time">']
    for value in (0, top / 2, top):
        parts.append(_path([(_LEFT, y(value)), (_RIGHT, y(value))], "grid"))
        parts.append(f'<text x="{_LEFT - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{short(value)}</text>')
    parts.append(f'<text x="{_RIGHT}" y="{_BOTTOM + 20}" text-anchor="end">{_in_words(end)} of crawling</text>')
    parts += [_path([(x(hour), _TOP), (x(hour), _BOTTOM)], "run") for hour in runs]
    shown = range(0, len(hours), math.ceil(len(hours) / _MOST_POINTS))
    legend = ""
    for number, (name, values) in enumerate(lines.items()):
        points = [(x(hours[at]), y(values[at])) for at in (*shown, len(hours) - 1)]
        parts.append(_path(points, f"line{number}"))
        legend += f'<span class="line{number}">{_DASHES[number]} {escape(name)} {short(values[-1])}</span> '
    caption = f"<figcaption><b>{escape(title)}</b>{legend}</figcaption>"
    return "\n".join(["<figure>", caption, *parts, "</svg>", "</figure>"])


def _in_words(hours: float) -> str:
    whole, minutes = divmod(round(60 * hours), 60)
    words = [counted(whole, "hour")] if whole else []
    words += [counted(minutes, "minute")] if minutes else []
    return " ".join(words) or "less than a minute"


def short(count: float) -> str:
    """Return *count* in a few characters: ``"1.5 M"``."""
    for power, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return f"{count:.3g}"


def _round_up(value: float) -> float:
    """Return the least of 1, 2, 5 and 10 times a power of ten that is not below *value*."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def _path(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'
