"""Draws lines over the time of a crawl as an inline ``<svg>``; the page that holds it has the colours.

A line is labelled where it ends, and lines differ in style, so that they can be told apart in black and white.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STYLE = """
svg { display: block; width: 100%; height: auto; font-size: 13px; fill: currentColor; }
svg path { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
svg .title { font-weight: 600; font-size: 15px; }
svg .axis { stroke-width: 1; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .run { stroke: var(--quiet); stroke-width: 1; stroke-dasharray: 1 4; }
svg .line1 { color: var(--mark); }
svg path.line1 { stroke-dasharray: 7 3; }
svg .line2 { color: var(--warn); }
svg path.line2 { stroke-dasharray: 2 3; }
"""
"""For the page, which defines ``--line``, ``--quiet``, ``--mark`` and ``--warn``."""

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 392, 40, 252
"""Of the axes; the labels of the lines stand to the right of them."""
_LABEL_HEIGHT = 34
_MOST_POINTS = 500
"""Of one line: more cannot be seen."""
_TICKS = 5
"""Numbers along an axis, about."""
_TIME_UNITS = (("days", 24.0, 72.0), ("hours", 1.0, 2.0), ("minutes", 1 / 60, 0.05), ("seconds", 1 / 3600, 0.0))
"""Units of the axis of time: name, its length in hours, hours from which on it is used."""


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    values: Sequence[float]
    """One for each time of the chart, from 0 up."""


def time_chart(title: str, hours: Sequence[float], lines: Sequence[Line], *, runs: Sequence[float] = ()) -> str:
    """Return a chart of at most three *lines* over *hours*, at least two times in ascending order.

    A dotted vertical line marks each of *runs*, the hours at which a later run began.
    """
    unit, unit_hours = next((unit, length) for unit, length, least in _TIME_UNITS if hours[-1] >= least)
    x_top = max(hours[-1] / unit_hours, 1e-6)
    y_step = _step(max(1.0, *(max(line.values) for line in lines)), whole=True)
    y_top = y_step * math.ceil(max(1.0, *(max(line.values) for line in lines)) / y_step)

    def x(hour: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * hour / unit_hours / x_top

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / y_top

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts.append(_text(0, 16, title, kind="title"))
    for value in _ticks(y_top, y_step):
        parts.append(_path([(_LEFT, y(value)), (_RIGHT, y(value))], "grid" if value else "axis"))
        parts.append(_text(_LEFT - 7, y(value) + 4, short(value), anchor="end"))
    parts += [
        _text(x(value * unit_hours), _BOTTOM + 18, short(value), anchor="middle")
        for value in _ticks(x_top, _step(x_top))
    ]
    parts.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 38, f"{unit} of crawling", anchor="middle"))
    parts += [_path([(x(hour), _TOP), (x(hour), _BOTTOM)], "run") for hour in runs]
    shown = _spread(len(hours))
    for number, line in enumerate(lines):
        parts.append(_path([(x(hours[at]), y(line.values[at])) for at in shown], f"line{number}"))
    parts += _end_labels(lines, y)
    return "\n".join([*parts, "</svg>"])


def short(count: float) -> str:
    """Return *count* in a few characters: ``"1.5 M"``."""
    for power, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return f"{count:.3g}"


def _step(top: float, *, whole: bool = False) -> float:
    """Return the distance of about `_TICKS` round numbers from 0 to *top*: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(top / _TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * _TICKS >= top * 0.999)
    return max(1.0, step) if whole else step


def _ticks(top: float, step: float) -> list[float]:
    return [number * step for number in range(math.floor(top / step + 1e-9) + 1)]


def _spread(count: int) -> list[int]:
    """Return at most `_MOST_POINTS` indexes from the first to the last of *count*."""
    most = min(count, _MOST_POINTS)
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]


def _end_labels(lines: Sequence[Line], y: Callable[[float], float]) -> list[str]:
    """Return the name and last value of each line at the height of its end, none over another."""
    heights = {number: y(line.values[-1]) for number, line in enumerate(lines)}
    order = sorted(heights, key=lambda number: (heights[number], number))
    for above, below in pairwise(order):
        heights[below] = max(heights[below], heights[above] + _LABEL_HEIGHT)
    over = max(0.0, heights[order[-1]] - (_BOTTOM - 10))
    parts = []
    for number, line in enumerate(lines):
        height = heights[number] - over
        parts.append(_text(_RIGHT + 9, height, line.name, kind=f"line{number}"))
        parts.append(_text(_RIGHT + 9, height + 15, short(line.values[-1]), kind=f"line{number}"))
    return parts


def _path(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'
