"""Draws lines over the time of a crawl, as a ``<figure>`` for a page that has the colours."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

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

_WIDTH, _HEIGHT = 520, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 505, 12, 225
"""Of the axes."""
_MOST_POINTS = 500
"""Of one line: more cannot be seen."""
_TICKS = 5
"""Numbers along an axis, about."""
_DASHES = ("\N{EM DASH}", "- -", "\N{MIDDLE DOT}" * 3)
"""How the first, second and third line are drawn, so that they can be told apart in black and white."""
_TIME_UNITS = (("days", 24.0, 72.0), ("hours", 1.0, 2.0), ("minutes", 1 / 60, 0.05), ("seconds", 1 / 3600, 0.0))
"""Units of the axis of time: name, its length in hours, hours from which on it is used."""


def time_chart(
    title: str, hours: Sequence[float], lines: Mapping[str, Sequence[float]], runs: Sequence[float] = ()
) -> str:
    """Return a chart of up to three *lines*, values from 0 up by name, over *hours*: two or more, in ascending order.

    A dotted vertical line marks each of *runs*, the hours at which a later run began.
    """
    unit, unit_hours = next((unit, length) for unit, length, least in _TIME_UNITS if hours[-1] >= least)
    x_top = max(hours[-1] / unit_hours, 1e-6)
    most = max(1.0, *(max(values) for values in lines.values()))
    y_step = max(1.0, _step(most))
    y_top = y_step * math.ceil(most / y_step)

    def x(hour: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * hour / unit_hours / x_top

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / y_top

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)} over time">']
    for value in _ticks(y_top, y_step):
        parts.append(_path([(_LEFT, y(value)), (_RIGHT, y(value))], "grid"))
        parts.append(_text(_LEFT - 7, y(value) + 4, short(value), "end"))
    ticks = _ticks(x_top, _step(x_top))
    parts += [_text(x(value * unit_hours), _BOTTOM + 18, short(value), "middle") for value in ticks]
    parts.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 38, f"{unit} of crawling", "middle"))
    parts += [_path([(x(hour), _TOP), (x(hour), _BOTTOM)], "run") for hour in runs]
    shown = range(0, len(hours), math.ceil(len(hours) / _MOST_POINTS))
    legend = ""
    for number, (name, values) in enumerate(lines.items()):
        points = [(x(hours[at]), y(values[at])) for at in (*shown, len(hours) - 1)]
        parts.append(_path(points, f"line{number}"))
        legend += f'<span class="line{number}">{_DASHES[number]} {escape(name)} {short(values[-1])}</span> '
    caption = f"<figcaption><b>{escape(title)}</b>{legend}</figcaption>"
    return "\n".join(["<figure>", caption, *parts, "</svg>", "</figure>"])


def short(count: float) -> str:
    """Return *count* in a few characters: ``"1.5 M"``."""
    for power, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return f"{count:.3g}"


def _step(top: float) -> float:
    """Return the distance of about `_TICKS` round numbers from 0 to *top*: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(top / _TICKS))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * _TICKS >= top * 0.999)


def _ticks(top: float, step: float) -> list[float]:
    return [number * step for number in range(math.floor(top / step + 1e-9) + 1)]


def _path(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
